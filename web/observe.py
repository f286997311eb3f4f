"""Request ids, the access line and the counts: a WSGI layer around the application, so that every response has
them, errors included."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from werkzeug.wsgi import ClosingIterator

from web.metrics import Metrics
from web.turn import NO_TURN, TURN, Turn

__all__ = ["Observed", "RequestRecord", "record_of"]

_RECORD = "decision.record"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_log = logging.getLogger("web.access")


@dataclass
class RequestRecord:
    """What the access line tells of one request: ids, counts and times, never a text of the caller's.

    ``started`` is monotonic seconds, ``ms`` the time to the answer; ``facts`` are added by whoever learns them.
    """

    request_id: str
    started: float
    ms: float = 0.0
    status: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


def record_of(environ: dict[str, Any]) -> RequestRecord:
    """The record of the request that this WSGI environment belongs to."""
    record: RequestRecord = environ[_RECORD]
    return record


class Observed:
    """WSGI middleware. A caller's ``X-Request-ID`` is kept when it is safe to log, else a new id is made; it goes back
    as
    ``X-Request-ID`` and, for the Jev SDK, as ``x-typesafe-request-id``."""

    def __init__(self, app: Callable[..., Iterable[bytes]], metrics: Metrics | None = None) -> None:
        self._app = app
        self._metrics = metrics
        self._computing = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serve one request, write its line and count it."""
        given = environ.get("HTTP_X_REQUEST_ID", "")
        request_id = given if _SAFE_ID.fullmatch(given) else f"req_{os.urandom(16).hex()}"
        record = RequestRecord(request_id, time.monotonic())
        environ[_RECORD] = record
        # What only reads, /health above all, is quick and waits for nobody, nor does its next request on a connection.
        turn = environ[TURN] = Turn(self._computing) if environ["REQUEST_METHOD"] == "POST" else NO_TURN

        def respond(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            record.status = int(status[:3])
            headers += [
                ("X-Request-ID", request_id),
                ("x-typesafe-request-id", request_id),
                ("Cache-Control", "no-store"),
            ]
            return start_response(status, headers, exc_info)

        try:
            body = self._app(environ, respond)
        except BaseException:  # whatever it is: nothing is returned, so nothing will be closed
            turn.give()
            raise
        record.ms = 1000 * (time.monotonic() - record.started)
        # Once the answer is out: the caller does not wait for it.
        return ClosingIterator(body, lambda: self._tell(environ["REQUEST_METHOD"], record, turn))

    def _tell(self, method: str, record: RequestRecord, turn: Turn) -> None:
        route = record.facts.pop("route", "none")
        try:
            _write_line(method, route, record)
            if self._metrics is not None:
                self._metrics.observe(route, record.status, record.ms, record.facts)
        finally:
            turn.give()


def _write_line(method: str, route: str, record: RequestRecord) -> None:
    _log.info(
        "request",
        extra={
            "fields": {
                "request_id": record.request_id,
                # A method is a token of the caller's own choice; one that no route has is not repeated.
                "method": method if method in _METHODS else "other",
                "route": route,
                "status": record.status,
                "ms": round(record.ms, 3),
                **record.facts,
            }
        },
    )
