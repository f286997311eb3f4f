"""``GET /ready``: open, for load balancers: should this server get the next request?

Less than ``/health``, and asked more often: it tells nothing of the model, reads nothing but the scorer's state, and
is 503 too while the worker that answers it is shutting down, when ``/health`` still speaks for the scorer. A full queue
is no reason: that is a 429, and over in a moment.
"""

from __future__ import annotations

from flask import Flask, Response, request

from web.errors import ApiError
from web.guard import Services, json_response
from web.observe import record_of

__all__ = ["STOPPING", "register"]

#: Name in ``app.extensions`` of a function that says whether this worker is shutting down; set by
#: conf/gunicorn.conf.py.
STOPPING = "decision.stopping"


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    def ready() -> Response:
        record_of(request.environ).facts["route"] = "/ready"
        if app.extensions.get(STOPPING, bool)():
            raise ApiError("scorer_unavailable", "this worker is shutting down")
        _, status = services.scorer.status()
        if status.get("state") != "ready":
            raise ApiError("scorer_unavailable", f"the scorer is {status.get('state', 'not ready')}")
        return json_response({"ready": True})

    app.add_url_rule("/ready", view_func=ready, methods=["GET"], provide_automatic_options=False)
