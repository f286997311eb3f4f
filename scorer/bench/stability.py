"""What should not change and does: answers by option order, by repetition, and in the course of a run. Pure."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from scipy.stats import fisher_exact, mannwhitneyu

from scorer.bench.columns import Columns, asked
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


class _Bases:
    """The answers in ordering 0 to which others are compared: 8 bytes an option and 24 a question."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._hashes, self._starts = array("q"), array("q")
        self._decision, self._order = array("h"), array("i")
        self._probabilities = array("d")
        self._orders: dict[tuple[int, ...], int] = {}
        for record in records:
            if record.ordering == 0:
                self._hashes.append(hash(record.key[:3]))
                self._starts.append(len(self._probabilities))
                self._probabilities.extend(map(record.probabilities.__getitem__, record.labels))
                self._decision.append(record.labels.index(record.decision))
                self._order.append(self._orders.setdefault(record.order, len(self._orders)))
        self._starts.append(len(self._probabilities))
        self._names = list(self._orders)
        self._sorted = np.argsort(np.asarray(self._hashes))
        self._keys = array("q", np.asarray(self._hashes)[self._sorted].tobytes())

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, record: Record) -> int | None:
        """The number of the same question in ordering 0."""
        wanted = hash(record.key[:3])
        place = bisect.bisect_left(self._keys, wanted)
        if place == len(self._keys) or self._keys[place] != wanted:
            return None
        number = int(self._sorted[place])
        return number if len(record.labels) == self._starts[number + 1] - self._starts[number] else None

    def order(self, number: int) -> tuple[int, ...]:
        """The order in which it was asked."""
        return self._names[self._order[number]]

    def decision(self, number: int) -> int:
        """Its decision, as a position in the labels."""
        return self._decision[number]

    def distance(self, number: int, record: Record) -> float:
        """Total variation."""
        own = self._probabilities[self._starts[number] : self._starts[number + 1]]
        return 0.5 * sum(abs(p - record.probabilities[label]) for p, label in zip(own, record.labels, strict=True))


class _Moves:
    """Answers in other orders against ordering 0: 2 bytes a question."""

    def __init__(self, questions: int) -> None:
        self.answers = self.moved = 0
        self._distance = 0.0
        self.asked, self.differs = bytearray(questions), bytearray(questions)

    def add(self, number: int, differs: bool, distance: float) -> None:
        self.answers += 1
        self.moved += differs
        self._distance += distance
        self.asked[number] = 1
        self.differs[number] |= differs

    def to_json(self) -> dict[str, Any]:
        questions, moved = self.asked.count(1), self.differs.count(1)
        low, high = interval(moved, questions)
        return {
            "answers": self.answers,
            "moved": self.moved,
            "share": self.moved / self.answers if self.answers else None,
            "questions": questions,
            "questions_moved": moved,
            "low": low,
            "high": high,
            "mean_tvd": self._distance / self.answers if self.answers else None,
        }


def order_sensitivity(records: Iterable[Record]) -> dict[str, Any]:
    """How often another order of the options moves the decision: records with ``ordering`` above 0 against ordering 0
    of the same question. ``records`` are walked twice.

    ``all`` and each of ``kinds`` (reversed, rotated, other, same) count answers and questions; ``share`` is moved
    answers by answers, and the interval is that of the share of questions that any of the orders moved, since answers
    to one question are not independent. ``first`` and ``last`` are the shares of decisions for the option asked first
    and last, over all answers to questions asked in more than one order; ``by_chance`` is what an engine without any
    preference would give. ``without_base`` counts answers whose ordering 0 is missing.
    """
    bases = _Bases(records)
    kinds: dict[str, _Moves] = {}
    # The same order asked again says nothing about order.
    moving = _Moves(len(bases))
    first = last = asked = orphans = 0
    by_chance = 0.0

    def place(order: Sequence[int], decision: int) -> None:
        nonlocal first, last, asked, by_chance
        where, size = order.index(decision), len(order)
        first, last, asked = first + (where == 0), last + (where == size - 1), asked + 1
        by_chance += 1 / size

    for record in records:
        if record.ordering == 0:
            continue
        number = bases.find(record)
        if number is None:
            orphans += 1
            continue
        kind, decision = _kind(bases.order(number), record.order), record.labels.index(record.decision)
        move = number, bases.decision(number) != decision, bases.distance(number, record)
        kinds.setdefault(kind, _Moves(len(bases))).add(*move)
        if kind != "same":
            if not moving.asked[number]:
                place(bases.order(number), bases.decision(number))
            place(record.order, decision)
            moving.add(*move)
    return {
        "all": moving.to_json(),
        "kinds": {kind: kinds[kind].to_json() for kind in sorted(kinds)},
        "first": first / asked if asked else None,
        "last": last / asked if asked else None,
        "by_chance": by_chance / asked if asked else None,
        "without_base": orphans,
    }


