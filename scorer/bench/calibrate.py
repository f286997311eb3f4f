"""One temperature for each question type, fitted on one half of a run and judged on the other.

``p^(1/T)``, renormalised: T above 1 flattens, below 1 sharpens, and no decision changes. T minimises NLL on the rows
that the hash of their ids puts in the fitting half; it is kept only if neither NLL nor Brier worsens on the held-out
half, and is 1 with the reason otherwise.

The result is a finding, not a setting. ``/decide`` and every other surface that promises the engine's own numbers must
pass them untouched (design §5), so nothing in the service reads this file; whoever applies it does so by name, on
numbers that are then no longer the engine's. It holds for the engine that it names alone: :func:`load` refuses it for
another.

Rows that paraphrase one another may fall on both sides of the split, as records do not say which rows belong together;
with one number fitted, that flatters it little.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from scorer.bench.columns import Keys
from scorer.bench.document import Items, Section, Table, clip, decimals, leaves, markdown
from scorer.bench.folder import Records
from scorer.bench.numbers import SMALLEST, Answers, quality
from scorer.bench.records import Record
from shared import jsonio

__all__ = ["CalibrationError", "apply", "fit", "load", "render", "save"]

FORMAT = "temperature-1"
#: Labelled rows of a type that each half needs: below that the gate is a coin toss.
FEWEST = 20
#: T is sought between these. Where an edge is as good as the optimum, the rows do not determine it.
BOUNDS = (0.05, 20.0)
_JUDGED = ("nll", "brier", "ece_10", "ece_15")


class CalibrationError(ValueError):
    """A stored calibration is damaged, or is another engine's."""


