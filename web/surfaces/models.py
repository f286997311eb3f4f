"""``GET /v1/models``, in one body for two kinds of client: Jev's ``models`` and OpenAI's ``data`` (wire/systemone.md
§7, 6)."""

from __future__ import annotations

import calendar
import time

from flask import Flask, Response, request

from web.guard import Services, json_response
from web.observe import record_of

__all__ = ["register"]


def register(app: Flask, services: Services) -> None:
    """Add the route; it takes the same bearer as the POSTs."""

    def models() -> Response:
        record_of(request.environ).facts["route"] = "/v1/models"
        services.auth.check(request.environ.get("HTTP_AUTHORIZATION"))
        info = services.scorer.describe(afresh=True).info
        # A release that names no date is old to one kind of client and undated to the other.
        created = calendar.timegm(time.strptime(info.release_date, "%Y-%m-%d")) if info.release_date else 0
        return json_response(
            {
                "models": [
                    {
                        "name": info.served_model,
                        "description": info.description,
                        "release_date": info.release_date or "unknown",
                    },
                ],
                "object": "list",
                "data": [{"id": info.served_model, "object": "model", "created": created, "owned_by": info.engine}],
            }
        )

    app.add_url_rule("/v1/models", view_func=models, methods=["GET"], provide_automatic_options=False)