def repeats(records: Iterable[Record], repeated: Collection[int]) -> dict[str, Any]:
    """The same prompt, field and order asked more than once in the run: how many such groups, in how many the
    probabilities are not bit-identical, and the largest difference of one probability. A deterministic engine has none
    that differ. ``repeated`` names the groups (:meth:`scorer.bench.columns.Columns.repeated`); each is held with 16
    bytes an option and some 300 more."""
    spans: dict[int, tuple[array[float], array[float]]] = {}
    for record in records if repeated else ():
        name = asked(record)
        if name in repeated:
            own = [record.probabilities[record.labels[place]] for place in record.order]
            low, high = spans.setdefault(name, (array("d", own), array("d", own)))
            for place, p in enumerate(own):
                low[place], high[place] = min(low[place], p), max(high[place], p)
    spreads = [max(b - a for a, b in zip(low, high, strict=True)) for low, high in spans.values()]
    return {
        "groups": len(spreads),
        "differ": sum(spread > 0 for spread in spreads),
        "largest": max(spreads, default=None),
    }


def drift(columns: Columns) -> dict[str, Any]:
    """The first half of the run against the second, in the order in which the answers came; ordering 0 alone.

    The rows of each family are halved on their own and the halves pooled, so that a file sorted by family is not taken
    for a drift. Accuracy: Fisher's exact test; largest probability: Mann and Whitney's test; and the ratio of the
    median engine time. ``p_*`` is None where a half is empty.
    """
    own = columns.own
    families = columns.groups(1)[0][own] if len(own) else own
    groups = [own[families == family] for family in np.unique(families)]
    halves = [
        np.concatenate([own[:0], *(group[: len(group) // 2] for group in groups)]),
        np.concatenate([own[:0], *(group[len(group) - len(group) // 2 :] for group in groups)]),
    ]
    right = [one[one >= 0] for one in (columns.correct[half] for half in halves)]
    top = [columns.top[half] for half in halves]
    times = [columns.inference_ms[half] for half in halves]
    table = np.array([[one.sum(), len(one) - one.sum()] for one in right])
    medians = [float(np.median(one)) if len(one) else None for one in times]
    return {
        "n": [len(half) for half in halves],
        "labelled": [len(one) for one in right],
        "accuracy": [_mean(one) for one in right],
        "p_accuracy": float(fisher_exact(table).pvalue) if all(map(len, right)) else None,
        "mean_confidence": [_mean(one) for one in top],
        "p_confidence": _rank_test(top[0], top[1]),
        "latency_ratio": medians[1] / medians[0] if medians[0] and medians[1] is not None else None,
    }


def _rank_test(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float | None:
    if not len(a) or not len(b):
        return None
    if a.min() == a.max() == b.min() == b.max():
        return 1.0  # mannwhitneyu divides by the spread of the ranks
    return float(mannwhitneyu(a, b, method="asymptotic").pvalue)


def _mean(values: np.ndarray[Any, Any]) -> float | None:
    return float(values.mean()) if len(values) else None