def fit(records: Records, fingerprint: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Fit and judge; JSON-able.

    ``records`` of one run: those with a label count, in ordering 0, and of these the numbers are held, 8 bytes an
    option. ``fingerprint`` names the engine whose numbers they are, and is stored as it is. ``seed`` chooses the split,
    together with the row's id. Each entry of ``types`` has the ``temperature`` to use, whether it was ``kept`` and the
    ``reason``, the ``fitted`` one, the rows of both halves, and the held-out measures ``before`` and ``after`` it.
    Raises :class:`scorer.bench.measures.MeasureError`.
    """
    keys = Keys()
    halves: dict[str, tuple[_Half, _Half]] = {}
    total = labelled = 0
    for record in records:
        keys.add(record)
        total += 1
        if record.ordering == 0 and record.expected is not None:
            labelled += 1
            halves.setdefault(record.type, (_Half(), _Half()))[_held_out(record.row, seed)].add(record)
    keys.check(records)
    return {
        "format": FORMAT,
        "method": "p^(1/T) renormalised, one T a question type, least NLL on the fitting half",
        "fingerprint": dict(fingerprint),
        "seed": seed,
        "labelled": labelled,
        "left_out": total - labelled,
        "types": {kind: _fit_type(*halves[kind]) for kind in sorted(halves)},
    }


class _Half:
    """The numbers of labelled answers, one after the other."""

    def __init__(self) -> None:
        self._probabilities, self._starts, self._wanted = array("d"), array("q"), array("q")
        self._correct = array("b")

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, record: Record) -> None:
        """Append one."""
        start = len(self._probabilities)
        self._starts.append(start)
        self._wanted.append(start + record.labels.index(str(record.expected)))
        self._probabilities.extend(map(record.probabilities.__getitem__, record.labels))
        self._correct.append(bool(record.correct))

    def spread(self) -> Callable[[float], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """A function of ln T: ln p / T of every option, and of every answer the logarithm of the sum of p^(1/T)."""
        logs, starts = np.log(np.maximum(np.asarray(self._probabilities), SMALLEST)), np.asarray(self._starts)
        sizes = np.diff(np.append(starts, len(logs)))

        def at(log_t: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
            scaled = logs / math.exp(log_t)
            top = np.maximum.reduceat(scaled, starts)
            return scaled, top + np.log(np.add.reduceat(np.exp(scaled - np.repeat(top, sizes)), starts))

        return at

    def loss(self) -> Callable[[float], float]:
        """NLL as a function of ln T."""
        at, wanted = self.spread(), np.asarray(self._wanted)

        def nll(log_t: float) -> float:
            scaled, sums = at(log_t)
            return float(np.mean(sums - scaled[wanted]))

        return nll

    def answers(self, temperature: float) -> Answers:
        """The numbers to the power of 1/T, renormalised; at 1 they are untouched."""
        starts, wanted = np.asarray(self._starts), np.asarray(self._wanted)
        p = np.array(self._probabilities)
        if not len(starts):
            return Answers(p, p, p, np.empty(0, dtype=bool))
        if temperature != 1.0:
            scaled, sums = self.spread()(math.log(temperature))
            p = np.exp(scaled - np.repeat(sums, np.diff(np.append(starts, len(p)))))
        top, expected = np.maximum.reduceat(p, starts), p[wanted]
        p[wanted] -= 1.0
        return Answers(top, expected, np.add.reduceat(p * p, starts), np.asarray(self._correct) == 1)


def _held_out(row: str, seed: int) -> bool:
    """The half of a row: all its questions, in whatever file, fall on one side."""
    return bool(hashlib.sha256(f"{seed}:{row}".encode()).digest()[0] & 1)


def _fit_type(fitting: _Half, held_out: _Half) -> dict[str, Any]:
    before = _judge(held_out, 1.0)
    out: dict[str, Any] = {
        "temperature": 1.0,
        "kept": False,
        "reason": "",
        "fitted": None,
        "fit_rows": len(fitting),
        "held_out_rows": len(held_out),
        "before": before,
        "after": before,
    }
    if min(len(fitting), len(held_out)) < FEWEST:
        out["reason"] = f"fewer than {FEWEST} labelled rows in a half"
        return out
    fitted = out["fitted"] = _best(fitting)
    if fitted is None:
        out["reason"] = f"no best temperature between {BOUNDS[0]:g} and {BOUNDS[1]:g}: these rows do not determine one"
        return out
    after = out["after"] = _judge(held_out, fitted)
    worse = [name for name, key in (("NLL", "nll"), ("Brier", "brier")) if after[key] > before[key]]
    if worse:
        out["reason"] = f"held-out {' and '.join(worse)} worsened"
    else:
        out.update(temperature=fitted, kept=True, reason="held-out NLL and Brier did not worsen")
    return out


def _best(half: _Half) -> float | None:
    """The temperature of least NLL, or None where an edge is as good. NLL is convex in 1/T, so the one minimum is
    found."""
    loss = half.loss()
    low, high = map(math.log, BOUNDS)
    found = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    # Rows that are all right drive T to 0, and the loss is flat long before the edge, so the place of the minimum says
    # nothing.
    determined = min(loss(low), loss(high)) - float(found.fun) > 1e-9
    return math.exp(float(found.x)) if determined else None


def apply(probabilities: Mapping[str, float], temperature: float) -> dict[str, float]:
    """``p^(1/T)`` renormalised, by label. ``temperature`` above 0; at 1 the numbers come back untouched."""
    if temperature == 1.0:
        return dict(probabilities)
    logs = np.log(np.maximum(list(probabilities.values()), SMALLEST)) / temperature
    return dict(zip(probabilities, np.exp(logs - logsumexp(logs)).tolist(), strict=True))


def _judge(half: _Half, temperature: float) -> dict[str, Any]:
    found = quality(half.answers(temperature))
    return {name: found[name] for name in _JUDGED}


def save(path: Path, result: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Store :func:`fit`'s result as JSON. Raises FileExistsError unless ``overwrite``."""
    with path.open("wb" if overwrite else "xb") as file:
        file.write(jsonio.dumps(result) + b"\n")


def load(path: Path, fingerprint: Mapping[str, Any]) -> dict[str, float]:
    """The temperature by question type, for the engine ``fingerprint`` alone. Raises :class:`CalibrationError`,
    OSError."""
    try:
        stored = jsonio.loads(path.read_bytes())
        temperatures = {kind: float(found["temperature"]) for kind, found in stored["types"].items()}
        known, owner = stored["format"] == FORMAT, stored["fingerprint"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CalibrationError(f"{path.name}: not a calibration: {type(error).__name__}") from None
    if not known or not all(BOUNDS[0] <= t <= BOUNDS[1] for t in temperatures.values()):
        raise CalibrationError(f"{path.name}: not a calibration of format {FORMAT}")
    if owner != jsonio.loads(jsonio.dumps(fingerprint)):
        raise CalibrationError(f"{path.name}: fitted on another engine: its fingerprint differs")
    return temperatures


def render(result: Mapping[str, Any]) -> str:
    """The calibration (:func:`fit`) as Markdown."""
    types, none = result["types"], "No labelled row: nothing was fitted."
    head = ("type", "T", "fitted", "fit rows", "held-out rows", "kept", "reason")
    rows = tuple(
        (
            clip(kind),
            decimals(found["temperature"], 3),
            decimals(found["fitted"], 3),
            str(found["fit_rows"]),
            str(found["held_out_rows"]),
            "yes" if found["kept"] else "no",
            found["reason"],
        )
        for kind, found in types.items()
    )
    judged = tuple(
        (clip(kind), when, *(decimals(found[key][name]) for name in _JUDGED))
        for kind, found in types.items()
        for when, key in (("T = 1", "before"), ("fitted T", "after"))
        if key == "before" or found["fitted"] is not None
    )
    lines = (
        "A temperature is kept only if neither NLL nor Brier worsens on the held-out rows; otherwise it is 1.",
        "It changes no decision, and nothing applies it by itself: surfaces that promise the engine's own numbers go "
        "on giving them.",
        "It holds for the engine named here alone.",
    )
    engine = tuple(leaves(result["fingerprint"]))
    return markdown(
        "Calibration",
        [
            Section("Temperatures", [Table(head, rows, numeric=False)] if rows else [none]),
            *(
                [Section("Held-out rows", [Table(("type", "", "NLL", "Brier", "ECE 10", "ECE 15"), judged)])]
                if rows
                else []
            ),
            Section("Engine", [Table(("", "value"), engine, numeric=False)] if engine else ["Not named."]),
            Section("How to read this", [Items(lines)]),
        ],
    )
