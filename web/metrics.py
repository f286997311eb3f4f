"""The web tier's own metrics: what is counted, once a request, and what a scrape tells of it.

Labels are a route's template, a status and a code of ours, so their number is bounded; never an id, never a text of a
caller's.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from web.exposition import Family
from web.metric_files import CELLS, MetricFiles

__all__ = ["Metrics"]

#: From a fraction of the small engine's answer to beyond the default budget of a request.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_NUMBER = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (64, 256, 1024, 2048, 4096, 8192, 16384, 65536, 262144, 1048576)


class _Measure:
    """A histogram. In a row of the files its cells are, from ``at`` on, its sum, a count for each bucket, and one for
    what is over the last bound."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], of: Callable[[Mapping[str, Any]], float]) -> None:
        self.name = name
        self.text = text
        self.bounds = bounds
        self.of = of
        self.size = len(bounds) + 2
        self.at = 0

    def count(self, row: memoryview[float], value: float) -> None:
        """Add one value."""
        row[self.at] += value
        row[self.at + 1 + bisect_left(self.bounds, value)] += 1


#: The time of every response, and what is known of those that were scored.
_DURATION = _Measure("http_request_duration_seconds", "From request to answer.", _SECONDS, lambda facts: 0.0)
_SCORED = (
    _Measure("queue_seconds", "Wait of scored requests for the model.", _SECONDS, lambda f: f["queue_ms"] / 1000),
    _Measure("score_seconds", "Time of scored requests on the model.", _SECONDS, lambda f: f["score_ms"] / 1000),
    _Measure("request_calls", "Calls of the model in a scored request.", _NUMBER, lambda f: f["calls"]),
    _Measure("request_questions", "Questions asked in a scored request.", _NUMBER, lambda f: f["questions"]),
    _Measure("request_input_tokens", "Tokens read for a scored request.", _TOKENS, lambda f: f["input_tokens"]),
)
_ALL = (_DURATION, *_SCORED)
for _earlier, _later in pairwise(_ALL):
    _later.at = _earlier.at + _earlier.size
assert _ALL[-1].at + _ALL[-1].size <= CELLS


class Metrics:
    """Counts requests in this worker's file of ``files``. Raises OSError when there can be none."""

    def __init__(self, files: MetricFiles) -> None:
        self._files = files
        self._own = files.own()
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, int, str], memoryview[float] | None] = {}

    def observe(self, route: str, status: int, ms: float, facts: Mapping[str, Any]) -> None:
        """Count one response. ``route`` is a template, ``ms`` milliseconds, ``facts`` those of the access line."""
        key = (route, status, facts.get("code", "ok"))
        with self._lock:
            if key not in self._rows:
                self._rows[key] = self._own.row(f"{route} {status} {key[2]}")
            row = self._rows[key]
            if row is None:
                return
            _DURATION.count(row, ms / 1000)
            if "score_ms" in facts:
                for measure in _SCORED:
                    measure.count(row, measure.of(facts))

    def families(self) -> list[Family]:
        """What all workers have counted."""
        requests = Family("counter", "http_requests_total", "Responses sent.")
        sums: dict[tuple[_Measure, str, str], Sequence[float]] = {}
        for label, row in sorted(self._files.read().items()):
            route, status, code = label.split(" ")
            requests.add(sum(_cells(row, _DURATION)[1:]), route=route, status=status, code=code)
            for measure in _ALL:
                key = (measure, route, f"{status[0]}xx" if measure is _DURATION else "")
                cells, before = _cells(row, measure), sums.get(key)
                sums[key] = cells if before is None else [a + b for a, b in zip(before, cells, strict=True)]
        histograms = {measure: Family("histogram", measure.name, measure.text) for measure in _ALL}
        for (measure, route, status_class), cells in sums.items():
            labels = {"route": route, "status_class": status_class} if status_class else {"route": route}
            if any(cells[1:]):  # a route that scores nothing has nothing to tell of it
                histograms[measure].add_histogram(measure.bounds, cells, **labels)
        return [requests, *histograms.values()]


def _cells(row: Sequence[float], measure: _Measure) -> Sequence[float]:
    return row[measure.at : measure.at + measure.size]
