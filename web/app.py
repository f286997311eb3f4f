"""The application factory: wiring only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flask import Flask, Request, Response, request
from flask.sessions import NullSession, SessionInterface
from werkzeug.exceptions import HTTPException
from werkzeug.routing import MapAdapter

from shared import logs
from shared.rundir import RunDir
from shared.settings import WebSettings
from shared.slots import SlotTable
from web.auth import BearerAuth
from web.body import BodyReader
from web.errors import ApiError, kind_of_status, render
from web.guard import Services
from web.metric_files import MetricFiles
from web.metrics import Metrics, is_shared
from web.observe import Observed, record_of
from web.scorer_client import ScorerClient
from web.surfaces import SURFACES

__all__ = ["create_app"]

_log = logging.getLogger("web.app")

#: Where OpenAI's clients post to when their base_url lacks the /v1. No alias: the path is kept for another surface.
_HINTS = {"/decisions": "there is no such path; OpenAI's decisions are at /v1/decisions, so let base_url end in /v1"}


class _App(Flask):
    """Flask without the steps around a view that nothing here uses, 4 % of the web tier's instructions for a small
    request: no view is async, no hook runs before or after a request, and no route depends on a host."""

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Matches by path and method alone.

        Nothing here changes protocols, and a server may pass an offer over (RFC 9110 §7.8): from the whole environment
        werkzeug would look for a WebSocket's route, and call the request bad.
        """
        if request is None:
            return None
        return self.url_map.bind("", path_info=request.path, default_method=request.method)

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """The function as it is."""
        return func

    def preprocess_request(self) -> None:
        """Nothing to do."""

    def process_response(self, response: Response) -> Response:
        """The response as it is."""
        return response


class _NoSessions(SessionInterface):
    """There are no sessions, so none is opened."""

    _NONE = NullSession()

    def open_session(self, app: Flask, request: Request) -> NullSession:
        """The one that holds nothing."""
        return self._NONE


def create_app(settings: WebSettings, scorer: ScorerClient | None = None, slots: SlotTable | None = None) -> Flask:
    """The WSGI application. ``scorer`` and ``slots`` default to those of the settings' run directory.

    Raises RunDirError or SlotFileError when that directory cannot be used.
    """
    run_dir = RunDir(settings.run_dir)
    cap = settings.max_concurrent_decisions
    services = Services(
        settings=settings,
        auth=BearerAuth(settings.api_token),
        slots=slots or SlotTable(run_dir.slots, settings.max_queue),
        decision_slots=SlotTable(run_dir.decision_slots, cap, "MAX_CONCURRENT_DECISIONS") if cap else None,
        body=BodyReader(settings.max_body_bytes, settings.body_deadline_s, max_drains=settings.threads // 2),
        scorer=scorer or ScorerClient(run_dir.endpoint),
        metrics=None if settings.metrics == "off" else _metrics(run_dir),
    )
    app = _App("web", static_folder=None)
    # A redirect would be an HTML page, and some clients turn a redirected POST into a GET.
    app.url_map.merge_slashes = False
    app.session_interface = _NoSessions()
    app.extensions["decision"] = services
    for surface in SURFACES:
        surface.register(app, services)
    _register_errors(app, services.body)
    app.wsgi_app = Observed(app.wsgi_app, services.metrics)  # type: ignore[method-assign]
    return app


def _metrics(run_dir: RunDir) -> Metrics | None:
    if not is_shared():
        return Metrics()
    files = MetricFiles(run_dir.metrics)
    try:
        files.reserve()
    except OSError as error:
        # A full disk must not stop the service.
        _log.error("no metrics in this worker", extra={"fields": {"reason": error.strerror}})
        return None
    return Metrics(files)


def _register_errors(app: Flask, body: BodyReader) -> None:
    """Every error, Flask's own included, leaves through one function (web.errors.render)."""

    def answer(error: ApiError) -> Response:
        environ = request.environ
        record_of(environ).facts["code"] = error.kind
        status, headers, text = render(error, request.path)
        response = Response(text, status, mimetype="application/json")
        response.headers.extend(headers)
        if not environ.get("decision.body_read"):
            # Answer first, drain after (architecture.md §1.9): a client that writes its whole body before it reads
            # would otherwise see a broken pipe instead of this answer.
            response.call_on_close(lambda: body.drain(environ))
        return response

    def framework_error(error: HTTPException) -> Response:
        kind = kind_of_status(error.code or 500)
        hint = _HINTS.get(request.path) if kind == "not_found" else None
        known = ApiError(kind, hint or error.description or "the request cannot be served")
        known.headers = tuple((name, value) for name, value in error.get_headers() if name == "Allow")
        return answer(known)

    def bug(error: Exception) -> Response:
        # Whatever is left is a mistake of ours; the caller learns no more than that. Once the engine has answered, it
        # is a failure of building the response, which INV-1 counts as scoring_failed.
        record = record_of(request.environ)
        _log.error("unexpected error", extra={"fields": {"request_id": record.request_id, **logs.frames(error)}})
        kind = "scoring_failed" if "score_ms" in record.facts else "internal_error"
        return answer(ApiError(kind, "the server failed on this request"))

    app.register_error_handler(ApiError, answer)
    app.register_error_handler(HTTPException, framework_error)
    app.register_error_handler(Exception, bug)
