"""``POST /decide`` and ``POST /decide/shared``: the surface kept from semif-serve (contract § Endpoints, § Mapping)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flask import Flask

from shared.wire import EngineInfo, Job
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
    def read(info: EngineInfo) -> tuple[Any, list[dict[str, Any]]]:
        decision = load(decide_schema(info.limits.options), admitted.body)
        return decision["state"], [decision]

    asked, scored, info = _score(admitted, read)
    with _built():
        return assemble.decide_result(asked.plan, asked.decisions[0], scored.calls, info, scored.reply.score_ms / 1000)


def _shared(admitted: Admitted) -> Any:
    def read(info: EngineInfo) -> tuple[Any, list[dict[str, Any]]]:
        loaded = load(shared_schema(info.limits.options), admitted.body)
        return loaded["state"], loaded["decisions"]

    asked, scored, info = _score(admitted, read)
    with _built():
        return assemble.shared_result(asked.plan, asked.decisions, scored.calls, info, scored.reply.score_ms / 1000)


@dataclass(frozen=True)
class _Asked:
    decisions: list[dict[str, Any]]
    plan: Plan

    @property
    def job(self) -> Job:
        return self.plan.job


def _score(admitted: Admitted, read: Callable[[EngineInfo], tuple[Any, list[dict[str, Any]]]]) -> Any:
    """Validate, plan and score; all of it under the limits of the scorer that answers."""

    def make(info: EngineInfo) -> _Asked:
        state, decisions = read(info)
        check_rows(decisions, admitted.services.settings.max_decisions)
        return _Asked(decisions, plan_decisions(state, decisions, info.limits.questions))

    return admitted.score(make)


@contextmanager
def _built() -> Iterator[None]:
    try:
        yield
    except assemble.BrokenAnswer as broken:
        raise ApiError("scoring_failed", str(broken)) from None
