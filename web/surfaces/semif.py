"""``POST /decide`` and ``POST /decide/shared``: the surface kept from semif-serve (contract § Endpoints, § Mapping)."""

from __future__ import annotations

from typing import Any

from flask import Flask

from shared.wire import EngineInfo
from web import assemble
from web.errors import ApiError
from web.guard import Admitted, Services, post_route
from web.plan import Plan, plan_decisions
from web.schemas.base import load
from web.schemas.semif import check_rows, decide_schema, shared_schema

__all__ = ["register"]


def register(app: Flask, services: Services) -> None:
    """Add the two routes."""
    post_route(app, services, "/decide", _decide)
    post_route(app, services, "/decide/shared", _shared)


def _decide(admitted: Admitted) -> Any:
    decision = load(decide_schema(admitted.engine().limits.options), admitted.body)
    return _scored(admitted, decision["state"], [decision], single=True)


def _shared(admitted: Admitted) -> Any:
    loaded = load(shared_schema(admitted.engine().limits.options), admitted.body)
    return _scored(admitted, loaded["state"], loaded["decisions"], single=False)


def _scored(admitted: Admitted, state: Any, decisions: list[dict[str, Any]], single: bool) -> Any:
    check_rows(decisions, admitted.services.settings.max_decisions)

    def make(info: EngineInfo) -> Plan:
        return plan_decisions(state, decisions, info.limits.questions)

    plan, scored, info = admitted.score(make)
    seconds = scored.reply.score_ms / 1000
    try:
        if single:
            return assemble.decide_result(plan, decisions[0], scored.calls, info, seconds)
        return assemble.shared_result(plan, decisions, scored.calls, info, seconds)
    except assemble.BrokenAnswer as broken:
        raise ApiError("scoring_failed", str(broken)) from None
