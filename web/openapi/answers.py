"""What the server answers, as JSON Schema: the shapes that web/assemble.py, web/jev.py and the surfaces build. Pure.

Written here because an answer is built and not loaded, so there is no marshmallow schema to take it from; tests hold
every answer of the service against these, with further names forbidden. An engine's own object is its own affair beyond
what INV-1 checks, and is left open.
"""

from __future__ import annotations

from typing import Any

from web.assemble import METHOD
from web.errors import KINDS

__all__ = ["ANSWERS"]

Json = dict[str, Any]

STRING: Json = {"type": "string"}
STRING_OR_NULL: Json = {"type": ["string", "null"]}
NUMBER: Json = {"type": "number"}
COUNT: Json = {"type": "integer", "minimum": 0}
COUNT_OR_NULL: Json = {"type": ["integer", "null"]}
SECONDS: Json = {"type": "number", "minimum": 0}
SHARE: Json = {"type": "number", "minimum": 0, "maximum": 1}
BOOLEAN: Json = {"type": "boolean"}
OBJECT: Json = {"type": "object"}
OBJECT_OR_NULL: Json = {"type": ["object", "null"]}
SHARES: Json = {"type": "object", "additionalProperties": SHARE}


def _list(item: Json) -> Json:
    return {"type": "array", "items": item}


def _record(**fields: Json) -> Json:
    """An object that has all of these."""
    return {"type": "object", "required": list(fields), "properties": fields}


def _diagnosed(record: Json) -> Json:
    """One that the ``labels`` engine adds its diagnostics to (web/jev.py)."""
    return {**record, "properties": {**record["properties"], "x_label_mass": SHARE, "x_argmax_is_label": BOOLEAN}}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


#: One ordering's result (contract § Mapping).
_RESULT = {
    "id": STRING,
    "option_ids": _list(STRING),
    "probabilities": _list(SHARE),
    "top": STRING,
    "confidence": SHARE,
    "calibration": OBJECT_OR_NULL,
    "native": _ref("NativeChoice"),
    "input_tokens": COUNT,
    "prompt_sha256": STRING,
    "prompt_version": STRING,
    "model": OBJECT,
    "readout": STRING,
    "probability_status": STRING,
    "call": _record(index=COUNT, field=STRING, questions=COUNT),
}

_JEV_ERROR_TYPES = sorted({kind.error_type for kind in KINDS.values()})
_ERROR = _record(code={"enum": list(KINDS)}, message=STRING)

