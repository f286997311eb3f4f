"""``POST /v1/systemone``: Jev's wire shape, in two profiles (design §5).

``native``  the contract to the letter: one call, the caller's names, the engine's answers unmodified, its extras riding
along.
``jev``     every rule of the conformance suite: independent questions, Jev's confidence, extras under ``x_``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flask import Flask

from shared.wire import EngineInfo, Job, Terms
from web.assemble import BrokenAnswer, check_call, forward_seconds
from web.errors import ApiError, Problem
from web.guard import Admitted, Services, post_route
from web.jev import jev_answer, plain_question
from web.plan import plan_independent, plan_joint
from web.schemas.base import load
from web.schemas.systemone import schema_for
from web.scorer_client import Scored

__all__ = ["check_model", "profile_of", "register"]

#: Names that Jev's clients send without meaning a particular version (wire/systemone.md §2.6).
_ALIASES = ("jev-latest", "jev-preview")


class _Asked(NamedTuple):
    profile: str
    questions: Mapping[str, Any]
    job: Job


def register(app: Flask, services: Services) -> None:
    """Add the route."""
    post_route(app, services, "/v1/systemone", _systemone, capped=True)


def profile_of(services: Services, info: EngineInfo) -> str:
    """The profile in force: the setting's, or else the engine's own."""
    return services.settings.systemone_profile or info.default_profile


def _systemone(admitted: Admitted) -> Any:
    settings = admitted.services.settings

    def make(info: EngineInfo) -> _Asked:
        profile = profile_of(admitted.services, info)
        loaded = load(schema_for(profile, info.limits, settings.native_max_options), admitted.body)
        if settings.strict_model:
            check_model(loaded.get("model"), info)
        questions = loaded["questions"]
        if profile == "native":
            job = plan_joint(loaded["state"], questions)
        else:
            plain = [plain_question(question) for question in questions.values()]
            job = plan_independent(loaded["state"], plain, _terms(admitted.environ, loaded))
        return _Asked(profile, questions, job)

    asked, scored, info = admitted.score(make)
    try:
        if asked.profile == "native":
            check_call(scored.calls[0], asked.questions)
        else:
            for call, question in zip(scored.calls, asked.job.questions, strict=True):
                check_call(call, {"q": question})
        return _native(scored, info) if asked.profile == "native" else _jev(asked, scored, info)
    except BrokenAnswer as broken:
        raise ApiError("scoring_failed", str(broken)) from None


def check_model(model: Any, info: EngineInfo) -> None:
    """STRICT_MODEL: refuse a name that is not served here. Without it every name is accepted and ignored (contract)."""
    names = (*_ALIASES, info.name, info.served_model)
    if model is not None and model not in names:
        message = f"this server's models are {', '.join(names)}"
        raise ApiError("model_not_found", message, problems=[Problem(("model",), message)])


def _terms(environ: Mapping[str, Any], loaded: Mapping[str, Any]) -> Terms:
    """What the request asks beside its questions (contract/granite-switch-decision.md, C23 and S8)."""
    long_context = environ.get("HTTP_TYPESAFE_DANGER_ZONE_LONG_CONTEXT", "").strip().lower() == "true"
    return Terms(loaded.get("cache_salt") or "", long_context)


def _native(scored: Scored, info: EngineInfo) -> dict[str, Any]:
    answer = scored.calls[0]["answer"]
    # Only `model` is replaced: clients need a string that names model and revision (contract § POST /v1/systemone).
    return {**answer, "usage": answer.get("usage") or {}, "model": info.served_model}


def _jev(asked: _Asked, scored: Scored, info: EngineInfo) -> dict[str, Any]:
    answers = {}
    seconds = 0.0
    for (name, question), call in zip(asked.questions.items(), scored.calls, strict=True):
        answers[name] = jev_answer(question, call["answer"]["answers"]["q"])
        seconds += forward_seconds(call)
    return {
        "model": info.served_model,
        "answers": answers,
        "usage": {
            # Every prompt counts in full; what an engine did not have to read again is told beside it.
            "input_tokens": sum(call["input_tokens"] for call in scored.calls),
            "output_tokens": 0,
            "x_cached_tokens": sum(call["cached_tokens"] for call in scored.calls),
        },
        "x_timing": {"inference_ms": round(1000 * seconds, 2), "score_ms": scored.reply.score_ms},
        "x_calibration": scored.calls[0]["answer"].get("calibration"),
        "x_backend": info.engine,
    }
