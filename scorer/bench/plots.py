"""The pictures of a report, drawn without a display from the measures (:func:`scorer.bench.measures.summarise`). Pure.

Figures are made without pyplot, which keeps every figure in a global list. Text that comes from rows is drawn as it is:
a ``$`` in a label would otherwise be taken for mathematics and could fail the report.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from scorer.bench.document import clip

__all__ = ["confusion", "coverage", "draw", "latency", "png", "reliability"]

_BLUE, _ORANGE, _GREY = "#1f6fb4", "#d9662b", "#8a8f98"
#: Characters of a label on an axis.
_LABEL = 22
#: Times are drawn on a logarithmic axis; a clock's zero is drawn here (milliseconds).
_SHORTEST = 0.001


def draw(metrics: Mapping[str, Any], times: Mapping[str, Sequence[float] | np.ndarray[Any, Any]]) -> dict[str, Figure]:
    """Every picture that the run has numbers for, by file name. ``times`` has the milliseconds of each call by name."""
    out: dict[str, Figure] = {}
    if metrics["n"]:
        out["reliability.png"] = reliability(metrics)
        out["coverage.png"] = coverage(metrics)
    if any(map(len, times.values())):
        out["latency.png"] = latency(times)
    if metrics["confusion"]:
        out["confusion.png"] = confusion(metrics["confusion"])
    return out


def png(figure: Figure) -> bytes:
    """The figure as PNG; the same figure gives the same bytes."""
    out = io.BytesIO()
    with warnings.catch_warnings():
        # A label in a script that the font lacks is drawn as boxes; its row has it in full.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        figure.savefig(out, format="png", dpi=110, metadata={"Software": None})
    return out.getvalue()


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.grid(visible=True, color="#e3e5e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def reliability(metrics: Mapping[str, Any]) -> Figure:
    """Accuracy against the largest probability, ten bins, with 95 % intervals, over a histogram of the answers."""
    figure, axes = _figure(5.6, 5.2)
    bins = metrics["reliability"]
    x, y = ([found[name] for found in bins] for name in ("mean_confidence", "accuracy"))
    below = [max(0.0, found["accuracy"] - found["low"]) for found in bins]
    above = [max(0.0, found["high"] - found["accuracy"]) for found in bins]
    total = sum(found["n"] for found in bins)
    centres = [(found["from"] + found["to"]) / 2 for found in bins]
    axes.bar(centres, [found["n"] / total for found in bins], 0.096, color="#d5e3f0", label="share of the answers")
    axes.plot([0, 1], [0, 1], linestyle="--", color=_GREY, label="as sure as right")
    axes.errorbar(x, y, yerr=[below, above], fmt="o-", color=_BLUE, capsize=3, label="accuracy, 95 % interval")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="largest probability", ylabel="accuracy")
    axes.set_title(f"Reliability: ECE {metrics['ece_10']:.3f} over {total} answers")
    axes.legend(loc="upper left", frameon=False)
    return figure


def coverage(metrics: Mapping[str, Any]) -> Figure:
    """Accuracy of the surest answers against the share of answers kept."""
    figure, axes = _figure(5.6, 4.2)
    curve = metrics["coverage"]
    x, y = ([point[name] for point in curve] for name in ("coverage", "accuracy"))
    axes.plot(x, y, marker="o" if len(curve) == 1 else "", color=_BLUE, label="the surest answers")
    axes.axhline(metrics["accuracy"], linestyle="--", color=_GREY, label=f"all answers: {metrics['accuracy']:.3f}")
    axes.set(xlim=(0, 1.01), ylim=(min(*y, metrics["low"]) - 0.02, 1.01), xlabel="coverage", ylabel="accuracy")
    axes.set_title("Accuracy of the surest answers")
    axes.legend(loc="lower left", frameon=False)
    return figure


def latency(times: Mapping[str, Sequence[float] | np.ndarray[Any, Any]]) -> Figure:
    """The share of calls that were answered within a time."""
    figure, axes = _figure(5.6, 4.2)
    least, most = np.inf, 0.0
    for (name, values), colour in zip(times.items(), (_BLUE, _ORANGE), strict=False):
        if len(values):
            x = np.sort(np.maximum(np.asarray(values, dtype=np.float64), _SHORTEST))
            axes.step(np.append(x[0], x), np.arange(len(x) + 1) / len(x), where="post", color=colour, label=name)
            least, most = min(least, x[0]), max(most, x[-1])
    axes.set_xscale("log")
    # Wide enough for a tick, and ticks that say 20, not 2·10¹.
    axes.set(xlim=(least / 1.5, most * 1.5), ylim=(0, 1.02), xlabel="milliseconds a call", ylabel="share of the calls")
    decades = np.log10(most / least)
    axes.xaxis.set_major_locator(
        LogLocator(subs=(1,) if decades > 3 else (1, 2, 5) if decades > 1 else (1, 2, 3, 5, 7))
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title("Latency")
    axes.legend(loc="lower right", frameon=False)
    return figure


def confusion(found: Mapping[str, Any]) -> Figure:
    """Expected label by decision for one family; the colour is the share of the row, the number the count."""
    labels = [clip(label, _LABEL) for label in found["labels"]]
    counts = np.asarray(found["matrix"], dtype=np.int64)
    size = max(4.2, 1.8 + 0.42 * len(labels))
    figure, axes = _figure(size + 0.6, size)
    axes.grid(visible=False)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if share[row, column] > 0.55 else "black"
            axes.text(float(column), float(row), str(count), ha="center", va="center", color=colour, fontsize=8)
    places = range(len(labels))
    axes.set_xticks(places, labels, rotation=60, ha="right", rotation_mode="anchor", fontsize=8, parse_math=False)
    axes.set_yticks(places, labels, fontsize=8, parse_math=False)
    axes.set(xlabel="decision", ylabel="expected")
    axes.set_title(f"Family {clip(found['family'], _LABEL)}: {found['n']} answers", parse_math=False)
    figure.colorbar(image, ax=axes, label="share of the expected label", shrink=0.8)
    return figure
