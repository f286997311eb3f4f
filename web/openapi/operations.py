"""The table of operations in the OpenAPI document: one row a route. A test compares it with the routes that the
application has, so a new surface adds its rows here. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOT_ITS_OWN", "OPERATIONS", "Operation"]

#: Kinds that no documented operation answers: those of other paths and methods, of what is not HTTP, and the one that
#: nobody is there to read.
NOT_ITS_OWN = ("bad_request", "not_found", "method_not_allowed", "client_closed_request")

_GUARD = ("unauthorized", "request_timeout", "request_too_large", "unsupported_media_type", "invalid_request", "busy")
_SCORING = ("scoring_failed", "internal_error", "out_of_memory", "scorer_unavailable", "deadline_exceeded")


@dataclass(frozen=True)
class Operation:
    """One row. ``body`` and ``answer`` name components (any of them, where there are several), ``errors`` are keys of
    web.errors.KINDS; ``public`` ones need no bearer."""

    method: str
    path: str
    name: str
    summary: str
    answer: tuple[str, ...]
    errors: tuple[str, ...]
    body: tuple[str, ...] = ()
    public: bool = False
    media: str = "application/json"


OPERATIONS = (
    Operation(
        "POST",
        "/decide",
        "decide",
        "One decision, in one order of its options or several",
        ("DecideResult", "AveragedResult"),
        _GUARD + _SCORING,
        body=("Decide",),
    ),
    Operation(
        "POST",
        "/decide/shared",
        "decideShared",
        "Many decisions over one state",
        ("SharedResult",),
        _GUARD + _SCORING,
        body=("DecideShared",),
    ),
    Operation(
        "POST",
        "/v1/systemone",
        "systemOne",
        "Jev's wire; the server's profile (jev or native, see /health) chooses the body and the answer",
        ("SystemOneJevResult", "SystemOneNativeResult"),
        ("model_not_found", *_GUARD, *_SCORING, "overloaded"),
        body=("SystemOneJev", "SystemOneNative"),
    ),
    Operation(
        "POST",
        "/v1/decisions",
        "decisions",
        "OpenAI's decisions, for text; names that the grammar does not have are refused",
        ("DecisionsResult",),
        ("model_not_found", *_GUARD, *_SCORING, "overloaded"),
        body=("Decisions",),
    ),
    Operation(
        "GET",
        "/v1/models",
        "models",
        "The model that is served, in Jev's and in OpenAI's shape",
        ("Models",),
        ("unauthorized", "internal_error", "scorer_unavailable"),
    ),
    Operation(
        "GET",
        "/health",
        "health",
        "200 while the scorer is ready: limits, pins, queue, memory",
        ("Health",),
        ("internal_error", "scorer_unavailable"),
        public=True,
    ),
    Operation(
        "GET",
        "/ready",
        "ready",
        "For balancers: whether this server should get the next request",
        ("Ready",),
        ("internal_error", "scorer_unavailable"),
        public=True,
    ),
    Operation(
        "GET",
        "/metrics",
        "metrics",
        "Prometheus text; the server may be set to serve it open or not at all",
        ("Metrics",),
        ("unauthorized", "internal_error"),
        media="text/plain; version=0.0.4; charset=utf-8",
    ),
    Operation("GET", "/openapi.json", "openapi", "This document", ("OpenAPI",), ("internal_error",), public=True),
)
