"""The report's text: the measures and the manifest as sections. Pure.

Of what callers wrote only ids, labels and names of families and files appear, clipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from scorer.bench.document import Image, Items, Section, Table, clip, decimals, leaves, milliseconds, percent
from scorer.bench.findings import findings

__all__ = ["sections"]

_NOTES = (
    "An answer counts once, in the row's own order of the options; it is right when the decision is the expected one.",
    "Intervals are Wilson's, 95 %. How sure an answer is means its largest probability.",
    "Brier: Σ over the options of (p - 1[expected])², not divided by their number; 0 is perfect, 2 the worst.",
    "NLL: minus the natural logarithm of the expected option's probability. A probability of 0 counts as 2.2e-16.",
    "ECE: over 10 or 15 equally wide bins of the largest probability, (k/10, (k+1)/10], the lowest including 0, the "
    "mean distance of accuracy from it, weighted by the answers in the bin.",
    "Score MAE: distance of the engine's expected level from the labelled one, in levels.",
    "Findings: overconfident or underconfident when the mean largest probability lies outside the interval of the "
    "accuracy; position when the interval of the share of moved questions lies above 5 %; drift when p < 0.01 and the "
    "change is 2 points or more, each family halved on its own.",
)


def sections(
    manifest: Mapping[str, Any], metrics: Mapping[str, Any], failed: Mapping[str, int], images: Collection[str]
) -> list[Section]:
    """The report's sections; a picture stands where ``images`` names it. ``failed`` counts answers by reason."""
    found = [
        _findings(manifest, metrics, failed),
        _run(manifest),
        _numbers(metrics),
        *_groups(metrics),
        _reliability(metrics, images),
        _coverage(metrics, images),
        _order(metrics),
        _drift(metrics),
        _latency(metrics, images),
        _confusion(metrics, images),
        _errors(metrics),
        Section("How to read this", [Items(_NOTES)]),
    ]
    return [section for section in found if section.blocks]


def _findings(manifest: Mapping[str, Any], metrics: Mapping[str, Any], failed: Mapping[str, int]) -> Section:
    lines = findings(metrics, failed, manifest)
    out = Section("Findings", [Items(tuple(lines)) if lines else "Nothing out of the ordinary."])
    if failed:
        ranked = sorted(failed.items(), key=lambda item: (-item[1], item[0]))
        out.blocks.append(
            Table(("why answers failed", "answers"), tuple((clip(why), str(count)) for why, count in ranked))
        )
    return out


def _run(manifest: Mapping[str, Any]) -> Section:
    rows = tuple((name, value) for name, value in leaves(manifest) if name.split(".")[0] != "failed")
    return Section("Run", [Table(("setting", "value"), rows, numeric=False)] if rows else [])


def _span(found: Mapping[str, Any]) -> str:
    return "–" if found["low"] is None else f"{100 * found['low']:.1f} – {percent(found['high'])}"


def _numbers(metrics: Mapping[str, Any]) -> Section:
    score = metrics["score_mae"]
    rows = [
        ("questions", str(metrics["questions"])),
        ("labelled", str(metrics["labelled"])),
        ("unlabelled", str(metrics["unlabelled"])),
        ("answers in other orders", str(metrics["reordered"])),
        ("accuracy", percent(metrics["accuracy"])),
        ("95 % interval", _span(metrics)),
        ("mean largest probability", percent(metrics["mean_confidence"])),
        ("Brier", decimals(metrics["brier"])),
        ("NLL", decimals(metrics["nll"])),
        ("ECE, 10 bins", decimals(metrics["ece_10"])),
        ("ECE, 15 bins", decimals(metrics["ece_15"])),
        (f"score MAE ({score['n']} questions)", decimals(score["mae"])),
    ]
    return Section("Numbers", [Table(("measure", "found"), tuple(rows))])


def _groups(metrics: Mapping[str, Any]) -> Iterator[Section]:
    titles = {"type": "By type", "family": "By family", "options": "By number of options", "file": "By file"}
    for name, title in titles.items():
        rows = tuple(
            (
                clip(group),
                str(found["n"]),
                percent(found["accuracy"]),
                _span(found),
                percent(found["mean_confidence"]),
                *(decimals(found[key]) for key in ("brier", "nll", "ece_10")),
            )
            for group, found in metrics["by"][name].items()
        )
        head = (name, "n", "accuracy", "95 % interval", "mean largest p", "Brier", "NLL", "ECE 10")
        yield Section(title, [Table(head, rows)] if rows else [])


def _picture(name: str, alt: str, images: Collection[str]) -> list[Any]:
    return [Image(name, alt)] if name in images else []


