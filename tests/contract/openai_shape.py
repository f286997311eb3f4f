"""What the tests of ``POST /v1/decisions`` share: bodies, and OpenAI's shapes (wire/decisions.md §4, §5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.harness import Local

PATH = "/v1/decisions"
P: dict[str, Any] = {"type": "predicate", "instructions": "Urgent?"}
#: trouble.md's good body.
O1: dict[str, Any] = {
    "model": "m",
    "input": "Payouts failed.",
    "questions": [
        {
            "type": "choice",
            "name": "team",
            "instructions": "Which team?",
            "choices": [
                {"value": "billing", "description": "Payments"},
                {"value": "tech", "description": "Bugs"},
            ],
        },
        {"type": "predicate", "name": "urgent", "instructions": "Urgent?"},
    ],
}


def body(*questions: Any, given: Any = "x", **more: Any) -> dict[str, Any]:
    """A body that asks these questions, or one predicate, about ``given``."""
    return {"model": "m", "input": given, "questions": list(questions or (P,)), **more}


def choice(*values: Any, **more: Any) -> dict[str, Any]:
    """A choice question; a value that is a dict is the whole choice."""
    choices = [value if isinstance(value, dict) else {"value": value} for value in values]
    return {"type": "choice", "instructions": "Which?", "choices": choices, **more}


def score(*labels: Any, **more: Any) -> dict[str, Any]:
    """A score question; a label that is a dict is the whole level."""
    levels = [label if isinstance(label, dict) else {"label": label} for label in labels]
    return {"type": "score", "instructions": "How?", "levels": levels, **more}


def user(*parts: Any) -> dict[str, Any]:
    """A user message: of one string, or of these parts."""
    return {"role": "user", "content": parts[0] if len(parts) == 1 and isinstance(parts[0], str) else list(parts)}


def text(value: Any, **more: Any) -> dict[str, Any]:
    """A text part."""
    return {"type": "input_text", "text": value, **more}


def data(value: Any) -> dict[str, Any]:
    """A JSON part."""
    return {"type": "input_json", "data": value}


def answered(service: Local, *questions: Any, given: Any = "x", **more: Any) -> list[dict[str, Any]]:
    """The answers to a request that must be answered, in OpenAI's shape."""
    sent = body(*questions, given=given, **more)
    status, answer = service.post(PATH, sent)
    assert status == 200, answer
    assert_decision(answer, sent)
    return list(answer["answers"])


def assert_error(answer: tuple[int, Any], status: int, code: str | None, param: str | None = None) -> str:
    """OpenAI's error body: four keys, and no others; returns the message."""
    found, parsed = answer
    assert found == status, parsed
    assert set(parsed) == {"error"}
    error = parsed["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    kinds = {429: "rate_limit_error"}
    expected = "server_error" if status >= 500 else kinds.get(status, "invalid_request_error")
    assert error["type"] == expected
    assert isinstance(error["message"], str)
    assert error["message"]
    return str(error["message"])


def assert_refused(service: Local, sent: Any, param: str | None, code: str = "invalid_value") -> str:
    """400 that names the parameter, and nothing scored; returns the message."""
    met = service.engine.prepared
    message = assert_error(service.post(PATH, sent), 400, code, param)
    assert service.engine.prepared == met, "a refused request reached the engine"
    return message


def assert_decision(answer: Any, sent: Mapping[str, Any]) -> None:
    """The success body: exactly OpenAI's keys, an answer a question in order, and numbers that hang together."""
    assert list(answer) == ["model", "answers", "usage"]
    assert isinstance(answer["model"], str)
    assert answer["model"]
    assert_usage(answer["usage"])
    assert len(answer["answers"]) == len(sent["questions"])
    for question, one in zip(sent["questions"], answer["answers"], strict=True):
        assert one["type"] == question["type"]
        assert one["name"] == question.get("name")
        if one["type"] == "predicate":
            assert set(one) == {"type", "name", "probability"}
            assert_shares([one["probability"]])
        elif one["type"] == "choice":
            assert_choice(one, question)
        else:
            assert_score(one, question)


def assert_choice(one: Mapping[str, Any], question: Mapping[str, Any]) -> None:
    """A choice's answer over its question's own typed values, in their order."""
    assert set(one) == {"type", "name", "choice", "confidence", "probabilities"}
    assert all(set(item) == {"value", "probability"} for item in one["probabilities"])
    values = [(type(item["value"]), item["value"]) for item in one["probabilities"]]
    assert values == [(type(item["value"]), item["value"]) for item in question["choices"]]
    shares = [item["probability"] for item in one["probabilities"]]
    assert_shares(shares)
    assert math.fsum(shares) == pytest.approx(1.0, abs=1e-6)
    top = values.index((type(one["choice"]), one["choice"]))
    assert shares[top] == max(shares)
    assert one["confidence"] == pytest.approx((max(shares) - 1 / len(shares)) / (1 - 1 / len(shares)), abs=1e-6)
    assert 0 <= one["confidence"] <= 1


def assert_score(one: Mapping[str, Any], question: Mapping[str, Any]) -> None:
    """A score's answer over its question's levels, in their order."""
    assert set(one) == {"type", "name", "score", "confidence", "probabilities"}
    assert all(set(item) == {"value", "label", "probability"} for item in one["probabilities"])
    assert [item["value"] for item in one["probabilities"]] == list(range(len(question["levels"])))
    assert all(type(item["value"]) is int for item in one["probabilities"])
    assert [item["label"] for item in one["probabilities"]] == [level["label"] for level in question["levels"]]
    shares = [item["probability"] for item in one["probabilities"]]
    assert_shares(shares)
    assert math.fsum(shares) == pytest.approx(1.0, abs=1e-6)
    n = len(shares)
    assert one["score"] == pytest.approx(sum(i * p for i, p in enumerate(shares)), abs=1e-6)
    assert 0 <= one["score"] <= n - 1
    mode, unit = shares.index(max(shares)), sum(abs(i - (n - 1) / 2) for i in range(n)) / n
    distance = sum(p * abs(i - mode) for i, p in enumerate(shares))
    assert one["confidence"] == pytest.approx(max(0.0, 1 - distance / unit), abs=1e-6)


def assert_shares(shares: Sequence[Any]) -> None:
    """Finite numbers within [0, 1], none of them a boolean."""
    assert all(type(p) in (int, float) and 0 <= p <= 1 for p in shares)


def assert_usage(usage: Any) -> None:
    """All six counts, as whole numbers."""
    assert set(usage) == {
        "input_tokens",
        "input_tokens_details",
        "output_tokens",
        "output_tokens_details",
        "total_tokens",
    }
    assert set(usage["input_tokens_details"]) == {"cached_tokens", "cache_write_tokens"}
    assert set(usage["output_tokens_details"]) == {"reasoning_tokens"}
    counts = [usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]]
    counts += [*usage["input_tokens_details"].values(), *usage["output_tokens_details"].values()]
    assert all(type(count) is int and count >= 0 for count in counts)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
