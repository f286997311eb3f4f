"""Question rules that every engine without a validator of its own shares: types, labels, descriptions. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shared.jsonio import as_text

__all__ = ["Options", "answer", "check_questions", "read_options"]

#: A JSON object. dict is named for speed: of the abstract class alone, isinstance takes ten times as long.
_OBJECT = (dict, Mapping)
NOUL_LABELS = ("no", "yes")
#: Levels beyond it could overflow their own expectation.
_GREATEST_LEVEL = 1e300


class Options(NamedTuple):
    """One question's options: labels as they appear in ``probabilities``, in the caller's order (``no``, ``yes`` for a
    noul), and the description of each (None where there is none)."""

    type: str
    labels: tuple[str, ...]
    descriptions: tuple[Any, ...]


def check_questions(questions: Any, most: int) -> None:
    """Raise ValueError unless ``questions`` is an object of 1 to ``most`` questions with nonempty names."""
    if not isinstance(questions, _OBJECT) or not 1 <= len(questions) <= most:
        raise ValueError(f"Supply 1 to {most} questions.")
    if not all(isinstance(name, str) and name for name in questions):
        raise ValueError("Question names must be nonempty strings.")


def read_options(question: Any, most: int) -> Options:
    """The options of one question, checked as the pinned Intern-Decision file checks them
    (engine/intern-decision.md §1.4, §1.5), with ``most`` options or levels. Raises ValueError."""
    kind = criteria = None
    if isinstance(question, _OBJECT):
        kind, criteria = question.get("type"), question.get("criteria")
    if kind == "noul":
        return _noul(criteria)
    if kind == "choice":
        if not isinstance(criteria, _OBJECT):
            raise ValueError("Choice criteria must be an object.")
        labels, descriptions = tuple(map(str, criteria)), tuple(criteria.values())
    elif kind == "score":
        labels, descriptions = _levels(criteria)
    else:
        raise ValueError("Question type must be choice, score, or noul.")
    if not 1 <= len(labels) <= most:
        raise ValueError(f"Supply 1 to {most} options.")
    return Options(kind, labels, descriptions)


def _noul(criteria: Any) -> Options:
    sides: dict[str, Any] = {"no": None, "yes": None}
    if isinstance(criteria, _OBJECT):
        for key, value in criteria.items():
            name = key.lower()
            side = "yes" if name in ("yes", "true", "1") else "no" if name in ("no", "false", "0") else None
            if side and sides[side] is None:
                sides[side] = value
    return Options("noul", NOUL_LABELS, (sides["no"], sides["yes"]))


def _levels(criteria: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    if isinstance(criteria, list):
        return tuple(map(str, range(len(criteria)))), tuple(criteria)
    if not isinstance(criteria, _OBJECT):
        raise ValueError("Score criteria must be a list or object.")
    for key in criteria:
        try:
            finite = abs(float(key)) < _GREATEST_LEVEL  # false for nan as well
        except ValueError:
            finite = False
        if not finite:
            raise ValueError("Score option keys must be finite numbers.")
    return tuple(map(str, criteria)), tuple(criteria.values())


def answer(options: Options, probabilities: Sequence[float]) -> dict[str, Any]:
    """The answer object of engine/intern-decision.md §1.8 for one question.

    ``probabilities`` follow ``options.labels`` and sum to 1; ``confidence`` is the largest; an exact tie goes to the
    smaller label as a string, as in the pinned file.
    """
    by_label = dict(zip(options.labels, probabilities, strict=True))
    top = max(probabilities)
    decision = min(label for label, probability in by_label.items() if probability == top)
    out: dict[str, Any] = {"type": options.type, "probabilities": by_label, "confidence": top}
    if options.type == "choice":
        out["choice"] = decision
    elif options.type == "score":
        out["score"] = math.fsum([float(label) * p for label, p in by_label.items()])
        # Text, as the pinned file writes it; the official SDK cannot read a null.
        out["legend"] = dict(zip(options.labels, map(as_text, options.descriptions), strict=True))
    else:
        out["noul"] = by_label["yes"]
    out["source"] = "local"
    out["decision"] = decision
    return out
