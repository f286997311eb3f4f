"""The ``jev`` profile's rules: questions made plain before the engine sees them, answers in Jev's own terms. Pure.

Numbers of the sections are wire/systemone.md's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shared.jsonio import as_text

__all__ = ["choice_confidence", "jev_answer", "plain_question", "score_confidence"]


#: Diagnostics of the ``labels`` engine (wire/decisions.md S7).
_DIAGNOSTICS = ("label_mass", "argmax_is_label")


def plain_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """A validated Jev question as an engine takes it: every text a string (§10 row 15), a null text empty (row 14), the
    sides of a noul that say nothing left out (row 13). Never the words ``None`` or a Python repr."""
    kind = question["type"]
    criteria: Any = question.get("criteria")
    plain: dict[str, Any] = {"type": kind, "instructions": as_text(question.get("instructions"))}
    if kind == "noul":
        sides = {
            side: as_text(criteria[side]) for side in ("true", "false") if criteria and criteria.get(side) is not None
        }
        if sides:
            plain["criteria"] = sides
    elif kind == "choice":
        plain["criteria"] = {name: as_text(description) for name, description in criteria.items()}
    else:
        plain["criteria"] = [as_text(level) for level in criteria]
    return plain


def jev_answer(question: Mapping[str, Any], native: Mapping[str, Any]) -> dict[str, Any]:
    """The answer object of §3 for a question as the caller sent it; the engine's object rides along as ``x_native``."""
    kind = question["type"]
    probabilities = native["probabilities"]
    out: dict[str, Any] = {"type": kind}
    if kind == "noul":
        out["noul"] = native["noul"]
    elif kind == "choice":
        in_order = {name: probabilities[name] for name in question["criteria"]}
        out.update(
            choice=native["choice"], confidence=choice_confidence(list(in_order.values())), probabilities=in_order
        )
    else:
        levels = question["criteria"]
        in_order = {str(i): probabilities[str(i)] for i in range(len(levels))}
        out.update(
            score=native["score"],
            confidence=score_confidence(list(in_order.values())),
            legend={str(i): level for i, level in enumerate(levels)},
            probabilities=in_order,
        )
    # What an engine tells about its own read of the question, whole and, the usual parts, in sight.
    out.update({f"x_{name}": native[name] for name in _DIAGNOSTICS if name in native}, x_native=native)
    return out


def choice_confidence(probabilities: Sequence[float]) -> float:
    """``(n·max − 1)/(n − 1)`` of the normalised probabilities, within [0, 1]; 1 for a single option (§3)."""
    p = _normalised(probabilities)
    n = len(p)
    return 1.0 if n == 1 else min(1.0, max(0.0, (n * max(p) - 1.0) / (n - 1)))


def score_confidence(probabilities: Sequence[float]) -> float:
    """``max(0, 1 − Σ p_i·|i − k| / D)``: k the most probable level (lowest on a tie), D the mean distance from the
    middle (§3); 1 for a single level."""
    p = _normalised(probabilities)
    n = len(p)
    if n == 1:
        return 1.0
    k = p.index(max(p))
    # The distances of 0 to n - 1 from their middle add up to n²/4, for an odd n to (n² - 1)/4.
    spread = (n * n // 4) / n
    return min(1.0, max(0.0, 1.0 - math.fsum([share * abs(i - k) for i, share in enumerate(p)]) / spread))


def _normalised(probabilities: Sequence[float]) -> list[float]:
    total = math.fsum(probabilities)
    return [p / total for p in probabilities] if total else [1.0 / len(probabilities)] * len(probabilities)
