"""``GET /metrics``: Prometheus text. The web tier's counts over all workers, and the scorer's own numbers as its status
reply tells them at this moment; without a scorer it says so and is a 200 all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flask import Flask, Response, request
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from shared import wire
from web.errors import ApiError
from web.guard import Services
from web.metrics import CONTENT_TYPE, PREFIX
from web.observe import record_of

__all__ = ["register", "scorer_families"]

#: Told from the first scrape on, as 0: a rate misses the step of a series from nothing to 1.
_STATUSES = (wire.OK, wire.INVALID, wire.OUT_OF_MEMORY, wire.FAILED, wire.EXPIRED, wire.BAD_MESSAGE)
_SCORER = f"{PREFIX}scorer_"


def register(app: Flask, services: Services) -> None:
    """Add the route, unless METRICS is ``off``."""
    metrics = services.metrics
    if metrics is None:
        return

    def scrape() -> Response:
        record_of(request.environ).facts["route"] = "/metrics"
        if services.settings.metrics == "token":
            services.auth.check(request.environ.get("HTTP_AUTHORIZATION"))
        try:
            status = services.scorer.status()[1]
        except ApiError:
            status = None
        more = [
            GaugeMetricFamily(f"{PREFIX}slots", "POSTs that may be in progress.", services.settings.max_queue),
            GaugeMetricFamily(f"{PREFIX}slots_in_use", "POSTs in progress.", services.slots.in_use()),
            *_decision_slots(services),
            *scorer_families(status),
        ]
        return Response(metrics.render(more), content_type=CONTENT_TYPE)

    app.add_url_rule("/metrics", view_func=scrape, methods=["GET"], provide_automatic_options=False)


def _decision_slots(services: Services) -> Iterator[Metric]:
    """Nothing without MAX_CONCURRENT_DECISIONS."""
    slots = services.decision_slots
    if slots is not None:
        yield GaugeMetricFamily(f"{PREFIX}decision_slots", "Capped POSTs that may be in progress.", slots.size)
        yield GaugeMetricFamily(f"{PREFIX}decision_slots_in_use", "Capped POSTs in progress.", slots.in_use())


def scorer_families(status: Mapping[str, Any] | None) -> Iterator[Metric]:
    """The scorer's metrics from the payload of its status reply (scorer.broker), None when there is none. What a scorer
    of another release does not tell is left out."""
    yield GaugeMetricFamily(f"{_SCORER}up", "1 when the scorer answers.", int(status is not None))
    if status is None:
        return
    yield GaugeMetricFamily(f"{_SCORER}ready", "1 when it takes jobs.", int(status.get("state") == "ready"))
    told = _numbers(status)
    for name, source, text in (
        ("job_seconds", "busy_seconds", "Time the running job has taken so far; 0 when none runs."),
        ("queue_length", "queue_length", "Jobs that wait."),
        ("uptime_seconds", "uptime_seconds", "Time since its start."),
    ):
        if source in told:
            yield GaugeMetricFamily(f"{_SCORER}{name}", text, told[source])
    if "busy_seconds" in told:
        yield GaugeMetricFamily(f"{_SCORER}busy", "1 while a job runs.", int(told["busy_seconds"] > 0))
    if "busy_total_seconds" in told:
        yield CounterMetricFamily(f"{_SCORER}busy_seconds", "Time on jobs that are over.", told["busy_total_seconds"])
    memory = GaugeMetricFamily(f"{_SCORER}memory_bytes", "The engine's memory counters.", labels=["kind"])
    for kind, value in sorted(_numbers(status.get("memory")).items()):
        memory.add_metric([kind.removesuffix("_bytes")], value)
    yield memory
    counters = _numbers(status.get("counters"))
    for name, text in (
        ("bad_messages", "Messages that are not of the protocol."),
        ("abandoned_replies", "Replies whose asker had left."),
    ):
        if name in counters:
            yield CounterMetricFamily(f"{_SCORER}{name}", text, counters[name])
    jobs = CounterMetricFamily(f"{_SCORER}jobs", "Jobs taken up, by the status of the reply.", labels=["status"])
    for job_status in _STATUSES:
        jobs.add_metric([job_status], counters.get(job_status, 0))
    yield jobs


def _numbers(value: Any) -> dict[str, float]:
    found = value.items() if isinstance(value, Mapping) else ()
    return {name: item for name, item in found if type(item) in (int, float)}
