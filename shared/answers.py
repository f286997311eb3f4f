"""INV-1: an engine's answer is whole, finite and consistent, or nobody may pass it on. Pure.

The one home of these checks. The web tier makes them before it answers, the offline harness before it writes; both name
the rule that was broken in the same words.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

__all__ = ["BrokenAnswer", "check_answer", "check_decision", "check_share", "is_number", "labels_of", "shares"]

#: As far as the checkpoint's own guard lets a sum stray (engine/intern-decision.md §1.7).
_SUM_TOLERANCE = 1e-3


class BrokenAnswer(Exception):
    """The engine's answer is incomplete, not finite, or contradicts itself. The message names the rule, no caller
    text."""


def labels_of(question: Mapping[str, Any]) -> list[str]:
    """The labels that an answer's ``probabilities`` must have, for a question as it went to the engine."""
    kind, criteria = question["type"], question.get("criteria")
    if kind == "noul":
        return ["no", "yes"]
    if kind == "score" and isinstance(criteria, list):
        return [str(level) for level in range(len(criteria))]
    return list(criteria or ())


def check_answer(answer: Any, kind: str, labels: Sequence[str]) -> None:
    """Check one answer object of engine/intern-decision.md §1.8: of the type asked, :func:`shares`, a confidence, and
    what its type adds: the choice one of the most probable, a noul from 0 to 1, a finite score with a legend. Raises
    BrokenAnswer."""
    if not isinstance(answer, (dict, Mapping)) or answer.get("type") != kind:
        raise BrokenAnswer("an answer is missing or of another type")
    probabilities, top = shares(answer.get("probabilities"), labels)
    check_share(answer.get("confidence"), "confidence")
    if kind == "choice":
        check_decision(answer.get("choice"), probabilities, top)
    elif kind == "noul":
        check_share(answer.get("noul"), "noul")
    elif not is_number(answer.get("score")) or not isinstance(answer.get("legend"), (dict, Mapping)):
        raise BrokenAnswer("a score is not a finite number, or has no legend")


def shares(given: Any, labels: Sequence[str]) -> tuple[dict[str, float], float]:
    """The probabilities in the order of ``labels``, and the largest: exactly the labels asked, each a finite number in
    [0, 1], their sum 1 within 1e-3. Raises BrokenAnswer."""
    # dict is named for speed: of an abstract class alone, isinstance takes as long as an option does.
    if not isinstance(given, (dict, Mapping)) or len(given) != len(labels):
        raise BrokenAnswer("an answer's options are not exactly those asked")
    probabilities: dict[str, float] = {}
    total = top = 0.0
    for label in labels:
        p = given.get(label)
        # A NaN is in no range, and a bool is an int to isinstance.
        if (type(p) is not float and type(p) is not int) or not 0.0 <= p <= 1.0:
            if label not in given:
                raise BrokenAnswer("an answer's options are not exactly those asked")
            raise BrokenAnswer("a probability is not a finite number from 0 to 1")
        probabilities[label] = p
        total += p
        if p > top:
            top = p
    # At most 255 terms: what plain addition loses is nothing beside the tolerance.
    if not -_SUM_TOLERANCE <= total - 1.0 <= _SUM_TOLERANCE:
        raise BrokenAnswer("the probabilities of an answer do not sum to 1")
    return probabilities, top


def check_decision(decision: Any, probabilities: Mapping[str, float], top: float) -> None:
    """The option that was chosen has the largest probability, ``top``. Raises BrokenAnswer."""
    if not isinstance(decision, str) or probabilities.get(decision) != top:
        raise BrokenAnswer("the chosen option is not the most probable one")


def check_share(value: Any, what: str) -> None:
    """``value`` is a finite number from 0 to 1; ``what`` names it in the refusal. Raises BrokenAnswer."""
    if (type(value) is not float and type(value) is not int) or not 0.0 <= value <= 1.0:
        raise BrokenAnswer(f"a {what} is not a finite number from 0 to 1")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether ``value`` is a finite number, and no bool."""
    # By comparison: math.isfinite raises on a whole number that no float can hold.
    return type(value) in (float, int) and -sys.float_info.max <= value <= sys.float_info.max
