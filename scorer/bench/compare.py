"""Two runs over the same rows, side by side. Pure.

Answers are paired by key (file, row, field, ordering). What is counted once a question (agreement, flips, shift,
movers) looks at ordering 0, as the measures do; further orderings are counted apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest

from scorer.bench.document import Items, Section, Table, clip, decimals, markdown, percent
from scorer.bench.measures import calls, check
from scorer.bench.numbers import interval
from scorer.bench.records import Record
from scorer.bench.stability import total_variation

__all__ = ["compare", "render"]

_MOVERS = 10


def compare(a: Sequence[Record], b: Sequence[Record]) -> dict[str, Any]:
    """How run B answers what run A answered; JSON-able.

    ``flips`` has, of the paired labelled questions, those that only A and only B got right and the exact two-sided
    McNemar p-value (a binomial test of one of them among both, 1 where neither moved). ``shift`` is the mean change
    from A to B of the probability of A's decision, with its standard error, and the mean of the changes' sizes.
    ``movers`` are the questions whose answers differ most, by total variation. ``latency_ratio`` is the median over
    paired calls of B's time by A's. A pair whose options or expected label differ was not the same question: it is
    counted in ``rows.contradict`` and otherwise left out. Raises :class:`scorer.bench.measures.MeasureError` for a run
    that names a key twice.
    """
    check(a)
    check(b)
    by_a, by_b = ({record.key: record for record in run} for run in (a, b))
    both = [(record, by_b[key]) for key, record in by_a.items() if key in by_b]
    pairs = [
        (x, y) for x, y in both if set(x.labels) == set(y.labels) and x.expected == y.expected and x.type == y.type
    ]
    own = [(x, y) for x, y in pairs if x.ordering == 0]
    reordered = [(x, y) for x, y in pairs if x.ordering > 0]
    return {
        "rows": {
            "a": len(a),
            "b": len(b),
            "paired": len(pairs),
            "only_a": len(by_a.keys() - by_b.keys()),
            "only_b": len(by_b.keys() - by_a.keys()),
            "contradict": len(both) - len(pairs),
            "other_prompt": sum(x.prompt_sha256 != y.prompt_sha256 for x, y in pairs),
        },
        "agreement": _agreement(own),
        "reordered_agreement": _agreement(reordered),
        "identical": sum(x.probabilities == y.probabilities for x, y in pairs),
        "flips": _flips([(x, y) for x, y in own if x.expected is not None]),
        "shift": _shift([y.probabilities[x.decision] - x.probabilities[x.decision] for x, y in own]),
        "movers": _movers(own),
        "latency_ratio": _latency(pairs),
    }


def _agreement(pairs: Sequence[tuple[Record, Record]]) -> dict[str, Any]:
    agree = sum(x.decision == y.decision for x, y in pairs)
    low, high = interval(agree, len(pairs))
    return {"n": len(pairs), "agree": agree, "share": agree / len(pairs) if pairs else None, "low": low, "high": high}


def _flips(pairs: Sequence[tuple[Record, Record]]) -> dict[str, Any]:
    n = len(pairs)
    right_a, right_b = (sum(bool(pair[side].correct) for pair in pairs) for side in (0, 1))
    only_a = sum(bool(x.correct) and not y.correct for x, y in pairs)
    only_b = sum(bool(y.correct) and not x.correct for x, y in pairs)
    moved = only_a + only_b
    return {
        "n": n,
        "accuracy_a": right_a / n if n else None,
        "accuracy_b": right_b / n if n else None,
        "only_a_right": only_a,
        "only_b_right": only_b,
        "p": float(binomtest(only_a, moved, 0.5).pvalue) if moved else 1.0,
    }


def _shift(changes: Sequence[float]) -> dict[str, Any]:
    n = len(changes)
    return {
        "n": n,
        "mean": float(np.mean(changes)) if n else None,
        "standard_error": float(np.std(changes, ddof=1) / np.sqrt(n)) if n > 1 else None,
        "mean_size": float(np.mean(np.abs(changes))) if n else None,
    }


def _movers(pairs: Sequence[tuple[Record, Record]]) -> list[dict[str, Any]]:
    moved = [(total_variation(x, y), x, y) for x, y in pairs]
    moved.sort(key=lambda found: (-found[0], found[1].key))
    return [
        {
            "file": x.file,
            "row": x.row,
            "field": x.field,
            "distance": distance,
            "shift": y.probabilities[x.decision] - x.probabilities[x.decision],
            "decision_changed": x.decision != y.decision,
        }
        for distance, x, y in moved[:_MOVERS]
        if distance > 0
    ]


def _latency(pairs: Sequence[tuple[Record, Record]]) -> dict[str, Any]:
    """Only calls of the same questions compare: where one run packed a row's questions and the other did not, none
    does."""
    other = {x.key: y for x, y in pairs}
    made = [(x, other[x.key]) for x in calls([x for x, _ in pairs])]
    made = [(x, y) for x, y in made if x.questions == y.questions]
    out: dict[str, Any] = {"calls": len(made)}
    for name in ("inference_ms", "total_ms"):
        times = [(getattr(x, name), getattr(y, name)) for x, y in made]
        ratios = [later / earlier for earlier, later in times if earlier > 0 and later > 0]
        out[name] = float(np.median(ratios)) if ratios else None
    return out


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