ANSWERS: Json = {
    "Error": _record(error=_ERROR),
    "JevError": _record(error=_ERROR, detail=_record(error_type={"enum": _JEV_ERROR_TYPES}, message=STRING)),
    "JevInvalid": _record(
        error=_ERROR,
        detail=_list(_record(loc=_list({"type": ["string", "integer"]}), msg=STRING, type=STRING)),
    ),
    "OpenAIError": _record(
        error=_record(
            message=STRING,
            type={"enum": ["invalid_request_error", "rate_limit_error", "server_error"]},
            param=STRING_OR_NULL,
            code=STRING_OR_NULL,
        )
    ),
    "NativeChoice": _record(type={"const": "choice"}, choice=STRING, confidence=SHARE, probabilities=SHARES),
    "NativeNoul": _record(type={"const": "noul"}, noul=SHARE, confidence=SHARE, probabilities=SHARES),
    "NativeScore": _record(
        type={"const": "score"}, score=NUMBER, confidence=SHARE, probabilities=SHARES, legend=OBJECT
    ),
    "JevChoice": _diagnosed(
        _record(
            type={"const": "choice"},
            choice=STRING,
            confidence=SHARE,
            probabilities=SHARES,
            x_native=_ref("NativeChoice"),
        )
    ),
    "JevNoul": _diagnosed(_record(type={"const": "noul"}, noul=SHARE, x_native=_ref("NativeNoul"))),
    "JevScore": _diagnosed(
        _record(
            type={"const": "score"},
            score=NUMBER,
            confidence=SHARE,
            probabilities=SHARES,
            legend=OBJECT,
            x_native=_ref("NativeScore"),
        )
    ),
    "Result": _record(**_RESULT),
    "DecideResult": _record(**_RESULT, total_seconds=SECONDS, forward_seconds=SECONDS),
    "AveragedResult": _record(
        id=STRING,
        option_ids=_list(STRING),
        combined=_record(
            method={"const": METHOD},
            orderings=COUNT,
            probabilities=_list(SHARE),
            top=STRING,
            agreement=SHARE,
            spread=_list(_record(min=SHARE, max=SHARE)),
        ),
        orderings=_list(_ref("Result")),
    ),
    "SharedResult": _record(
        results=_list({"anyOf": [_ref("Result"), _ref("AveragedResult")]}),
        timing=_record(
            total_seconds=SECONDS,
            batch_size=COUNT,
            calls=COUNT,
            questions_per_call=_list(COUNT),
            input_tokens=_list(COUNT),
            inference_seconds=SECONDS,
        ),
    ),
    "SystemOneJevResult": _record(
        model=STRING,
        answers={
            "type": "object",
            "additionalProperties": {"anyOf": [_ref("JevChoice"), _ref("JevNoul"), _ref("JevScore")]},
        },
        usage=_record(input_tokens=COUNT, output_tokens=COUNT, x_cached_tokens=COUNT),
        x_timing=_record(inference_ms=SECONDS, score_ms=SECONDS),
        x_calibration=OBJECT_OR_NULL,
        x_backend=STRING,
    ),
    "SystemOneNativeResult": _record(
        model=STRING,
        answers={
            "type": "object",
            "additionalProperties": {"anyOf": [_ref("NativeChoice"), _ref("NativeNoul"), _ref("NativeScore")]},
        },
        usage=OBJECT,
    ),
    "DecisionsPredicate": _record(type={"const": "predicate"}, name=STRING_OR_NULL, probability=SHARE),
    "DecisionsChoice": _record(
        type={"const": "choice"},
        name=STRING_OR_NULL,
        choice={"type": ["string", "boolean"]},
        confidence=SHARE,
        probabilities=_list(_record(value={"type": ["string", "boolean"]}, probability=SHARE)),
    ),
    "DecisionsScore": _record(
        type={"const": "score"},
        name=STRING_OR_NULL,
        score={"type": "number", "minimum": 0},
        confidence=SHARE,
        probabilities=_list(_record(value=COUNT, label=STRING, probability=SHARE)),
    ),
    "DecisionsResult": _record(
        model=STRING,
        answers=_list({"anyOf": [_ref("DecisionsPredicate"), _ref("DecisionsChoice"), _ref("DecisionsScore")]}),
        usage=_record(
            input_tokens=COUNT,
            input_tokens_details=_record(cached_tokens=COUNT, cache_write_tokens=COUNT),
            output_tokens=COUNT,
            output_tokens_details=_record(reasoning_tokens=COUNT),
            total_tokens=COUNT,
        ),
    ),
    "Models": _record(
        models=_list(_record(name=STRING, description=STRING, release_date=STRING)),
        object={"const": "list"},
        data=_list(_record(id=STRING, object={"const": "model"}, created={"type": "integer"}, owned_by=STRING)),
    ),
    "Ready": _record(ready={"const": True}),
    "Health": _record(
        status={"const": "ok"},
        model=OBJECT,
        vram_cap_gib={"type": ["number", "null"]},
        max_tokens=COUNT,
        max_decisions=COUNT,
        max_questions_per_call=COUNT,
        chunking=STRING,
        workloads=_list(STRING),
        endpoints=_list(STRING),
        systemone=_record(
            max_questions=COUNT,
            chunking=STRING,
            images=STRING,
            max_tokens=COUNT,
            max_request_tokens=COUNT_OR_NULL,
            max_long_request_tokens=COUNT_OR_NULL,
            profile={"enum": ["jev", "native"]},
            max_options=COUNT,
            max_levels=COUNT,
        ),
        decisions=_record(
            max_questions=COUNT,
            max_options=COUNT,
            max_levels=COUNT,
            images=STRING,
            max_tokens=COUNT,
            max_request_tokens=COUNT_OR_NULL,
        ),
        max_concurrent_decisions=COUNT,
        decisions_in_progress=COUNT_OR_NULL,
        engine=STRING,
        served_model=STRING,
        device=STRING,
        max_queue=COUNT,
        slots_in_use=COUNT,
        queue_length=COUNT,
        busy_seconds=SECONDS,
        uptime_seconds=SECONDS,
        memory=OBJECT_OR_NULL,
        counters=OBJECT,
        boot_id=STRING,
    ),
    "Metrics": STRING,
    "OpenAPI": _record(openapi=STRING, info=OBJECT, security={"type": "array"}, paths=OBJECT, components=OBJECT),
}
