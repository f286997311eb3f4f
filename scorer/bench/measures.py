"""What a run's records say, as one JSON-able object. Pure; holds of each answer what :mod:`scorer.bench.columns` holds.

Accuracy and everything that is built on it count an answer once: ordering 0, which is how the row puts the question.
Further orderings of it are not independent, and serve the measure of order alone. An answer is right when the engine's
decision is the expected label (engine/intern-decision.md §4); how sure it was is its largest probability, never its
``confidence``, which follows another formula on some surfaces.
"""

from __future__ import annotations

import bisect
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import confusion_matrix

from scorer.bench import numbers, stability
from scorer.bench.columns import Columns, Keys, MeasureError
from scorer.bench.folder import Records
from scorer.bench.numbers import Answers
from scorer.bench.records import Record

__all__ = ["NO_FAMILY", "THRESHOLDS", "MeasureError", "Measured", "measure", "summarise"]

#: Thresholds of selective accuracy where none are asked.
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
#: The name of the group of rows without a family.
NO_FAMILY = "(none)"
#: A sum of probabilities further than this from 1 is counted (engine/intern-decision.md §4).
_SUM_TOLERANCE = 0.02
_CONFUSION_LABELS = 20
_OTHER = "(other)"
_WORST = 10
#: Place in a group of scorer.bench.columns by name.
_GROUPINGS = {"type": 0, "family": 1, "options": 2, "file": 3}


class Measured(NamedTuple):
    """``metrics`` is JSON-able; ``times`` has the milliseconds of every call, the engine's own and the whole."""

    metrics: dict[str, Any]
    times: dict[str, np.ndarray[Any, Any]]


def summarise(records: Records, thresholds: Sequence[float] = THRESHOLDS) -> dict[str, Any]:
    """The metrics of :func:`measure`."""
    return measure(records, thresholds).metrics


def measure(records: Records, thresholds: Sequence[float] = THRESHOLDS) -> Measured:
    """All measures of a run.

    ``records`` in the order in which they came; they are walked again where prompts or questions were asked again.
    ``thresholds`` are those of selective accuracy, 0..1. A measure without any answer is None. Times are milliseconds.
    Raises :class:`MeasureError` where two records have one key, or an expected label is none of the options.
    """
    keys, columns, tally = Keys(), Columns(), _Tally()
    for record in records:
        keys.add(record)
        columns.add(record)
        tally.add(record)
    keys.check(records)
    answers, own = columns.answers(), len(columns.own)
    calls = columns.calls()
    metrics = {
        "records": len(columns),
        "questions": columns.questions,
        "labelled": len(answers),
        "unlabelled": own - len(answers),
        "reordered": len(columns) - own,
        **numbers.quality(answers),
        "score_mae": tally.score_error(),
        "by": {name: _grouped(columns, answers, place) for name, place in _GROUPINGS.items()},
        "reliability": numbers.reliability(answers),
        "coverage": numbers.coverage(answers),
        "selective": numbers.selective(answers, thresholds),
        "order": stability.order_sensitivity(records if len(columns) > own else ()),
        "repeats": stability.repeats(records, columns.repeated()),
        "drift": stability.drift(columns),
        "latency": _latency(calls, len(columns)),
        "confusion": tally.confusion(),
        "confident_errors": tally.errors,
        "checks": tally.checks,
    }
    return Measured(metrics, {"engine": calls["inference_ms"], "whole": calls["total_ms"]})


