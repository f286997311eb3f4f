"""The arithmetic of the measures, on arrays: intervals, scoring rules, calibration error, curves. Pure.

Every array is one-dimensional with one entry an answer. Where scikit-learn has a measure it could not be used for Brier
and NLL: its functions take one set of classes for all rows (here every row has its own) and warn about probabilities
that a server has rounded; the tests hold these against scikit-learn's on rows where both apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binomtest

__all__ = ["SMALLEST", "Answers", "coverage", "ece", "interval", "quality", "reliability", "selective"]

#: A probability below this counts as this in NLL, as in scikit-learn's log_loss: a server that rounds to zero would
#: otherwise make the mean infinite. How often it happened is reported beside the number.
SMALLEST = float(np.finfo(np.float64).eps)
#: Points of a coverage curve that are kept.
_CURVE_POINTS = 101


@dataclass(frozen=True)
class Answers:
    """The numbers of labelled answers: the largest probability, the probability of the expected label, the Brier term
    (Σ_k (p_k - 1[k = y])², not divided by K; 0..2), and whether the decision was right."""

    top: np.ndarray[Any, Any]
    expected: np.ndarray[Any, Any]
    brier: np.ndarray[Any, Any]
    correct: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.top)

    def pick(self, which: np.ndarray[Any, Any]) -> Answers:
        """Those at the positions ``which``."""
        return Answers(self.top[which], self.expected[which], self.brier[which], self.correct[which])


def interval(count: int, n: int) -> tuple[float | None, float | None]:
    """Wilson's 95 % interval of ``count`` of ``n``; (None, None) of nothing."""
    if n == 0:
        return None, None
    found = binomtest(count, n).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def _bins(top: np.ndarray[Any, Any], bins: int) -> np.ndarray[Any, Any]:
    """The bin of each probability: (k/bins, (k+1)/bins], and the lowest includes 0."""
    # Edges by division: 7/10 is the double 0.7, while numpy.linspace's eighth edge is the one above it.
    return np.searchsorted(np.arange(1, bins) / bins, top, side="left")


def ece(answers: Answers, bins: int) -> float | None:
    """Expected calibration error: Σ_b n_b/n · |accuracy - mean largest probability|, equal-width bins; 0..1."""
    if not len(answers):
        return None
    gap = np.bincount(_bins(answers.top, bins), weights=answers.correct - answers.top, minlength=bins)
    return float(np.abs(gap).sum() / len(answers))


def quality(answers: Answers) -> dict[str, Any]:
    """Accuracy with its interval, mean largest probability, Brier, NLL (nats), ECE with 10 and 15 bins; None where
    there is no answer."""
    n, right = len(answers), int(answers.correct.sum())
    low, high = interval(right, n)
    return {
        "n": n,
        "correct": right,
        "accuracy": right / n if n else None,
        "low": low,
        "high": high,
        "mean_confidence": float(answers.top.mean()) if n else None,
        "brier": float(answers.brier.mean()) if n else None,
        "nll": float(-np.log(np.maximum(answers.expected, SMALLEST)).mean()) if n else None,
        "nll_clipped": int((answers.expected < SMALLEST).sum()),
        "ece_10": ece(answers, 10),
        "ece_15": ece(answers, 15),
    }


def reliability(answers: Answers, bins: int = 10) -> list[dict[str, Any]]:
    """The reliability curve: for each bin that has answers its edges, count, mean largest probability, and accuracy
    with its interval."""
    where, out = _bins(answers.top, bins), []
    for index in range(bins):
        inside = where == index
        n = int(inside.sum())
        if n:
            right = int(answers.correct[inside].sum())
            low, high = interval(right, n)
            out.append(
                {
                    "from": index / bins,
                    "to": (index + 1) / bins,
                    "n": n,
                    "mean_confidence": float(answers.top[inside].mean()),
                    "accuracy": right / n,
                    "low": low,
                    "high": high,
                }
            )
    return out


def coverage(answers: Answers) -> list[dict[str, float]]:
    """Coverage against accuracy, the surest answers first: at ``threshold`` the answers at least that sure are the
    share ``coverage`` and right at ``accuracy``. Answers that are equally sure come and go together, so the order of
    the rows changes nothing. At most 101 points, evenly spread over coverage."""
    n = len(answers)
    if not n:
        return []
    order = np.argsort(-answers.top, kind="stable")
    top, right = answers.top[order], np.cumsum(answers.correct[order])
    ends = np.flatnonzero(np.append(top[1:] != top[:-1], True))
    if len(ends) > _CURVE_POINTS:
        targets = np.linspace(ends[0], n - 1, _CURVE_POINTS)
        ends = np.unique(ends[np.searchsorted(ends, targets, side="left")])
    return [
        {"threshold": float(top[i]), "coverage": float((i + 1) / n), "accuracy": float(right[i] / (i + 1))}
        for i in ends
    ]


def selective(answers: Answers, thresholds: Sequence[float]) -> list[dict[str, Any]]:
    """Selective accuracy: what is right among the answers whose largest probability is at least each threshold."""
    out = []
    for threshold in thresholds:
        kept = answers.top >= threshold
        n, right = int(kept.sum()), int(answers.correct[kept].sum())
        low, high = interval(right, n)
        out.append(
            {
                "threshold": threshold,
                "n": n,
                "coverage": n / len(answers) if len(answers) else None,
                "accuracy": right / n if n else None,
                "low": low,
                "high": high,
            }
        )
    return out
