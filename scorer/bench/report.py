"""A run's report on disk: ``report.md``, ``metrics.json``, the pictures, and ``report.html``, which holds them all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scorer.bench import measures, plots
from scorer.bench.document import markdown
from scorer.bench.findings import failures, gates
from scorer.bench.folder import Records
from scorer.bench.measures import Measured
from scorer.bench.page import html
from scorer.bench.sections import sections
from shared import jsonio

__all__ = ["FILES", "gates", "render", "write"]

_PICTURES = ("reliability.png", "coverage.png", "latency.png", "confusion.png")
#: Everything a report may consist of.
FILES = ("report.md", "metrics.json", *_PICTURES, "report.html")
_TITLE = "Benchmark report"


def render(manifest: Mapping[str, Any], records: Records) -> dict[str, bytes]:
    """The report's files by name; the same input gives the same bytes. ``metrics.json`` is
    :func:`scorer.bench.measures.summarise` and ``failed``, the missing answers by reason. Pictures without
    numbers are left out. Raises :class:`scorer.bench.measures.MeasureError`."""
    return _files(manifest, measures.measure(records))


def _files(manifest: Mapping[str, Any], measured: Measured) -> dict[str, bytes]:
    failed, metrics = failures(manifest), measured.metrics
    images = {name: plots.png(figure) for name, figure in plots.draw(metrics, measured.times).items()}
    text = sections(manifest, metrics, failed, images)
    return {
        "report.md": markdown(_TITLE, text).encode(),
        "metrics.json": jsonio.dumps({**metrics, "failed": failed}) + b"\n",
        **images,
        "report.html": html(_TITLE, text, images).encode(),
    }


def write(out: Path, manifest: Mapping[str, Any], records: Records, *, overwrite: bool = False) -> dict[str, Any]:
    """Write the report into ``out``, which is made where it is missing; nothing is written unless everything could be
    rendered. Returns the metrics.

    ``manifest`` is the run's: it is shown as a table, and its ``failed`` is counted
    (:func:`scorer.bench.findings.failures`). Raises FileExistsError if a file of a report is there, unless
    ``overwrite``, which also removes a picture that the new report does not have; OSError; and what :func:`render`
    raises.
    """
    there = [name for name in FILES if (out / name).exists()]
    if there and not overwrite:
        raise FileExistsError(f"{out} already holds {', '.join(there)}: give another folder, or ask to overwrite")
    measured = measures.measure(records)
    files = _files(manifest, measured)
    out.mkdir(parents=True, exist_ok=True)
    for name in there:
        (out / name).unlink()
    for name, data in files.items():
        with (out / name).open("xb") as file:
            file.write(data)
    return measured.metrics
