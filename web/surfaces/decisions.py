"""``POST /v1/decisions``: OpenAI's Decisions API for text, on every engine (design §5, wire/decisions.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flask import Flask

from shared.wire import EngineInfo, Job, Terms
from web.assemble import BrokenAnswer, check_call
from web.decisions import openai_answer, openai_usage, plain_question, state_of
from web.errors import ApiError, Invalid, Problem
from web.guard import Admitted, Services, post_route
from web.plan import plan_independent
from web.schemas.base import load
from web.schemas.decisions import decisions_schema
from web.surfaces.systemone import check_model

__all__ = ["register"]


class _Asked(NamedTuple):
    questions: Sequence[dict[str, Any]]
    job: Job


def register(app: Flask, services: Services) -> None:
    """Add the route."""
    post_route(app, services, "/v1/decisions", _decisions, capped=True, json_only=True)


def _decisions(admitted: Admitted) -> Any:
    body = admitted.body
    if isinstance(body, dict) and "state" in body and "input" not in body:
        # Another API of the same name elsewhere has this body (wire/decisions.md §12).
        hint = "is required; a body with a state and no input is one for POST /v1/systemone"
        raise Invalid([Problem(("input",), hint, "missing")])

    def make(info: EngineInfo) -> _Asked:
        loaded = load(decisions_schema(info.limits), body)
        if admitted.services.settings.strict_model:
            check_model(loaded["model"], info)
        questions = loaded["questions"]
        terms = Terms(cache_salt=loaded.get("cache_salt") or "")
        job = plan_independent(state_of(loaded["input"]), [plain_question(one) for one in questions], terms)
        return _Asked(questions, job)

    asked, scored, info = admitted.score(make)
    answers = []
    try:
        for question, plain, call in zip(asked.questions, asked.job.questions, scored.calls, strict=True):
            check_call(call, {"q": plain})
            answers.append(openai_answer(question, call["answer"]["answers"]["q"]))
    except BrokenAnswer as broken:
        raise ApiError("scoring_failed", str(broken)) from None
    # Exactly these keys: OpenAI's schema is closed.
    return {"model": info.served_model, "answers": answers, "usage": openai_usage(scored.calls)}
