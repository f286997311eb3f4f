"""Contract: every POST needs ``Authorization: Bearer <token>``, checked before anything else; INV-6."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

import pytest

from shared.settings import SettingsError, WebSettings
from tests.contract.helpers import ROUTES, assert_error, gated, in_background, wait_until_in_use
from tests.harness import BEARER, D1, S1, TOKEN, Local

WRONG = {
    "no header": None,
    "empty": "",
    "another token of the same length": f"Bearer {'x' * len(TOKEN)}",
    "the token cut short": f"Bearer {TOKEN[:-1]}",
    "the token and more": f"Bearer {TOKEN}x",
    "the token in upper case": f"Bearer {TOKEN.upper()}",
    "another scheme": f"Basic {TOKEN}",
    "no scheme": TOKEN,
    "a scheme alone": "Bearer",
    "a scheme and a space": "Bearer ",
    "two spaces": f"Bearer  {TOKEN}",
    "two credentials": f"Bearer {TOKEN},Bearer {TOKEN}",
    "a byte above 0x7F": "Bearer caf\u00e9",
    "a byte above 0x7F after the token": f"Bearer {TOKEN}\u00e9",
}


def headers(value: str | None) -> dict[str, str]:
    return {} if value is None else {"Authorization": value}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_a_post_without_the_right_bearer_is_401_and_never_reaches_the_engine(
    service: Local, path: str, value: str | None
) -> None:
    assert_error(service.post(path, ROUTES[path], headers(value)), 401, "unauthorized")
    assert service.engine.prepared == 0


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_schemes_name_is_case_insensitive(service: Local, scheme: str) -> None:
    assert service.post("/decide", D1, {"Authorization": f"{scheme} {TOKEN}"})[0] == 200


def test_a_401_says_which_scheme_is_wanted(service: Local) -> None:
    response = service.client.post("/decide", json=D1)
    assert response.headers["WWW-Authenticate"] == "Bearer"


def test_health_needs_no_auth(service: Local) -> None:
    assert service.client.get("/health").status_code == 200
    assert service.client.get("/health", headers={"Authorization": "Bearer wrong"}).status_code == 200


def test_the_models_list_takes_the_same_bearer_as_the_posts(service: Local) -> None:
    refused = service.client.get("/v1/models")
    assert refused.status_code == 401
    assert refused.json["error"]["code"] == "unauthorized"
    assert service.client.get("/v1/models", headers=BEARER).status_code == 200


@pytest.mark.parametrize("body", [b"{not json", b"", b"x" * (2 << 20)], ids=["bad JSON", "empty", "too large"])
def test_401_comes_before_413_and_422(service: Local, body: bytes) -> None:
    assert_error(service.post("/decide", body, {}), 401, "unauthorized")


def test_401_comes_before_429(service: Local) -> None:
    limit = service.web_settings.max_queue
    with in_background(service) as post, gated(service) as gate:
        waiting = [post("/decide", D1) for _ in range(limit)]
        wait_until_in_use(service, limit)
        assert_error(service.post("/decide", D1), 429, "busy")
        assert_error(service.post("/decide", D1, {}), 401, "unauthorized")
        gate.open()
        assert [one.result()[0] for one in waiting] == [200] * limit


def test_a_401_takes_no_slot(service: Local) -> None:
    for _ in range(3 * service.web_settings.max_queue):
        service.post("/decide", D1, {})
    assert service.client.get("/health").json["slots_in_use"] == 0


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/nope", 404), ("GET", "/decide", 405)])
def test_the_route_comes_before_401(service: Local, method: str, path: str, status: int) -> None:
    assert service.client.open(path, method=method).status_code == status


def test_the_token_is_compared_with_compare_digest(service: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []

    def spy(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return real(one, other)

    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", spy)
    service.post("/decide", D1, {"Authorization": "Bearer wrong"})
    assert [sorted(pair) for pair in compared] == [sorted([b"wrong", TOKEN.encode()])]


def test_on_the_jev_routes_a_401_is_also_an_authentication_error(service: Local) -> None:
    for answer in (service.post("/v1/systemone", S1, {}), service.post("/v1/systemone", S1, headers("Bearer wrong"))):
        assert_error(answer, 401, "unauthorized")
        assert answer[1]["detail"]["error_type"] == "authentication_error"
        assert isinstance(answer[1]["detail"]["message"], str)


BAD_TOKENS = {
    "31 characters": "x" * 31,
    "empty": "",
    "a space": "x" * 31 + " ",
    "a tab": "x" * 31 + "\t",
    "DEL": "x" * 31 + "\x7f",
    "a line break": "x" * 32 + "\n",
    "not ASCII": "x" * 31 + "\u00e9",
    "digits of another script": "\u0661" * 32,
}


@pytest.mark.parametrize("token", BAD_TOKENS.values(), ids=BAD_TOKENS)
def test_a_short_or_not_visible_ascii_token_is_refused_at_startup(token: str) -> None:
    with pytest.raises(SettingsError, match=r"^INTERN_DECISION_API_TOKEN ") as refusal:
        WebSettings.from_env({"INTERN_DECISION_API_TOKEN": token})
    assert isinstance(refusal.value, ValueError)
    assert not token or token not in str(refusal.value), "the message shows the secret"


@pytest.mark.parametrize("token", ["x" * 32, "!" * 32, "~" * 64])
def test_a_token_of_32_visible_ascii_characters_is_taken(token: str) -> None:
    assert WebSettings.from_env({"INTERN_DECISION_API_TOKEN": token}).api_token == token


def test_a_missing_token_is_refused_at_startup() -> None:
    with pytest.raises(SettingsError, match="INTERN_DECISION_API_TOKEN"):
        WebSettings.from_env({})


def test_a_bad_token_in_a_file_is_refused_at_startup_too(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for text, good in (("y" * 32 + "\n", True), ("y" * 31, False), ("y" * 32 + "\n\n", False), ("", False)):
        file.write_text(text)
        if good:
            assert WebSettings.from_env({"INTERN_DECISION_API_TOKEN_FILE": str(file)}).api_token == "y" * 32
        else:
            with pytest.raises(SettingsError, match="INTERN_DECISION_API_TOKEN_FILE"):
                WebSettings.from_env({"INTERN_DECISION_API_TOKEN_FILE": str(file)})