class _Tally:
    """What is counted record by record; grows with the labels and families, not with the answers."""

    def __init__(self) -> None:
        self.checks: dict[str, Any] = {"decision_not_largest": 0, "sum_off": 0, "largest_sum_gap": None}
        self._wrong: list[tuple[Any, Record]] = []
        self._pairs: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
        self._scores = [0, 0]
        self._score_error = 0.0

    def add(self, record: Record) -> None:
        """Count one."""
        top, gap = max(record.probabilities.values()), abs(sum(record.probabilities.values()) - 1.0)
        # What no sound engine does.
        self.checks["decision_not_largest"] += record.probabilities[record.decision] < top
        self.checks["sum_off"] += gap > _SUM_TOLERANCE
        self.checks["largest_sum_gap"] = max(gap, self.checks["largest_sum_gap"] or 0.0)
        if record.ordering or record.expected is None:
            return
        family = NO_FAMILY if record.family is None else record.family
        self._pairs[family][record.expected, record.decision] += 1
        if record.type == "score":
            self._scores[record.score is None] += 1
            if record.score is not None:
                self._score_error += abs(float(record.expected) - record.score)
        if not record.correct:
            sure = (-record.probabilities[record.decision], record.key)
            bisect.insort(self._wrong, (sure, record), key=lambda found: found[0])
            del self._wrong[_WORST:]

    def score_error(self) -> dict[str, Any]:
        """Mean absolute error of the expected level of score questions, in levels; those without a score are
        counted."""
        n, without = self._scores
        return {"n": n, "mae": self._score_error / n if n else None, "without_score": without}

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The wrong answers that were surest, ids and labels only."""
        return [
            {
                "file": record.file,
                "row": record.row,
                "field": record.field,
                "expected": record.expected,
                "decision": record.decision,
                "probability": record.probabilities[record.decision],
            }
            for _, record in self._wrong
        ]

    def confusion(self) -> dict[str, Any] | None:
        """Expected label by decision for the family with the most labelled rows; labels beyond the 20 most used are
        one."""
        if not self._pairs:
            return None
        family = min(self._pairs, key=lambda name: (-self._pairs[name].total(), name))
        pairs = self._pairs[family]
        used: Counter[str] = Counter()
        for pair, count in pairs.items():
            for label in pair:
                used[label] += count
        ranked = sorted(used, key=lambda label: (-used[label], label))
        kept = set(ranked[:_CONFUSION_LABELS])
        labels = sorted(kept) + [_OTHER] * (len(ranked) > len(kept))
        # By position: a caller may have a label that is called as our name for the rest.
        place = {label: labels.index(label) for label in kept}
        expected, decision = ([place.get(label, len(kept)) for label in side] for side in zip(*pairs, strict=True))
        with warnings.catch_warnings():
            # scikit-learn warns of one label, and of about as many labels as rows; both are right here.
            warnings.simplefilter("ignore")
            matrix = confusion_matrix(
                expected, decision, labels=range(len(labels)), sample_weight=list(pairs.values())
            ).astype(int)
        return {"family": family, "n": pairs.total(), "labels": labels, "matrix": matrix.tolist()}


def _grouped(columns: Columns, answers: Answers, place: int) -> dict[str, Any]:
    numbered, names = columns.groups(place)
    own = numbered[columns.labelled]
    found = {
        NO_FAMILY if name is None else str(name): numbers.quality(answers.pick(np.flatnonzero(own == number)))
        for number, name in enumerate(names)
        if (own == number).any()
    }
    # Option counts are numbers written as text: 2 before 10.
    return {name: found[name] for name in sorted(found, key=lambda n: (int(n) if n.isdecimal() else 0, n))}


def _latency(calls: dict[str, np.ndarray[Any, Any]], answers: int) -> dict[str, Any]:
    """Milliseconds a call, and what the harness added to the engine's own time (0.2 is 20 %; None where that is
    zero)."""
    inference, total = calls["inference_ms"], calls["total_ms"]
    own = float(inference.sum())
    return {
        "calls": len(inference),
        "inference_ms": _spread(inference),
        "total_ms": _spread(total),
        "inference_ms_per_question": own / answers if answers else None,
        "overhead": float(total.sum()) / own - 1.0 if own > 0 else None,
        "input_tokens": _spread(calls["input_tokens"]),
    }


def _spread(values: np.ndarray[Any, Any]) -> dict[str, float] | None:
    if not len(values):
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return {
        "mean": float(values.mean()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": float(values.max()),
    }
