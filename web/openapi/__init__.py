"""The OpenAPI 3.1 document of the HTTP surface, made from the objects that serve it: bodies from the marshmallow
schemas, errors from the table in web.errors. Pure.

Not with apispec: every field here is one of our own and would need a mapping beside it anyway, and the document is then
also made where only the web tier's own dependencies are.

Limits are the surface's own maxima; an engine may allow less, and says so in ``/health``. ``conf/openapi.json`` is the
same document for readers (``make openapi`` writes it, a test compares).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from shared import jsonio
from shared.wire import Limits
from web.errors import KINDS, ApiError, render
from web.openapi.answers import ANSWERS
from web.openapi.operations import OPERATIONS, Operation
from web.schemas.decisions import decisions_schema
from web.schemas.described import describe
from web.schemas.semif import MAX_OPTIONS, decide_schema, shared_schema
from web.schemas.systemone import schema_for

__all__ = ["VERSION", "document"]

#: The package's (a test compares it with setup.cfg).
VERSION = "0.1.0"

_ABOUT = (
    "A decision server: a state and typed questions go in, probabilities over the caller's own options come out.\n\n"
    "Unknown names are ignored at every depth. The Content-Type of a request is not looked at, except that multipart "
    "is refused; bodies may be compressed with gzip or zstd. JSON is read strictly: UTF-8, no NaN, no name twice in "
    "one object, no lone surrogate, at most 64 levels of nesting. Limits given here are the greatest that any engine "
    "may have; those in force are in /health."
)
#: On every response (web/observe.py).
_ALWAYS = ("X-Request-ID", "x-typesafe-request-id", "Cache-Control")
_NUMBERS = ("Retry-After", "Retry-After-Ms")


def document() -> dict[str, Any]:
    """The document as a JSON object; a new one at every call, always the same."""
    paths: dict[str, Any] = {}
    responses: dict[str, Any] = {}
    headers = set(_ALWAYS)
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, responses)
    for response in responses.values():
        headers.update(response["headers"])
    return {
        "openapi": "3.1.0",
        "info": {"title": "intern-decision-serve", "version": VERSION, "description": _ABOUT},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {**_requests(), **deepcopy(ANSWERS)},
            "responses": dict(sorted(responses.items())),
            "headers": {
                name: {"required": True, "schema": {"type": "integer" if name in _NUMBERS else "string"}}
                for name in sorted(headers)
            },
        },
    }


def _requests() -> dict[str, Any]:
    """Bodies by component name; operations refer to them."""
    limits = Limits()
    found = {
        "Decide": decide_schema(MAX_OPTIONS),
        "DecideShared": shared_schema(MAX_OPTIONS),
        "SystemOneJev": schema_for("jev", limits, limits.options),
        "SystemOneNative": schema_for("native", limits, limits.options),
        "Decisions": decisions_schema(limits),
    }
    return {name: describe(schema) for name, schema in found.items()}


def _operation(operation: Operation, responses: dict[str, Any]) -> dict[str, Any]:
    """One operation object; the error responses that it refers to are added to ``responses``."""
    found: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    if operation.public:
        found["security"] = []
    if operation.body:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": _any_of(operation.body)}}}
    success = {
        "description": "OK",
        "headers": _headers(_ALWAYS),
        "content": {operation.media: {"schema": _any_of(operation.answer)}},
    }
    found["responses"] = {"200": success}
    by_status: dict[int, list[str]] = {}
    for kind in operation.errors:
        by_status.setdefault(render(ApiError(kind, ""), operation.path)[0], []).append(kind)
    for status, kinds in sorted(by_status.items()):
        name, response = _error(kinds, operation.path)
        responses.setdefault(name, response)
        found["responses"][str(status)] = {"$ref": f"#/components/responses/{name}"}
    return found


def _error(kinds: list[str], path: str) -> tuple[str, dict[str, Any]]:
    """The response of one status, shaped and headed as :func:`web.errors.render` does it, and its component's name."""
    _, headers, raw = render(ApiError(kinds[0], ""), path)
    body = jsonio.loads(raw)
    schema: dict[str, Any] = {}
    if "type" in body["error"]:
        form = "OpenAIError"  # whose codes are finer than ours
    else:
        form = "Error" if "detail" not in body else "JevError" if "error_type" in body["detail"] else "JevInvalid"
        codes = [KINDS[kind].code for kind in kinds]
        schema = {"properties": {"error": {"properties": {"code": {"enum": codes}}}}}
    name = "-or-".join(kinds) + {"Error": "", "OpenAIError": "-openai"}.get(form, "-jev")
    return name, {
        "description": " or ".join(kinds),
        "headers": _headers([*_ALWAYS, *(name for name, _ in headers)]),
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{form}", **schema}}},
    }


def _headers(names: Any) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _any_of(names: tuple[str, ...]) -> dict[str, Any]:
    refs = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    return refs[0] if len(refs) == 1 else {"anyOf": refs}
