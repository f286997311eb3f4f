"""What an engine or a server said, checked and read into the numbers of a record. Pure.

The checks are INV-1's, as the web tier makes them before it answers (it may not be imported here): exactly the options
asked, each probability finite and in [0, 1], their sum 1, the decision one of the most probable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

__all__ = ["BrokenAnswer", "Numbers", "numbers"]

#: As far as the checkpoint's own guard lets a sum stray (engine/intern-decision.md §1.7).
_SUM_TOLERANCE = 1e-3


class BrokenAnswer(ValueError):
    """An answer is missing, incomplete, not finite, or contradicts itself. The message names the rule."""


class Numbers(NamedTuple):
    """``probabilities`` in the order of the row's labels; ``score`` of score questions only."""

    probabilities: dict[str, float]
    decision: str
    score: float | None
    confidence: float


def numbers(answer: Any, kind: str, labels: Sequence[str]) -> Numbers:
    """Read one answer object: the engine's own (engine/intern-decision.md §1.8), the ``jev`` profile's, which carries
    it as ``x_native``, or a plain Jev answer, whose noul is one number (wire/systemone.md §3). Raises BrokenAnswer.

    ``decision`` is the engine's; where the answer has none it is the most probable label, the smaller one as a string
    on a tie, as in the pinned file. ``confidence`` is the engine's, else the largest probability.
    """
    if not isinstance(answer, dict) or answer.get("type") != kind:
        raise BrokenAnswer("the answer is missing or of another type")
    native = answer.get("x_native", answer)
    if not isinstance(native, dict):
        raise BrokenAnswer("the answer's x_native is no object")
    plain = native is answer and "decision" not in native
    given = native.get("probabilities")
    if given is None and kind == "noul":
        yes = answer.get("noul")
        if not _is_share(yes):
            raise BrokenAnswer("a noul is not a finite number from 0 to 1")
        given = {"no": 1.0 - yes, "yes": yes}
    if not isinstance(given, dict) or len(given) != len(labels):
        raise BrokenAnswer("the answer's options are not exactly those asked")
    probabilities: dict[str, float] = {}
    total = 0.0
    for label in labels:
        p = given.get(label)
        if p is None and label not in given:
            raise BrokenAnswer("the answer's options are not exactly those asked")
        if not _is_share(p):
            raise BrokenAnswer("a probability is not a finite number from 0 to 1")
        probabilities[label] = p
        total += p
    if abs(total - 1.0) > _SUM_TOLERANCE:
        raise BrokenAnswer("the probabilities of the answer do not sum to 1")
    top = max(probabilities.values())
    decision = native.get("decision", native.get("choice"))
    if decision is None:
        decision = min(label for label, p in probabilities.items() if p == top)
    if not isinstance(decision, str) or probabilities.get(decision) != top:
        raise BrokenAnswer("the decision is not the most probable option")
    confidence = None if plain else native.get("confidence")
    if confidence is None:
        confidence = top
    elif not _is_share(confidence):
        raise BrokenAnswer("a confidence is not a finite number from 0 to 1")
    score: float | None = None
    if kind == "score":
        told: Any = native.get("score")
        if isinstance(told, bool) or not isinstance(told, (int, float)) or not math.isfinite(told):
            raise BrokenAnswer("a score is not a finite number")
        score = float(told)
    return Numbers(probabilities, decision, score, confidence)


def _is_share(value: Any) -> TypeGuard[float]:
    # A NaN is in no range, and a bool is an int to isinstance.
    return type(value) in (float, int) and 0.0 <= value <= 1.0
