"""The web tier's own metrics: what is counted, once a request, and the text of a scrape.

Names follow Prometheus's conventions: one prefix, base units, ``_total`` on counters. Labels are a route's template, a
status and a code of ours, so their number is bounded; never an id, never a text of a caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, values
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from web.metric_files import MetricFiles

__all__ = ["CONTENT_TYPE", "PREFIX", "Metrics", "is_shared"]

PREFIX = "intern_decision_"
CONTENT_TYPE = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4

#: From a fraction of the small engine's answer to beyond the default budget of a request.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_NUMBER = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (64, 256, 1024, 2048, 4096, 8192, 16384, 65536, 262144, 1048576)

#: Histograms of scored requests: name, help, bounds, the fact that is counted, and how many of it are one unit.
_SCORED = (
    ("queue_seconds", "Wait of scored requests for the model.", _SECONDS, "queue_ms", 1000),
    ("score_seconds", "Time of scored requests on the model.", _SECONDS, "score_ms", 1000),
    ("request_calls", "Calls of the model in a scored request.", _NUMBER, "calls", 1),
    ("request_questions", "Questions asked in a scored request.", _NUMBER, "questions", 1),
    ("request_input_tokens", "Tokens read for a scored request.", _TOKENS, "input_tokens", 1),
)


def is_shared() -> bool:
    """Whether this process counts in files that other workers read too: conf/gunicorn.conf.py set
    PROMETHEUS_MULTIPROC_DIR before prometheus-client was imported."""
    return values.ValueClass is not values.MutexValue


class Metrics:
    """Counts requests. ``files`` is given when :func:`is_shared`; without it the counts are this process's alone."""

    def __init__(self, files: MetricFiles | None = None) -> None:
        self._files = files
        # The time at which a series was made is of no use to anybody here, and is not kept in files.
        prometheus_client.disable_created_metrics()
        self._registry = CollectorRegistry()
        self._requests = Counter(
            f"{PREFIX}http_requests", "Responses sent.", ["route", "status", "code"], registry=self._registry
        )
        self._duration = self._histogram(
            "http_request_duration_seconds", "From request to answer.", _SECONDS, ["route", "status_class"]
        )
        self._scored = [
            (self._histogram(name, text, bounds, ["route"]), fact, per) for name, text, bounds, fact, per in _SCORED
        ]
        # Resolved once per combination: finding the child of some labels costs as much as counting in it.
        self._known: dict[tuple[str, int, str], tuple[Counter, Histogram]] = {}
        self._known_scored: dict[str, list[tuple[Histogram, str, int]]] = {}

    def observe(self, route: str, status: int, ms: float, facts: Mapping[str, Any]) -> None:
        """Count one response. ``route`` is a template, ``ms`` milliseconds, ``facts`` those of the access line."""
        key = (route, status, facts.get("code", "ok"))
        count, duration = self._known.get(key) or self._resolve(key)
        count.inc()
        duration.observe(ms / 1000)
        if "score_ms" in facts:
            for histogram, fact, per in self._known_scored.get(route) or self._resolve_scored(route):
                histogram.observe(facts[fact] / per)

    def render(self, more: Iterable[Metric] = ()) -> bytes:
        """The text of a scrape: every worker's counts, then ``more``."""
        own = self._files.read() if self._files else self._registry.collect()
        return prometheus_client.generate_latest(_Families([*own, *more]))

    def _resolve(self, key: tuple[str, int, str]) -> tuple[Counter, Histogram]:
        route, status, code = key
        children = (
            self._requests.labels(route, str(status), code),
            self._duration.labels(route, f"{status // 100}xx"),
        )
        self._known[key] = children
        return children

    def _resolve_scored(self, route: str) -> list[tuple[Histogram, str, int]]:
        """Made at a route's first scored request: one that scores nothing has nothing to tell of it."""
        children = [(histogram.labels(route), fact, per) for histogram, fact, per in self._scored]
        self._known_scored[route] = children
        return children

    def _histogram(self, name: str, text: str, bounds: Sequence[float], labels: Sequence[str]) -> Histogram:
        return Histogram(f"{PREFIX}{name}", text, labels, buckets=bounds, registry=self._registry)


class _Families(Collector):
    """Metrics that are there already, as the writer of the text wants them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """The metrics."""
        return self._families
