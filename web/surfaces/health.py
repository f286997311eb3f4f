"""``GET /health``: open, never waits for a call, 200 only while the scorer is ready to take one (INV-2)."""

from __future__ import annotations

from typing import Any

from flask import Flask, Response, request

from shared.wire import EngineInfo
from web.errors import ApiError
from web.guard import Services, json_response
from web.observe import record_of
from web.schemas.decisions import MOST_CHOICES, MOST_LEVELS, MOST_QUESTIONS
from web.schemas.systemone import JEV_LEVELS, JEV_OPTIONS, JEV_QUESTIONS
from web.scorer_client import engine_of
from web.surfaces.systemone import profile_of

__all__ = ["register"]

_CHUNKING = (
    "each wave of orderings is packed greedily, in request order, into calls of at most {most} questions; "
    "every call of a request runs back to back"
)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    def health() -> Response:
        record_of(request.environ).facts["route"] = "/health"
        reply, status = services.scorer.status()
        if status.get("state") != "ready":
            raise ApiError("scorer_unavailable", f"the scorer is {status.get('state', 'not ready')}")
        info = engine_of(status)
        settings = services.settings
        return json_response(
            {
                "status": "ok",
                "model": info.model,
                "vram_cap_gib": info.vram_cap_gib,
                "max_tokens": info.limits.tokens,
                "max_decisions": settings.max_decisions,
                "max_questions_per_call": info.limits.questions,
                "chunking": _CHUNKING.format(most=info.limits.questions),
                "workloads": [],
                "endpoints": ["/decide", "/decide/shared", "/v1/systemone", "/v1/decisions"],
                "systemone": _systemone(services, info),
                "decisions": {
                    "max_questions": min(info.limits.request_questions, MOST_QUESTIONS),
                    "max_options": min(info.limits.options, MOST_CHOICES),
                    "max_levels": min(info.limits.levels, MOST_LEVELS),
                    "images": "not supported",
                    "max_tokens": info.limits.tokens,
                    "max_request_tokens": info.limits.request_tokens,
                },
                "engine": info.engine,
                "served_model": info.served_model,
                "device": info.device,
                "max_queue": settings.max_queue,
                "slots_in_use": services.slots.in_use(),
                "max_concurrent_decisions": settings.max_concurrent_decisions,
                "decisions_in_progress": services.decision_slots.in_use() if services.decision_slots else None,
                "queue_length": status.get("queue_length"),
                "busy_seconds": status.get("busy_seconds"),
                "uptime_seconds": status.get("uptime_seconds"),
                "memory": status.get("memory"),
                "counters": status.get("counters"),
                "boot_id": reply.boot_id,
            }
        )

    app.add_url_rule("/health", view_func=health, methods=["GET"], provide_automatic_options=False)


def _systemone(services: Services, info: EngineInfo) -> dict[str, Any]:
    """The contract's discovery block, with the limits of the profile in force."""
    profile = profile_of(services, info)
    limits = info.limits
    if profile == "native":
        questions, options = limits.questions, min(services.settings.native_max_options, limits.options)
        levels = options
    else:
        questions = min(limits.request_questions, JEV_QUESTIONS)
        options, levels = min(limits.options, JEV_OPTIONS), min(limits.levels, JEV_LEVELS)
    return {
        "max_questions": questions,
        "chunking": "none",
        "images": "not supported",
        "max_tokens": limits.tokens,
        "max_request_tokens": limits.request_tokens,
        "max_long_request_tokens": limits.long_request_tokens,
        "profile": profile,
        "max_options": options,
        "max_levels": levels,
    }
