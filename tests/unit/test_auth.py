"""The bearer check (web/auth.py): INV-6; trouble.md rank 20; wire/semif.md §8, 36."""

from __future__ import annotations

import contextlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import TOKEN
from web.auth import BearerAuth
from web.errors import ApiError

AUTH = BearerAuth(TOKEN)


def refused(header: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        AUTH.check(header)
    assert caught.value.kind == "unauthorized"
    assert TOKEN not in caught.value.message


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_the_token_passes_and_the_schemes_case_does_not_matter(scheme: str) -> None:
    AUTH.check(f"{scheme} {TOKEN}")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        " ",
        "Bearer",
        "Bearer ",
        TOKEN,
        f" {TOKEN}",
        f"Bearer  {TOKEN}",
        f"Bearer\t{TOKEN}",
        f" Bearer {TOKEN}",
        f"Bearer {TOKEN} ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        f"Basic {TOKEN}",
        f"Token {TOKEN}",
        f"Bearer: {TOKEN}",
        f"Bearer {TOKEN}, Bearer {TOKEN}",
        f"Bearer {TOKEN},",
        f"xBearer {TOKEN}",
        f"Bearer {TOKEN}\x00",
        "Bearer caf\xe9",
        f"B\xe9arer {TOKEN}",
        f"Bearer {TOKEN[:-1]}\xe9",
        "\xff" * 100,
        "Bearer " + "x" * (1 << 20),
    ],
)
def test_anything_else_is_401_and_never_an_exception_of_another_kind(header: str | None) -> None:
    refused(header)


def test_a_character_that_no_header_can_hold_never_stands_for_one_of_the_token() -> None:
    question_marks = BearerAuth("?" * 32)
    question_marks.check("Bearer " + "?" * 32)
    with pytest.raises(ApiError):
        question_marks.check("Bearer " + "€" * 32)


def test_the_comparison_is_in_constant_time_and_on_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def spy(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", spy)
    for header in (None, "Basic x", f"Bearer {TOKEN}", "Bearer caf\xe9"):
        with contextlib.suppress(ApiError):
            AUTH.check(header)
    assert len(compared) == 4, "a wrong scheme must not be told apart by time"
    assert all(isinstance(side, bytes) for pair in compared for side in pair)


@given(st.text(st.characters(max_codepoint=255), max_size=60))
def test_no_other_header_text_passes(header: str) -> None:
    refused(header)
    if header != TOKEN:
        refused(f"Bearer {header}")


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=32, max_size=80))
def test_every_legal_token_passes_and_only_itself(token: str) -> None:
    auth = BearerAuth(token)
    auth.check(f"Bearer {token}")
    for other in (token[:-1], token + "x", token.swapcase() if token.swapcase() != token else token[1:]):
        with pytest.raises(ApiError):
            auth.check(f"Bearer {other}")
