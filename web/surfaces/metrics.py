"""``GET /metrics``: Prometheus text. The web tier's counts over all workers, and the scorer's own numbers as its status
reply tells them at this moment; without a scorer it says so and is a 200 all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flask import Flask, Response, request

from shared import wire
from web.errors import ApiError
from web.exposition import CONTENT_TYPE, Family, write
from web.guard import Services
from web.observe import record_of

__all__ = ["register", "scorer_families"]

#: Told from the first scrape on, as 0: a rate misses the step of a series from nothing to 1.
_STATUSES = (wire.OK, wire.INVALID, wire.OUT_OF_MEMORY, wire.FAILED, wire.EXPIRED, wire.BAD_MESSAGE)


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
        families = [
            *metrics.families(),
            Family("gauge", "slots", "POSTs that may be in progress.").add(services.settings.max_queue),
            Family("gauge", "slots_in_use", "POSTs in progress.").add(services.slots.in_use()),
            *scorer_families(status),
        ]
        return Response(write(families), content_type=CONTENT_TYPE)

    app.add_url_rule("/metrics", view_func=scrape, methods=["GET"], provide_automatic_options=False)


def scorer_families(status: Mapping[str, Any] | None) -> Iterator[Family]:
    """The scorer's metrics from the payload of its status reply (scorer.broker), None when there is none. What a scorer
    of another release does not tell is left out."""
    yield Family("gauge", "scorer_up", "1 when the scorer answers.").add(int(status is not None))
    if status is None:
        return
    yield Family("gauge", "scorer_ready", "1 when it takes jobs.").add(int(status.get("state") == "ready"))
    numbers, counters = _numbers(status), _numbers(status.get("counters"))
    if "busy_seconds" in numbers:
        yield Family("gauge", "scorer_busy", "1 while a job runs.").add(int(numbers["busy_seconds"] > 0))
    for kind, name, value, text in (
        ("gauge", "job_seconds", numbers.get("busy_seconds"), "Time the running job has taken; 0 when none runs."),
        ("gauge", "queue_length", numbers.get("queue_length"), "Jobs that wait."),
        ("gauge", "uptime_seconds", numbers.get("uptime_seconds"), "Time since its start."),
        ("counter", "busy_seconds_total", numbers.get("busy_total_seconds"), "Time on jobs that are over."),
        ("counter", "bad_messages_total", counters.get("bad_messages"), "Messages that are not of the protocol."),
        ("counter", "abandoned_replies_total", counters.get("abandoned_replies"), "Replies whose asker had left."),
    ):
        if value is not None:
            yield Family(kind, f"scorer_{name}", text).add(value)
    memory = Family("gauge", "scorer_memory_bytes", "The engine's memory counters.")
    for name, value in _numbers(status.get("memory")).items():
        memory.add(value, kind=name.removesuffix("_bytes"))
    yield memory
    jobs = Family("counter", "scorer_jobs_total", "Jobs taken up, by the status of the reply.")
    for job_status in _STATUSES:
        jobs.add(counters.get(job_status, 0), status=job_status)
    yield jobs


def _numbers(value: Any) -> dict[str, float]:
    found = value.items() if isinstance(value, Mapping) else ()
    return {name: item for name, item in found if type(item) in (int, float)}
