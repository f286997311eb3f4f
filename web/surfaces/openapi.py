"""``GET /openapi.json``: the OpenAPI document, open like ``/health``. Its bytes are made once a worker."""

from __future__ import annotations

from flask import Flask, Response, request

from shared import jsonio
from web.guard import Services
from web.observe import record_of
from web.openapi import document

__all__ = ["register"]


def register(app: Flask, services: Services) -> None:
    """Add the route."""
    body = jsonio.dumps(document())

    def openapi() -> Response:
        record_of(request.environ).facts["route"] = "/openapi.json"
        return Response(body, mimetype="application/json")

    app.add_url_rule("/openapi.json", view_func=openapi, methods=["GET"], provide_automatic_options=False)
