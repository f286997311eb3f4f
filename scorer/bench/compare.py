"""Two runs over the same rows, side by side. Pure.

Answers are paired by key (file, row, field, ordering). What is counted once a question (agreement, flips, shift,
movers) looks at ordering 0, as the measures do; further orderings are counted apart.
"""

from __future__ import annotations

import bisect
import contextlib
import math
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import binomtest

from scorer.bench.columns import Keys
from scorer.bench.document import Items, Section, Table, clip, decimals, markdown, percent
from scorer.bench.folder import Records, placed
from scorer.bench.index import Index
from scorer.bench.numbers import interval
from scorer.bench.records import Record
from scorer.bench.stability import total_variation

__all__ = ["compare", "render"]

_MOVERS = 10


def compare(a: Records, b: Records) -> dict[str, Any]:
    """How run B answers what run A answered; JSON-able. Both are read one record at a time, and some 40 bytes of a pair
    are held.

    ``flips`` has, of the paired labelled questions, those that only A and only B got right and the exact two-sided
    McNemar p-value (a binomial test of one of them among both, 1 where neither moved). ``shift`` is the mean change
    from A to B of the probability of A's decision, with its standard error, and the mean of the changes' sizes.
    ``movers`` are the questions whose answers differ most, by total variation. ``latency_ratio`` is the median over
    paired calls of B's time by A's. A pair whose options or expected label differ was not the same question: it is
    counted in ``rows.contradict`` and otherwise left out. Raises :class:`scorer.bench.measures.MeasureError` for a run
    that names a key twice.
    """
    pairing = _Pairing()
    keys_a, keys_b = Keys(), Keys()
    with contextlib.closing(Index()) as places:
        for place, record in placed(b):
            keys_b.add(record)
            places.add(record.key, place)
        keys_b.check(b)
        for record in a:
            keys_a.add(record)
            found = places.get(record.key)
            if found is None:
                pairing.only_a += 1
            else:
                pairing.add(record, b[found])
        keys_a.check(a)
        return pairing.result(len(places))


class _Pairing:
    """The counts and arrays of one comparison."""

    def __init__(self) -> None:
        self.only_a = 0
        self._paired = self._contradict = self._other_prompt = self._identical = 0
        #: By ordering 0 and others: pairs, and those of one decision.
        self._agree = {True: [0, 0], False: [0, 0]}
        #: Labelled pairs by whether A and B are right.
        self._right: Counter[tuple[bool, bool]] = Counter()
        self._changes = array("d")
        self._moved: list[tuple[Any, dict[str, Any]]] = []
        self._call, self._inference, self._total = array("q"), array("d"), array("d")

    def add(self, x: Record, y: Record) -> None:
        """One key's record of A and of B."""
        if set(x.labels) != set(y.labels) or x.expected != y.expected or x.type != y.type:
            self._contradict += 1
            return
        self._paired += 1
        self._other_prompt += x.prompt_sha256 != y.prompt_sha256
        self._identical += x.probabilities == y.probabilities
        agree = self._agree[x.ordering == 0]
        agree[0] += 1
        agree[1] += x.decision == y.decision
        self._call.append(hash((x.file, x.row, x.ordering, x.prompt_sha256)))
        self._inference.append(_ratio(x, y, x.inference_ms, y.inference_ms))
        self._total.append(_ratio(x, y, x.total_ms, y.total_ms))
        if x.ordering:
            return
        if x.expected is not None:
            self._right[bool(x.correct), bool(y.correct)] += 1
        shift = y.probabilities[x.decision] - x.probabilities[x.decision]
        self._changes.append(shift)
        if distance := total_variation(x, y):
            mover = {"file": x.file, "row": x.row, "field": x.field, "distance": distance, "shift": shift}
            mover["decision_changed"] = x.decision != y.decision
            bisect.insort(self._moved, ((-distance, x.key), mover), key=lambda found: found[0])
            del self._moved[_MOVERS:]

    def result(self, records_b: int) -> dict[str, Any]:
        """What :func:`compare` returns."""
        both = self._paired + self._contradict
        return {
            "rows": {
                "a": both + self.only_a,
                "b": records_b,
                "paired": self._paired,
                "only_a": self.only_a,
                "only_b": records_b - both,
                "contradict": self._contradict,
                "other_prompt": self._other_prompt,
            },
            "agreement": _agreement(*self._agree[True]),
            "reordered_agreement": _agreement(*self._agree[False]),
            "identical": self._identical,
            "flips": self._flips(),
            "shift": _shift(np.asarray(self._changes)),
            "movers": [mover for _, mover in self._moved],
            "latency_ratio": self._latency(),
        }

    def _flips(self) -> dict[str, Any]:
        n, only_a, only_b = self._right.total(), self._right[True, False], self._right[False, True]
        both, moved = self._right[True, True], only_a + only_b
        return {
            "n": n,
            "accuracy_a": (both + only_a) / n if n else None,
            "accuracy_b": (both + only_b) / n if n else None,
            "only_a_right": only_a,
            "only_b_right": only_b,
            "p": float(binomtest(only_a, moved, 0.5).pvalue) if moved else 1.0,
        }

    def _latency(self) -> dict[str, Any]:
        """The last answer of a call tells its time, as in the measures."""
        _, last = np.unique(np.asarray(self._call)[::-1], return_index=True)
        ratios = {"inference_ms": self._inference, "total_ms": self._total}
        found = {name: np.asarray(values)[len(values) - 1 - last] for name, values in ratios.items()}
        out: dict[str, Any] = {"calls": int((~np.isnan(found["total_ms"])).sum())}
        for name, values in found.items():
            kept = values[values > 0]
            out[name] = float(np.median(kept)) if len(kept) else None
        return out


