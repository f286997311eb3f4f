"""What a run's records say, as one JSON-able object. Pure; holds the records' numbers as arrays, a few an answer.

Accuracy and everything that is built on it count an answer once: ordering 0, which is how the row puts the question.
Further orderings of it are not independent, and serve the measure of order alone. An answer is right when the engine's
decision is the expected label (engine/intern-decision.md §4); how sure it was is its largest probability, never its
``confidence``, which follows another formula on some surfaces.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, mean_absolute_error

from scorer.bench import numbers, stability
from scorer.bench.numbers import Answers
from scorer.bench.records import Record

__all__ = ["NO_FAMILY", "THRESHOLDS", "MeasureError", "calls", "check", "summarise"]

#: Thresholds of selective accuracy where none are asked.
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
#: The name of the group of rows without a family.
NO_FAMILY = "(none)"
#: A sum of probabilities further than this from 1 is counted (engine/intern-decision.md §4).
_SUM_TOLERANCE = 0.02
_CONFUSION_LABELS = 20
_OTHER = "(other)"
_WORST = 10

_GROUPINGS: dict[str, Callable[[Record], str]] = {
    "type": lambda record: record.type,
    "family": lambda record: NO_FAMILY if record.family is None else record.family,
    "options": lambda record: str(len(record.labels)),
    "file": lambda record: record.file,
}


class MeasureError(ValueError):
    """The records cannot be measured; the message names the file, row and field."""


def check(records: Sequence[Record]) -> None:
    """Raise :class:`MeasureError` where two records have one key, or an expected label is none of the options."""
    seen: set[Hashable] = set()
    for record in records:
        if record.key in seen:
            raise MeasureError(f"{_name(record)}: answered twice in one run")
        seen.add(record.key)
        if record.expected is not None and record.expected not in record.probabilities:
            raise MeasureError(f"{_name(record)}: the expected label is none of its options")


def summarise(records: Sequence[Record], thresholds: Sequence[float] = THRESHOLDS) -> dict[str, Any]:
    """All measures of a run.

    ``records`` in the order in which they came; ``thresholds`` are those of selective accuracy, 0..1. A measure without
    any answer is None. Times are milliseconds. Raises :class:`MeasureError` (:func:`check`).
    """
    check(records)
    own = [record for record in records if record.ordering == 0]
    labelled = [record for record in own if record.expected is not None]
    answers = Answers.of([(r.probabilities, str(r.expected), bool(r.correct)) for r in labelled])
    return {
        "records": len(records),
        "questions": len({record.key[:3] for record in records}),
        "labelled": len(labelled),
        "unlabelled": len(own) - len(labelled),
        "reordered": len(records) - len(own),
        **numbers.quality(answers),
        "score_mae": _score_error(labelled),
        "by": {name: _grouped(labelled, answers, key) for name, key in _GROUPINGS.items()},
        "reliability": numbers.reliability(answers),
        "coverage": numbers.coverage(answers),
        "selective": numbers.selective(answers, thresholds),
        "order": stability.order_sensitivity(records),
        "repeats": stability.repeats(records),
        "drift": stability.drift(own),
        "latency": _latency(records),
        "confusion": _confusion(labelled),
        "confident_errors": _confident_errors(labelled),
        "checks": _checks(records),
    }


def _grouped(labelled: Sequence[Record], answers: Answers, key: Callable[[Record], str]) -> dict[str, Any]:
    places: dict[str, list[int]] = defaultdict(list)
    for index, record in enumerate(labelled):
        places[key(record)].append(index)
    # Option counts are numbers written as text: 2 before 10.
    ordered = sorted(places, key=lambda name: (int(name) if name.isdecimal() else 0, name))
    return {name: numbers.quality(answers.pick(places[name])) for name in ordered}


def _score_error(labelled: Sequence[Record]) -> dict[str, Any]:
    """Mean absolute error of the expected level of score questions, in levels; those without a score are counted."""
    questions = [record for record in labelled if record.type == "score"]
    pairs = [(float(str(record.expected)), record.score) for record in questions if record.score is not None]
    error = float(mean_absolute_error(*zip(*pairs, strict=True))) if pairs else None
    return {"n": len(pairs), "mae": error, "without_score": len(questions) - len(pairs)}


def calls(records: Sequence[Record]) -> list[Record]:
    """One record for each call of the engine: the answers of one call share its time, which must count once."""
    return list({(r.file, r.row, r.ordering, r.prompt_sha256): r for r in records}.values())


def _latency(records: Sequence[Record]) -> dict[str, Any]:
    """Milliseconds a call, and what the harness added to the engine's own time (0.2 is 20 %; None where that is
    zero)."""
    made = calls(records)
    inference = np.array([record.inference_ms for record in made], dtype=np.float64)
    total = np.array([record.total_ms for record in made], dtype=np.float64)
    own = float(inference.sum())
    return {
        "calls": len(made),
        "inference_ms": _spread(inference),
        "total_ms": _spread(total),
        "inference_ms_per_question": own / len(records) if records else None,
        "overhead": float(total.sum()) / own - 1.0 if own > 0 else None,
        "input_tokens": _spread(np.array([record.input_tokens for record in made], dtype=np.float64)),
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


def _confusion(labelled: Sequence[Record]) -> dict[str, Any] | None:
    """Expected label by decision for the family with the most labelled rows; labels beyond the 20 most used are one."""
    if not labelled:
        return None
    sizes = Counter(map(_GROUPINGS["family"], labelled))
    family = min(sizes, key=lambda name: (-sizes[name], name))
    rows = [(str(r.expected), r.decision) for r in labelled if _GROUPINGS["family"](r) == family]
    used = Counter(label for row in rows for label in row)
    ranked = sorted(used, key=lambda label: (-used[label], label))
    kept = set(ranked[:_CONFUSION_LABELS])
    labels = sorted(kept) + [_OTHER] * (len(ranked) > len(kept))
    # By position: a caller may have a label that is called as our name for the rest.
    place = {label: labels.index(label) for label in kept}
    expected, decision = ([place.get(label, len(kept)) for label in side] for side in zip(*rows, strict=True))
    with warnings.catch_warnings():
        # scikit-learn warns of one label, and of about as many labels as rows; both are right here.
        warnings.simplefilter("ignore")
        matrix = confusion_matrix(expected, decision, labels=range(len(labels)))
    return {"family": family, "n": len(rows), "labels": labels, "matrix": matrix.tolist()}


def _confident_errors(labelled: Sequence[Record]) -> list[dict[str, Any]]:
    """The wrong answers that were surest, ids and labels only."""
    wrong = [record for record in labelled if not record.correct]
    wrong.sort(key=lambda record: (-record.probabilities[record.decision], record.key))
    return [
        {
            "file": record.file,
            "row": record.row,
            "field": record.field,
            "expected": record.expected,
            "decision": record.decision,
            "probability": record.probabilities[record.decision],
        }
        for record in wrong[:_WORST]
    ]


def _checks(records: Sequence[Record]) -> dict[str, Any]:
    """What no sound engine does: a decision that is not the most probable, probabilities that do not sum to 1."""
    off = [abs(sum(record.probabilities.values()) - 1.0) for record in records]
    return {
        "decision_not_largest": sum(r.probabilities[r.decision] < max(r.probabilities.values()) for r in records),
        "sum_off": sum(gap > _SUM_TOLERANCE for gap in off),
        "largest_sum_gap": max(off, default=None),
    }


def _name(record: Record) -> str:
    return f"{record.file}: row {record.row}: field {record.field}: ordering {record.ordering}"
