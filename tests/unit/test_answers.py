"""INV-1 has one home (shared/answers.py): what the web tier refuses, the harness refuses with the same words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scorer.bench.answers import numbers
from scorer.engines.questions import answer, read_options
from shared.answers import BrokenAnswer, check_answer, is_number, labels_of, shares

CHOICE = {"type": "choice", "criteria": {"z": "Z", "a": "A", "m": "M"}}
NOUL = {"type": "noul", "instructions": "?"}
SCORE = {"type": "score", "criteria": ["low", "mid", "high"]}
WEIGHTS = (0.5, 0.3, 0.2)


def good(question: dict[str, Any]) -> dict[str, Any]:
    size = len(labels_of(question))
    return answer(read_options(question, 255), [weight / sum(WEIGHTS[:size]) for weight in WEIGHTS[:size]])


def refusal(check: Any, *asked: Any) -> str | None:
    try:
        check(*asked)
    except BrokenAnswer as error:
        return str(error)
    return None


@pytest.mark.parametrize("question", [CHOICE, NOUL, SCORE], ids=lambda question: question["type"])
@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda a: a, None),
        (lambda a: {**a, "type": "other"}, "an answer is missing or of another type"),
        (lambda a: None, "an answer is missing or of another type"),
        (lambda a: {**a, "probabilities": {}}, "an answer's options are not exactly those asked"),
        (
            lambda a: {**a, "probabilities": {f"{k}?": p for k, p in a["probabilities"].items()}},
            "an answer's options are not exactly those asked",
        ),
        (
            lambda a: {**a, "probabilities": {**a["probabilities"], min(a["probabilities"]): math.nan}},
            "a probability is not a finite number from 0 to 1",
        ),
        (
            lambda a: {**a, "probabilities": {k: p / 2 for k, p in a["probabilities"].items()}},
            "the probabilities of an answer do not sum to 1",
        ),
        (lambda a: {**a, "confidence": 1.5}, "a confidence is not a finite number from 0 to 1"),
    ],
)
def test_the_service_and_the_harness_refuse_the_same_answers_with_the_same_words(
    question: dict[str, Any], change: Any, rule: str | None
) -> None:
    asked = change(good(question)), question["type"], tuple(labels_of(question))
    assert (refusal(check_answer, *asked), refusal(numbers, *asked)) == (rule, rule)


def test_a_decision_that_is_not_the_most_probable_option_is_refused_alike() -> None:
    broken = {**good(CHOICE), "choice": "m", "decision": "m"}
    found = {refusal(check, broken, "choice", ("z", "a", "m")) for check in (check_answer, numbers)}
    assert found == {"the chosen option is not the most probable one"}


def test_probabilities_come_in_the_order_of_the_labels_with_the_largest() -> None:
    found, top = shares({"a": 0.25, "z": 0.75}, ("z", "a"))
    assert (list(found.items()), top) == ([("z", 0.75), ("a", 0.25)], 0.75)
    assert shares({"only": 1}, ["only"]) == ({"only": 1}, 1)


def test_an_option_that_is_there_without_a_number_is_no_missing_option() -> None:
    with pytest.raises(BrokenAnswer, match="a probability is not"):
        shares({"a": None, "z": 1.0}, ("z", "a"))
    with pytest.raises(BrokenAnswer, match="options"):
        shares({"b": 0.0, "z": 1.0}, ("z", "a"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, None, "1", 10**400])
def test_what_is_no_finite_number_is_none_and_nothing_else_is_raised(value: Any) -> None:
    assert not is_number(value)
    assert refusal(check_answer, {**good(SCORE), "score": value}, "score", ("0", "1", "2")) is not None
    assert refusal(numbers, {**good(SCORE), "score": value}, "score", ("0", "1", "2")) is not None