def _reliability(metrics: Mapping[str, Any], images: Collection[str]) -> Section:
    rows = tuple(
        (
            f"{found['from']:.1f} – {found['to']:.1f}",
            str(found["n"]),
            percent(found["mean_confidence"]),
            percent(found["accuracy"]),
            _span(found),
        )
        for found in metrics["reliability"]
    )
    if not rows:
        return Section("Reliability")
    head = ("largest probability", "n", "mean", "accuracy", "95 % interval")
    alt = "Accuracy against the largest probability, ten bins, with the diagonal of perfect calibration"
    return Section("Reliability", [*_picture("reliability.png", alt, images), Table(head, rows)])


def _coverage(metrics: Mapping[str, Any], images: Collection[str]) -> Section:
    if not metrics["n"]:
        return Section("Coverage against accuracy")
    rows = tuple(
        (
            f"{found['threshold']:g}",
            str(found["n"]),
            percent(found["coverage"]),
            percent(found["accuracy"]),
            _span(found),
        )
        for found in metrics["selective"]
    )
    head = ("kept from a largest p of", "n", "coverage", "accuracy", "95 % interval")
    alt = "Accuracy of the surest answers against the share of the answers kept"
    return Section("Coverage against accuracy", [*_picture("coverage.png", alt, images), Table(head, rows)])


def _order(metrics: Mapping[str, Any]) -> Section:
    order = metrics["order"]
    groups = {**order["kinds"], "all but same": order["all"]}
    rows = tuple(
        (
            name,
            str(found["answers"]),
            str(found["moved"]),
            percent(found["share"]),
            f"{found['questions_moved']} of {found['questions']}",
            _span(found),
            decimals(found["mean_tvd"]),
        )
        for name, found in groups.items()
    )
    title = "Order of the options"
    if not order["kinds"]:
        return Section(title, ["No question was asked in another order of its options."])
    head = ("order", "answers", "moved", "share", "questions moved", "95 % interval", "mean total variation")
    places = (
        f"Decisions for the option asked first: {percent(order['first'])}, asked last: {percent(order['last'])}; "
        f"without any preference: {percent(order['by_chance'])}."
    )
    return Section(title, [Table(head, rows), places])


def _drift(metrics: Mapping[str, Any]) -> Section:
    drift, repeats = metrics["drift"], metrics["repeats"]
    rows = (
        ("answers", *map(str, drift["n"]), "–"),
        ("accuracy", *map(percent, drift["accuracy"]), decimals(drift["p_accuracy"])),
        ("mean largest probability", *map(percent, drift["mean_confidence"]), decimals(drift["p_confidence"])),
    )
    text = (
        f"Prompts asked more than once: {repeats['groups']}, of which {repeats['differ']} got different numbers. "
        f"Median engine time of the second half by the first: {decimals(drift['latency_ratio'], 2)}."
    )
    return Section("In the course of the run", [Table(("", "first half", "second half", "p"), rows), text])


def _latency(metrics: Mapping[str, Any], images: Collection[str]) -> Section:
    found = metrics["latency"]
    if not found["calls"]:
        return Section("Latency")
    names = {"engine, ms a call": "inference_ms", "whole, ms a call": "total_ms", "input tokens a call": "input_tokens"}
    columns = ("mean", "p50", "p90", "p99", "max")
    rows = tuple((title, *(milliseconds(found[key][column]) for column in columns)) for title, key in names.items())
    text = (
        f"{found['calls']} calls; the engine took {milliseconds(found['inference_ms_per_question'])} ms a question; "
        f"what is not the engine's time adds {percent(found['overhead'])} to it."
    )
    alt = "Share of the calls answered within a time, on a logarithmic axis"
    return Section("Latency", [*_picture("latency.png", alt, images), Table(("", *columns), rows), text])


def _confusion(metrics: Mapping[str, Any], images: Collection[str]) -> Section:
    found = metrics["confusion"]
    if not found:
        return Section("Confusion")
    title = f"Confusion: family {clip(found['family'])}"
    labels = [clip(label, 24) for label in found["labels"]]
    rows = tuple((label, *map(str, counts)) for label, counts in zip(labels, found["matrix"], strict=True))
    alt = "Expected label by decision, the largest family"
    return Section(title, [*_picture("confusion.png", alt, images), Table(("expected \\ decided", *labels), rows)])


def _errors(metrics: Mapping[str, Any]) -> Section:
    rows = tuple(
        (
            clip(f"{found['file']} {found['row']} {found['field']}"),
            clip(found["expected"], 30),
            clip(found["decision"], 30),
            decimals(found["probability"]),
        )
        for found in metrics["confident_errors"]
    )
    head = ("file, row, field", "expected", "decided", "probability")
    return Section("Wrong and sure of it", [Table(head, rows, numeric=False)] if rows else [])
