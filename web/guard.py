"""What every POST passes, in this order: auth (401), admission (503, 429), body (413), JSON (422), and the ask itself.

It stands in the route's own ``with`` block and not in request hooks, so that no failing hook can leak a slot
(architecture.md §1.16).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from flask import Flask, Response, request
from werkzeug.datastructures import Headers

from shared import jsonio
from shared.jsonio import InvalidJSON
from shared.settings import WebSettings
from shared.slots import Slot, SlotFileError, SlotTable
from shared.wire import EngineInfo, Job
from web.auth import BearerAuth
from web.body import BodyReader
from web.errors import ApiError, Invalid, Problem
from web.metrics import Metrics
from web.observe import RequestRecord, record_of
from web.scorer_client import Description, Scored, ScorerClient, StaleBoot
from web.turn import turn_of

__all__ = ["Admitted", "Services", "json_response", "post_route"]

#: Bytes of an answer that a connection takes without waiting for its reader: half of what Linux sets aside for one.
_MOST_SENT_AT_ONCE = 8192

_log = logging.getLogger("web.guard")


@dataclass(frozen=True)
class Services:
    """The collaborators of the application, made once by :func:`web.app.create_app`; ``metrics`` is None when they are
    off."""

    settings: WebSettings
    auth: BearerAuth
    slots: SlotTable
    decision_slots: SlotTable | None
    body: BodyReader
    scorer: ScorerClient
    metrics: Metrics | None = None


@dataclass(frozen=True)
class Admitted:
    """One admitted POST: its WSGI environment, its parsed body and what it takes to have something scored."""

    services: Services
    environ: dict[str, Any]
    body: Any
    record: RequestRecord
    _slot: Slot
    _job_id: bytes

    def score(self, make: Callable[[EngineInfo], Any]) -> tuple[Any, Scored, EngineInfo]:
        """Plan with ``make`` (which validates under the engine's limits and returns something with a ``job``) and have
        it scored.

        A scorer restarted since its description was read refuses the job before running any of it; then the plan is
        made anew, once, for the engine that runs now.
        """
        scorer = self.services.scorer
        description = scorer.describe()
        for last_try in (False, True):
            try:
                plan = make(description.info)
            except ApiError:
                # Refused under the limits of a scorer that may be gone: look again before saying so.
                current = None if last_try else _newer(scorer, description)
                if current is None:
                    raise
                description = current
                plan = make(description.info)
            job: Job = plan.job
            try:
                scored = scorer.ask(
                    job,
                    slot=self._slot.index,
                    job_id=self._job_id,
                    boot_id=description.boot_id,
                    deadline=self.record.started + self.services.settings.request_budget_s,
                    request_id=self.record.request_id,
                    caller=self.environ.get("gunicorn.socket"),
                    turn=turn_of(self.environ),
                )
            except StaleBoot:
                if last_try:
                    break
                description = scorer.describe(afresh=True)
                continue
            self.record.facts.update(
                calls=len(job.calls),
                questions=sum(map(len, job.calls)),
                input_tokens=scored.reply.input_tokens,
                queue_ms=scored.reply.queue_ms,
                score_ms=scored.reply.score_ms,
                boot_id=description.boot_id,
            )
            return plan, scored, description.info
        raise ApiError("scorer_unavailable", "the scorer was restarted twice while it was asked")


def _newer(scorer: ScorerClient, known: Description) -> Description | None:
    """The running scorer's description if it is another start's than ``known``; None also when none can be had."""
    try:
        current = scorer.describe(afresh=True)
    except ApiError:
        return None
    return current if current.boot_id != known.boot_id else None


def post_route(
    app: Flask,
    services: Services,
    path: str,
    handle: Callable[[Admitted], Any],
    *,
    capped: bool = False,
    json_only: bool = False,
) -> None:
    """Register ``POST path``; ``handle`` returns the response's object or raises ApiError. ``capped`` counts the route
    under MAX_CONCURRENT_DECISIONS, ``json_only`` refuses a Content-Type that is not JSON's."""

    def view() -> Response:
        environ = request.environ
        record = record_of(environ)
        record.facts["route"] = path
        services.auth.check(environ.get("HTTP_AUTHORIZATION"))
        job_id = os.urandom(16)
        cap = services.decision_slots if capped else None
        with (
            nullcontext() if cap is None else _admit(cap, job_id, "overloaded", "decision requests"),
            _admit(services.slots, job_id, "busy", "requests") as slot,
        ):
            record.facts["slot"] = slot.index
            raw = services.body.read(environ, json_only)
            record.facts["bytes"] = len(raw)
            # Not before: a slow caller's body would be waited for in it. It ends with the request (web.observe), unless
            # the answer is too large for any socket to take at once.
            turn = turn_of(environ)
            turn.take()
            response = json_response(handle(Admitted(services, environ, _parse(raw), record, slot, job_id)))
            if (response.content_length or 0) > _MOST_SENT_AT_ONCE:
                turn.give()
            return response

    view.__name__ = "post" + path.replace("/", "_")
    app.add_url_rule(path, view_func=view, methods=["POST"], provide_automatic_options=False)


def _admit(table: SlotTable, job_id: bytes, kind: str, what: str) -> Slot:
    try:
        slot = table.acquire(job_id)
    except (SlotFileError, OSError) as error:
        _log.error("no admission", extra={"fields": {"reason": str(error)}})
        raise ApiError("scorer_unavailable", "the server cannot admit requests; its log says why") from None
    if slot is None:
        raise ApiError(kind, f"{table.size} {what} are in progress; try again")
    return slot


def json_response(value: Any, status: int = 200) -> Response:
    """A JSON response. Raises ApiError ``scoring_failed`` for a number that is not finite: it must not leave."""
    try:
        body = jsonio.dumps(value)
    except ValueError:
        raise ApiError("scoring_failed", "the answer holds a number that is not finite") from None
    response = _Complete(body, status, mimetype="application/json")
    response.headers["Content-Length"] = str(len(body))
    return response


class _Complete(Response):
    """A response that is complete when it is made: nothing is worked out when it is sent or done when it is closed."""

    def get_wsgi_headers(self, environ: Any) -> Headers:
        """The headers as they are."""
        return self.headers

    def get_app_iter(self, environ: Any) -> Any:
        """The body in one piece."""
        return () if environ["REQUEST_METHOD"] == "HEAD" else self.response


def _parse(raw: bytes) -> Any:
    try:
        return jsonio.loads(raw)
    except InvalidJSON as error:
        raise Invalid([Problem((error.offset,), str(error), "json_invalid")]) from None
