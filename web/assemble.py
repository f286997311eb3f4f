"""From the calls' answers to results: checks (INV-1), the semif result shapes, the combination of orderings. Pure.

Numbers of the engine pass untouched: this module re-keys them, and refuses (:mod:`shared.answers`) what it cannot vouch
for. A refusal is the server's failure, 500 ``scoring_failed``, never the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shared.answers import BrokenAnswer, check_answer, is_number, labels_of
from shared.wire import EngineInfo
from web.plan import Asked, Plan

__all__ = [
    "METHOD",
    "BrokenAnswer",
    "check_call",
    "combine",
    "decide_result",
    "forward_seconds",
    "shared_result",
]

#: ``combined.method`` (wire/semif.md §8, 3).
METHOD = "mean_log_probability"

#: A probability of exactly 0 is floored here before its logarithm (contract § Mapping, averaged result).
_FLOOR = 1e-300

Call = Mapping[str, Any]


def check_call(call: Call, questions: Mapping[str, Mapping[str, Any]]) -> None:
    """Check one call's answer object against its questions (field to question as asked). Raises BrokenAnswer."""
    answer = call.get("answer")
    answers = answer.get("answers") if isinstance(answer, (dict, Mapping)) else None
    if not isinstance(answers, (dict, Mapping)) or answers.keys() != questions.keys():
        raise BrokenAnswer("the engine did not answer exactly the questions asked")
    for name, question in questions.items():
        check_answer(answers[name], question["type"], labels_of(question))
    if not isinstance(call.get("input_tokens"), int) or not isinstance(call.get("prompt_sha256"), str):
        raise BrokenAnswer("the engine's call has no token count or prompt hash")


def combine(option_ids: Sequence[str], results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ``combined`` block of an averaged result: the renormalised geometric mean over the orderings.

    ``option_ids`` is the caller's order; each result lists its ``probabilities`` in its own ``option_ids`` order. Sums
    are exactly rounded (``math.fsum``): a plain sum lets a pure position bias differ in the last bit between options,
    and the top would be decided by rounding (wire/semif.md §2e).
    """
    by_id = [dict(zip(result["option_ids"], result["probabilities"], strict=True)) for result in results]
    means = [math.fsum(math.log(max(own[i], _FLOOR)) for own in by_id) / len(by_id) for i in option_ids]
    peak = max(means)
    weights = [math.exp(mean - peak) for mean in means]
    total = math.fsum(weights)
    probabilities = [weight / total for weight in weights]
    top = option_ids[probabilities.index(max(probabilities))]
    return {
        "method": METHOD,
        "orderings": len(results),
        "probabilities": probabilities,
        "top": top,
        "agreement": sum(result["top"] == top for result in results) / len(results),
        "spread": [{"min": min(own[i] for own in by_id), "max": max(own[i] for own in by_id)} for i in option_ids],
    }


def decide_result(
    plan: Plan, decision: Mapping[str, Any], calls: Sequence[Call], info: EngineInfo, total_seconds: float
) -> dict[str, Any]:
    """The result of ``/decide``. A plain one also carries ``total_seconds`` (time on the inference thread, without the
    queue) and ``forward_seconds``. Raises BrokenAnswer."""
    result = _results(plan, [decision], calls, info)[0]
    if "combined" not in result:
        result["total_seconds"] = total_seconds
        result["forward_seconds"] = forward_seconds(calls[0])
    return result


def shared_result(
    plan: Plan, decisions: Sequence[Mapping[str, Any]], calls: Sequence[Call], info: EngineInfo, total_seconds: float
) -> dict[str, Any]:
    """The response of ``/decide/shared``: results in request order and the timing block. Raises BrokenAnswer."""
    return {
        "results": _results(plan, decisions, calls, info),
        "timing": {
            "total_seconds": total_seconds,
            "batch_size": sum(plan.questions_per_call),
            "calls": len(calls),
            "questions_per_call": plan.questions_per_call,
            "input_tokens": [call["input_tokens"] for call in calls],
            "inference_seconds": math.fsum(forward_seconds(call) for call in calls),
        },
    }


def _results(
    plan: Plan, decisions: Sequence[Mapping[str, Any]], calls: Sequence[Call], info: EngineInfo
) -> list[dict[str, Any]]:
    for call, items in zip(calls, plan.job.calls, strict=True):
        check_call(call, plan.job.call_questions(items))
    out = []
    for decision, asked in zip(decisions, plan.asked, strict=True):
        ids = [option["id"] for option in decision["options"]]
        if decision["orderings"] == "none":
            out.append(_one(decision["id"], ids, asked[0], calls, info))
            continue
        results = [
            _one(f"{decision['id']}#o{k}", [ids[position] for position in one.order], one, calls, info)
            for k, one in enumerate(asked)
        ]
        out.append({"id": decision["id"], "option_ids": ids, "combined": combine(ids, results), "orderings": results})
    return out


def _one(
    result_id: str, option_ids: list[str], asked: Asked, calls: Sequence[Call], info: EngineInfo
) -> dict[str, Any]:
    """The result for one ordering, ``option_ids`` in the order asked (contract § Mapping)."""
    call = calls[asked.call]
    native = call["answer"]["answers"][asked.field]
    return {
        "id": result_id,
        "option_ids": option_ids,
        "probabilities": [native["probabilities"][option] for option in option_ids],
        "top": native["choice"],
        "confidence": native["confidence"],
        "calibration": call["answer"].get("calibration"),
        "native": native,
        "input_tokens": call["input_tokens"],
        "prompt_sha256": call["prompt_sha256"],
        "prompt_version": info.prompt_version,
        "model": info.model,
        "readout": info.readout,
        "probability_status": info.probability_status,
        "call": {"index": asked.call, "field": asked.field, "questions": asked.questions},
    }


def forward_seconds(call: Call) -> float:
    """``predict()``'s own ``timing.inference_ms``, in seconds. Raises BrokenAnswer."""
    timing = call["answer"].get("timing")
    milliseconds = timing.get("inference_ms") if isinstance(timing, (dict, Mapping)) else None
    if not is_number(milliseconds):
        raise BrokenAnswer("the engine's call has no timing")
    return milliseconds / 1000.0
