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

from web.metric_files import MetricFiles

__all__ = ["CONTENT_TYPE", "PREFIX", "Metrics", "is_shared"]

PREFIX = "intern_decision_"
CONTENT_TYPE = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4

#: From a fraction of the small engine's answer to beyond the default budget of a request.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_NUMBER = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (64, 256, 1024, 2048, 4096, 8192, 16384, 65536, 262144, 1048576)


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
        self._queue = self._histogram("queue_seconds", "Scored requests: wait for the model.", _SECONDS)
        self._score = self._histogram("score_seconds", "Scored requests: time on the model.", _SECONDS)
        self._calls = self._histogram("request_calls", "Scored requests: calls of the model.", _NUMBER)
        self._questions = self._histogram("request_questions", "Scored requests: questions asked.", _NUMBER)
        self._tokens = self._histogram("request_input_tokens", "Scored requests: tokens read.", _TOKENS)
        self._known: dict[tuple[str, int, str], tuple[Counter, Histogram]] = {}

    def observe(self, route: str, status: int, ms: float, facts: Mapping[str, Any]) -> None:
        """Count one response. ``route`` is a template, ``ms`` milliseconds, ``facts`` those of the access line."""
        key = (route, status, facts.get("code", "ok"))
        # Looked up once per combination: resolving labels costs more than counting.
        count, duration = self._known.get(key) or self._resolve(key)
        count.inc()
        duration.observe(ms / 1000)
        if "score_ms" in facts:
            self._queue.observe(facts["queue_ms"] / 1000)
            self._score.observe(facts["score_ms"] / 1000)
            self._calls.observe(facts["calls"])
            self._questions.observe(facts["questions"])
            self._tokens.observe(facts["input_tokens"])

    def render(self, more: Iterable[Metric] = ()) -> bytes:
        """The text of a scrape: every worker's counts, then ``more``."""
        own = self._files.read() if self._files else list(self._registry.collect())
        return prometheus_client.generate_latest(_Families([*own, *more]))

    def _resolve(self, key: tuple[str, int, str]) -> tuple[Counter, Histogram]:
        route, status, code = key
        children = (
            self._requests.labels(route, str(status), code),
            self._duration.labels(route, f"{status // 100}xx"),
        )
        self._known[key] = children
        return children

    def _histogram(self, name: str, text: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
        return Histogram(f"{PREFIX}{name}", text, labels, buckets=bounds, registry=self._registry)


class _Families(prometheus_client.registry.Collector):
    """Metrics that are there already, as the writer of the text wants them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """The metrics."""
        return self._families
