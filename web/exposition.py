"""Prometheus's text format 0.0.4, written. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["CONTENT_TYPE", "PREFIX", "Family", "write"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "intern_decision_"


@dataclass
class Family:
    """One metric: ``kind`` is counter, gauge or histogram, ``name`` comes without the prefix and, for a counter, with
    ``_total``."""

    kind: str
    name: str
    text: str
    samples: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> Family:
        """Add a sample."""
        self.samples.append(("", labels, value))
        return self

    def add_histogram(self, bounds: Sequence[float], cells: Sequence[float], **labels: str) -> None:
        """Add the samples of a histogram: ``cells`` is the sum, then the count in each bucket, the last one open."""
        below = 0.0
        for bound, count in zip([*map(_number, bounds), "+Inf"], cells[1:], strict=True):
            below += count
            self.samples.append(("_bucket", {**labels, "le": bound}, below))
        self.samples.append(("_sum", labels, cells[0]))
        self.samples.append(("_count", labels, below))


def write(families: Iterable[Family]) -> bytes:
    """The text."""
    lines: list[str] = []
    for family in families:
        name = PREFIX + family.name
        lines += [f"# HELP {name} {family.text}", f"# TYPE {name} {family.kind}"]
        for suffix, labels, value in family.samples:
            inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            lines.append(f"{name}{suffix}{{{inner}}} {_number(value)}" if inner else f"{name}{suffix} {_number(value)}")
    return "\n".join([*lines, ""]).encode()


def _number(value: float) -> str:
    return repr(int(value) if value == int(value) else value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
