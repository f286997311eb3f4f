"""OpenAI's decisions in the engines' terms and back: input and questions to plain ones, answers to OpenAI's. Pure.

Equivalent questions become the very ones that ``/v1/systemone`` asks in the ``jev`` profile, so both routes give the
same numbers (wire/decisions.md §6, C1). Values are looked up by position: to Python ``True`` and ``1`` are one key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shared.jsonio import as_text
from web.assemble import BrokenAnswer
from web.jev import choice_confidence, score_confidence

__all__ = ["label_of", "openai_answer", "openai_usage", "plain_question", "state_of"]

#: As far as a sum of probabilities may stray on the wire: the AI SDK refuses more (wire/decisions.md §4, §9).
_SUM_TOLERANCE = 1e-6


def state_of(given: str | Sequence[Mapping[str, Any]]) -> Any:
    """The state of a validated ``input``: a string as it is; messages as text, parts joined by a line break, messages
    by an empty line, JSON compact.

    A lone ``input_json`` part is the object itself, as a state of ``/v1/systemone``: engines that read text write it
    compactly, and the one that has a form of its own for objects gives both routes the same numbers.
    """
    if isinstance(given, str):
        return given
    if len(given) == 1:
        content = given[0]["content"]
        if len(content) == 1 and not isinstance(content, str) and content[0]["type"] == "input_json":
            return content[0]["data"]
    return "\n\n".join(_text(message["content"]) for message in given)


def plain_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """A validated question as an engine takes it, in the form of :func:`web.jev.plain_question`. Names stay here."""
    instructions = _text(question["instructions"])
    if question["type"] == "predicate":
        return {"type": "noul", "instructions": instructions}
    if question["type"] == "choice":
        criteria = {label_of(one["value"]): as_text(one.get("description")) for one in question["choices"]}
        return {"type": "choice", "instructions": instructions, "criteria": criteria}
    return {"type": "score", "instructions": instructions, "criteria": [_level(one) for one in question["levels"]]}


def label_of(value: str | bool) -> str:
    """A choice's value as the model reads it: a string as it is, a boolean as JSON writes it."""
    return value if isinstance(value, str) else as_text(value)


def openai_answer(question: Mapping[str, Any], native: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's answer (wire/decisions.md §4) from the engine's, which :func:`web.assemble.check_answer` has passed.

    The engine's numbers pass untouched, except where a sum strays from 1 by more than 1e-6 (up to 1e-3 is an engine's
    to stray): then they are divided by it, since clients refuse such a sum. Raises BrokenAnswer for a score that is
    not the mean of its levels.
    """
    kind, name = question["type"], question.get("name")
    if kind == "predicate":
        return {"type": kind, "name": name, "probability": native["noul"]}
    by_label = native["probabilities"]
    if kind == "choice":
        values = [one["value"] for one in question["choices"]]
        labels = [label_of(value) for value in values]
        shares = [by_label[label] for label in labels]
        return {
            "type": kind,
            "name": name,
            "choice": values[labels.index(native["choice"])],
            "confidence": choice_confidence(shares),
            "probabilities": [
                {"value": value, "probability": p} for value, p in zip(values, _summing_to_1(shares), strict=True)
            ],
        }
    shares = [by_label[str(index)] for index in range(len(question["levels"]))]
    summing = _summing_to_1(shares)
    return {
        "type": kind,
        "name": name,
        "score": _score(native["score"], shares, summing),
        "confidence": score_confidence(shares),
        "probabilities": [
            {"value": index, "label": level["label"], "probability": p}
            for index, (level, p) in enumerate(zip(question["levels"], summing, strict=True))
        ],
    }


def openai_usage(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The six counts. Every prompt counts in full, once a read; no engine says what it wrote to a cache, and none
    writes text."""
    read = sum(call["input_tokens"] for call in calls)
    cached = sum(call["cached_tokens"] for call in calls)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read,
    }


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "input_text" else as_text(part["data"]) for part in content)


def _level(level: Mapping[str, Any]) -> str:
    description = level.get("description")
    return f"{level['label']}: {description}" if description else str(level["label"])


def _summing_to_1(shares: Sequence[float]) -> Sequence[float]:
    total = math.fsum(shares)
    return shares if abs(total - 1.0) <= _SUM_TOLERANCE else [share / total for share in shares]


def _score(score: float, shares: Sequence[float], summing: Sequence[float]) -> float:
    """The engine's score, or, where its shares had to be divided, the mean that follows; within the levels."""
    if abs(score - _mean(shares)) > _SUM_TOLERANCE:
        raise BrokenAnswer("a score is not the mean of its levels")
    return min(score if summing is shares else _mean(summing), len(shares) - 1.0)


def _mean(shares: Sequence[float]) -> float:
    return math.fsum(index * share for index, share in enumerate(shares))