def _ratio(x: Record, y: Record, earlier: float, later: float) -> float:
    """B's time by A's; 0 where a clock showed nothing. Only calls of the same questions compare: where one run packed a
    row's questions and the other did not, none does (NaN)."""
    if x.questions != y.questions:
        return math.nan
    return later / earlier if earlier > 0 and later > 0 else 0.0


def _agreement(n: int, agree: int) -> dict[str, Any]:
    low, high = interval(agree, n)
    return {"n": n, "agree": agree, "share": agree / n if n else None, "low": low, "high": high}


def _shift(changes: np.ndarray[Any, Any]) -> dict[str, Any]:
    n = len(changes)
    return {
        "n": n,
        "mean": float(np.mean(changes)) if n else None,
        "standard_error": float(np.std(changes, ddof=1) / np.sqrt(n)) if n > 1 else None,
        "mean_size": float(np.mean(np.abs(changes))) if n else None,
    }


def render(result: Mapping[str, Any]) -> str:
    """The comparison (:func:`compare`) as Markdown."""
    return markdown("Comparison of two runs", [_counts(result), _answers(result), _largest(result), _notes()])


def _counts(result: Mapping[str, Any]) -> Section:
    rows = result["rows"]
    named = {
        "answers of A": rows["a"],
        "answers of B": rows["b"],
        "paired": rows["paired"],
        "in A only": rows["only_a"],
        "in B only": rows["only_b"],
        "the same key but another question (left out)": rows["contradict"],
        "paired, but with another prompt": rows["other_prompt"],
        "paired and bit-identical": result["identical"],
    }
    return Section("Rows", [Table(("", "count"), tuple((name, str(count)) for name, count in named.items()))])


def _answers(result: Mapping[str, Any]) -> Section:
    agreement, again = result["agreement"], result["reordered_agreement"]
    flips, shift, latency = result["flips"], result["shift"], result["latency_ratio"]
    rows = [
        ("same decision", f"{agreement['agree']} of {agreement['n']} ({percent(agreement['share'])})"),
        ("same decision, other orders of the options", f"{again['agree']} of {again['n']} ({percent(again['share'])})"),
        ("labelled pairs", str(flips["n"])),
        ("accuracy of A", percent(flips["accuracy_a"])),
        ("accuracy of B", percent(flips["accuracy_b"])),
        ("A right, B wrong", str(flips["only_a_right"])),
        ("B right, A wrong", str(flips["only_b_right"])),
        ("exact McNemar p-value", f"{flips['p']:.3g}"),
        ("mean shift of the probability of A's decision", _signed(shift["mean"])),
        ("its standard error", decimals(shift["standard_error"])),
        ("mean size of the shift", decimals(shift["mean_size"])),
        ("engine's time, B by A (median of ratios)", decimals(latency["inference_ms"], 3)),
        ("whole time, B by A (median of ratios)", decimals(latency["total_ms"], 3)),
    ]
    return Section("Answers", [Table(("", "found"), tuple(rows))])


def _largest(result: Mapping[str, Any]) -> Section:
    if not result["movers"]:
        return Section("Largest movers", ["No answer moved."])
    rows = tuple(
        (
            clip(f"{mover['file']} {mover['row']} {mover['field']}"),
            decimals(mover["distance"]),
            _signed(mover["shift"]),
            "yes" if mover["decision_changed"] else "no",
        )
        for mover in result["movers"]
    )
    head = ("file, row, field", "total variation", "shift of A's decision", "decision changed")
    return Section("Largest movers", [Table(head, rows)])


def _notes() -> Section:
    lines = (
        "Agreement, flips, shift and movers count each question once, in the row's own order of the options.",
        "The p-value asks whether the flips are balanced: small means that one run is better on rows like these.",
        "Latency ratios pair calls that held the same number of questions; they mean something only on an idle "
        "machine.",
    )
    return Section("How to read this", [Items(lines)])


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}"
