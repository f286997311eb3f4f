"""What should not change and does: answers by option order, by repetition, and in the course of a run. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.stats import fisher_exact, mannwhitneyu

from scorer.bench.numbers import interval
from scorer.bench.records import Record

__all__ = ["drift", "order_sensitivity", "repeats", "total_variation"]


def total_variation(a: Record, b: Record) -> float:
    """Total variation distance of two answers to one question: half the sum of the differences; 0..1."""
    return 0.5 * sum(abs(p - b.probabilities[label]) for label, p in a.probabilities.items())


def _kind(base: Sequence[int], order: Sequence[int]) -> str:
    """How ``order`` comes from ``base``. Two options reversed are also rotated; they count as reversed."""
    base, order = list(base), list(order)
    if order == base:
        return "same"
    if order == base[::-1]:
        return "reversed"
    return "rotated" if any(order == base[k:] + base[:k] for k in range(1, len(base))) else "other"


def order_sensitivity(records: Sequence[Record]) -> dict[str, Any]:
    """How often another order of the options moves the decision: records with ``ordering`` above 0 against ordering 0
    of the same question.

    ``all`` and each of ``kinds`` (reversed, rotated, other, same) count answers and questions; ``share`` is moved
    answers by answers, and the interval is that of the share of questions that any of the orders moved, since answers
    to one question are not independent. ``first`` and ``last`` are the shares of decisions for the option asked first
    and last, over all answers to questions asked in more than one order; ``by_chance`` is what an engine without any
    preference would give. ``without_base`` counts answers whose ordering 0 is missing.
    """
    base = {record.key[:3]: record for record in records if record.ordering == 0}
    pairs: dict[str, list[tuple[Record, Record]]] = defaultdict(list)
    orphans = 0
    for record in records:
        if record.ordering > 0:
            if found := base.get(record.key[:3]):
                pairs[_kind(found.order, record.order)].append((found, record))
            else:
                orphans += 1
    # The same order asked again says nothing about order.
    moving = [pair for kind, found in pairs.items() if kind != "same" for pair in found]
    asked = [*{record.key: record for record, _ in moving}.values(), *(record for _, record in moving)]
    places = [(record.order.index(record.labels.index(record.decision)), len(record.labels)) for record in asked]
    return {
        "all": _moved(moving),
        "kinds": {kind: _moved(pairs[kind]) for kind in sorted(pairs)},
        "first": _mean(place == 0 for place, _ in places),
        "last": _mean(place == size - 1 for place, size in places),
        "by_chance": _mean(1 / size for _, size in places),
        "without_base": orphans,
    }


def _moved(pairs: Sequence[tuple[Record, Record]]) -> dict[str, Any]:
    moved = [(a.key[:3], a.decision != b.decision) for a, b in pairs]
    questions = {key for key, _ in moved}
    questions_moved = {key for key, differs in moved if differs}
    low, high = interval(len(questions_moved), len(questions))
    return {
        "answers": len(moved),
        "moved": sum(differs for _, differs in moved),
        "share": _mean(differs for _, differs in moved),
        "questions": len(questions),
        "questions_moved": len(questions_moved),
        "low": low,
        "high": high,
        "mean_tvd": _mean(total_variation(a, b) for a, b in pairs),
    }


def repeats(records: Iterable[Record]) -> dict[str, Any]:
    """The same prompt, field and order asked more than once in the run: how many such groups, in how many the
    probabilities are not bit-identical, and the largest difference of one probability. A deterministic engine has none
    that differ."""
    groups: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        asked = tuple(record.labels[i] for i in record.order)
        groups[record.prompt_sha256, record.field, asked].append(record)
    spreads = []
    for group in groups.values():
        if len(group) > 1:
            table = np.array([[record.probabilities[label] for label in group[0].labels] for record in group])
            spreads.append(float(np.ptp(table, axis=0).max()))
    return {
        "groups": len(spreads),
        "differ": sum(spread > 0 for spread in spreads),
        "largest": max(spreads, default=None),
    }


def drift(records: Sequence[Record]) -> dict[str, Any]:
    """The first half of the run against the second, in the order of ``records`` (that in which the answers came).

    The rows of each family are halved on their own and the halves pooled, so that a file sorted by family is not taken
    for a drift. Accuracy: Fisher's exact test; largest probability: Mann and Whitney's test; and the ratio of the
    median engine time. ``p_*`` is None where a half is empty.
    """
    families: dict[str | None, list[Record]] = defaultdict(list)
    for record in records:
        families[record.family].append(record)
    halves: tuple[list[Record], list[Record]] = ([], [])
    for group in families.values():
        half = len(group) // 2
        halves[0].extend(group[:half])
        halves[1].extend(group[len(group) - half :])
    labelled = [[record.correct for record in half if record.correct is not None] for half in halves]
    top = [[max(record.probabilities.values()) for record in half] for half in halves]
    times = [_median(record.inference_ms for record in half) for half in halves]
    table = np.array([[sum(half), len(half) - sum(half)] for half in labelled])
    return {
        "n": [len(half) for half in halves],
        "labelled": [len(half) for half in labelled],
        "accuracy": [_mean(half) for half in labelled],
        "p_accuracy": float(fisher_exact(table).pvalue) if all(labelled) else None,
        "mean_confidence": [_mean(half) for half in top],
        "p_confidence": _rank_test(top[0], top[1]),
        "latency_ratio": times[1] / times[0] if times[0] and times[1] is not None else None,
    }


def _rank_test(a: Sequence[float], b: Sequence[float]) -> float | None:
    if not a or not b:
        return None
    if len({*a, *b}) == 1:
        return 1.0  # mannwhitneyu divides by the spread of the ranks
    return float(mannwhitneyu(a, b, method="asymptotic").pvalue)


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(sum(found) / len(found)) if found else None


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(np.median(found)) if found else None
