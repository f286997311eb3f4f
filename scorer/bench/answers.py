"""What an engine or a server said, checked (INV-1, :mod:`shared.answers`) and read into the numbers of a record.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from shared.answers import BrokenAnswer, check_decision, check_share, is_number, shares

__all__ = ["Numbers", "numbers"]


class Numbers(NamedTuple):
    """``probabilities`` in the order of the row's labels, ``top`` the largest; ``score`` of score questions only."""

    probabilities: dict[str, float]
    decision: str
    score: float | None
    confidence: float
    top: float


def numbers(answer: Any, kind: str, labels: Sequence[str]) -> Numbers:
    """Read one answer object: the engine's own (engine/intern-decision.md §1.8), the ``jev`` profile's, which carries
    it as ``x_native``, or a plain Jev answer, whose noul is one number (wire/systemone.md §3). Raises
    :class:`shared.answers.BrokenAnswer`.

    ``decision`` is the engine's; where the answer has none it is the most probable label, the smaller one as a string
    on a tie, as in the pinned file. ``confidence`` is the engine's, else the largest probability.
    """
    if not isinstance(answer, dict) or answer.get("type") != kind:
        raise BrokenAnswer("an answer is missing or of another type")
    native = answer.get("x_native", answer)
    if not isinstance(native, dict):
        raise BrokenAnswer("an answer's x_native is no object")
    given = native.get("probabilities")
    if given is None and kind == "noul":
        yes: Any = answer.get("noul")
        check_share(yes, "noul")
        given = {"no": 1.0 - yes, "yes": yes}
    probabilities, top = shares(given, labels)
    own = native.get("decision")
    decision = native.get("choice") if own is None else own
    if decision is None:
        decision = min(label for label, p in probabilities.items() if p == top)
    else:
        check_decision(decision, probabilities, top)
    # A plain Jev answer's confidence follows another formula (wire/systemone.md §3).
    confidence = native.get("confidence") if own is not None or native is not answer else None
    if confidence is None:
        confidence = top
    else:
        check_share(confidence, "confidence")
    score = None
    if kind == "score":
        told: Any = native.get("score")
        if not is_number(told):
            raise BrokenAnswer("a score is not a finite number")
        score = float(told)
    return Numbers(probabilities, decision, score, confidence, top)
