"""Equivalent questions get the same prompt and the same numbers on both routes (wire/decisions.md §6, §8 C1): a hundred
generated requests, on the recording engine and on a model that reads every word."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from scorer.engines.sparrow import SparrowEngine
from tests.contract.helpers import hooked, ordered
from tests.contract.openai_shape import PATH, assert_decision, data, text, user
from tests.harness import Local

REQUESTS = 100
WORDS = ["refund", "late", "parcel", "broken", "angry", "Größe", "환불", "🙂", "{}", "true", "1", "None", "\n", '"']


def words(chance: random.Random, most: int = 8) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(0, most)))


def value(chance: random.Random, depth: int = 0) -> Any:
    """Any JSON."""
    kind = chance.randrange(4 if depth > 2 else 6)
    if kind == 4:
        return [value(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    if kind == 5:
        return {words(chance, 2) + str(i): value(chance, depth + 1) for i in range(chance.randint(0, 3))}
    return [None, chance.random() < 0.5, chance.choice([0, -7, 2.5, 1e20]), words(chance)][kind]


def object_(chance: random.Random) -> dict[str, Any]:
    return {"a": value(chance), "b": value(chance)}


def compact(one: Any) -> str:
    return json.dumps(one, ensure_ascii=False, separators=(",", ":"))


def instructions(chance: random.Random) -> tuple[Any, Any]:
    """The same instructions for OpenAI's route and for Jev's."""
    given = words(chance) + "?"
    if chance.random() < 0.3:
        structured = object_(chance)
        return [data(structured)], structured
    return ([text(given)], given) if chance.random() < 0.3 else (given, given)


def question(chance: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same question for both routes."""
    ours, theirs = instructions(chance)
    kind = chance.choice(["predicate", "choice", "score"])
    if kind == "predicate":
        return {"type": kind, "instructions": ours}, {"type": "noul", "instructions": theirs}
    size = chance.randint(2, 10)
    described = [words(chance) if chance.random() < 0.6 else None for _ in range(size)]
    if kind == "choice":
        names: list[Any] = [f"{words(chance, 2)}{i}" for i in range(size)]
        if chance.random() < 0.3:
            names[:2] = [True, False]
        choices = [
            {"value": name, "description": about} if about is not None else {"value": name}
            for name, about in zip(names, described, strict=True)
        ]
        criteria = {
            (compact(name) if isinstance(name, bool) else name): about
            for name, about in zip(names, described, strict=True)
        }
        return (
            {"type": kind, "instructions": ours, "choices": choices},
            {"type": "choice", "instructions": theirs, "criteria": criteria},
        )
    labels = [words(chance, 2) for _ in range(size)]
    levels = [{"label": label, "description": about} for label, about in zip(labels, described, strict=True)]
    legend = [f"{label}: {about}" if about else label for label, about in zip(labels, described, strict=True)]
    return (
        {"type": kind, "instructions": ours, "levels": levels},
        {"type": "score", "instructions": theirs, "criteria": legend},
    )


def request(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Request ``number`` for both routes."""
    chance = random.Random(number)
    structured = object_(chance)
    given, state = chance.choice(
        [
            (words(chance), None),
            ([user(data(structured))], structured),
            ([user(data([structured, {}]))], [structured, {}]),
            ([user(text("a b"), data(structured)), user("c")], f"a b\n{compact(structured)}\n\nc"),
        ]
    )
    pairs = [question(chance) for _ in range(chance.randint(1, 5))]
    asked = {"model": "m", "input": given, "questions": [one for one, _ in pairs]}
    other = {
        "state": given if state is None else state,
        "questions": {f"id {i}": one for i, (_, one) in enumerate(pairs)},
    }
    return asked, other


def numbers(answer: dict[str, Any]) -> tuple[Any, ...]:
    """What an answer of either route says, in one form."""
    if answer["type"] in ("predicate", "noul"):
        return (answer.get("probability", answer.get("noul")),)
    shares = answer["probabilities"]
    shares = list(shares.values()) if isinstance(shares, dict) else [item["probability"] for item in shares]
    top = answer.get("score", answer.get("choice"))
    return (compact(top) if isinstance(top, bool) else top, answer["confidence"], shares)


@pytest.fixture(scope="module")
def sparrow() -> Iterator[Local]:
    service = Local(SparrowEngine)
    yield service
    service.close()
    idle = service.app.extensions["decision"].scorer._idle
    while idle:
        idle.pop().close()


def both(service: Local, number: int) -> None:
    asked, other = request(number)
    status, answer = service.post(PATH, asked)
    assert status == 200, answer
    assert_decision(answer, asked)
    status, systemone = service.post("/v1/systemone", other)
    assert status == 200, systemone
    assert [numbers(one) for one in answer["answers"]] == [numbers(one) for one in systemone["answers"].values()]
    assert answer["usage"]["input_tokens"] == systemone["usage"]["input_tokens"]
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == systemone["usage"]["x_cached_tokens"]


@pytest.mark.parametrize("number", range(REQUESTS))
def test_both_routes_ask_the_very_same(service: Local, number: int) -> None:
    both(service, number)
    half = len(service.engine.calls) // 2
    assert half >= 1
    for ours, theirs in zip(service.engine.calls[:half], service.engine.calls[half:], strict=True):
        assert ordered(ours) == ordered(theirs)


@pytest.mark.parametrize("number", range(REQUESTS))
def test_both_routes_get_the_same_numbers_from_a_model(sparrow: Local, number: int) -> None:
    both(sparrow, number)


def test_the_generated_requests_are_of_every_kind() -> None:
    asked = [request(number)[0] for number in range(REQUESTS)]
    kinds = {one["type"] for sent in asked for one in sent["questions"]}
    assert kinds == {"predicate", "choice", "score"}
    assert {type(sent["input"]) for sent in asked} == {str, list}
    assert any(
        choice["value"] is True for sent in asked for one in sent["questions"] for choice in one.get("choices", ())
    )
    assert len({json.dumps(sent) for sent in asked}) == REQUESTS


def test_parity_holds_where_the_setting_names_the_profile() -> None:
    with hooked(SYSTEMONE_PROFILE="jev") as service:
        both(service, 7)
