"""The OpenAPI document as the tests use it: validators of its parts, open as written or closed to any name it does not
have."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs

from web.openapi import document

#: What an engine answers is its own affair beyond what INV-1 checks.
ENGINES_OWN = ("NativeChoice", "NativeNoul", "NativeScore", "SystemOneNativeResult")

_document = document()
_components = _document["components"]


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and operation object of everything in the document."""
    for path, item in _document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def response_of(method: str, path: str, status: int) -> dict[str, Any]:
    """The response object that the document has for a status. Raises KeyError when it has none."""
    found: dict[str, Any] = _document["paths"][path][method.lower()]["responses"][str(status)]
    while "$ref" in found:
        found = _components["responses"][found["$ref"].rpartition("/")[2]]
    return found


def check_response(method: str, path: str, status: int, headers: Mapping[str, str], body: Any) -> None:
    """Assert that an answer is one of those that the document has for the operation, with no name that it lacks."""
    response = response_of(method, path, status)
    names = {name.lower() for name in headers}
    assert {name.lower() for name in response["headers"]} <= names, (path, status, headers)
    (media,) = response["content"]
    assert {name.lower(): value for name, value in headers.items()}["content-type"] == media
    schema = {**response["content"][media]["schema"], "components": _closed_components}
    errors = [
        (error.message[:300], error.instance_path)
        for error in jsonschema_rs.Draft202012Validator(schema).iter_errors(body)
    ]
    assert errors == [], (path, status)


def _closed(schema: Any) -> Any:
    """The schema with every record of the server's own closed."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _closed(item) for name, item in schema.items()}
    if "properties" in found and "required" in found:
        found["additionalProperties"] = False
    return found


_closed_components = copy.deepcopy(_components)
_closed_components["schemas"] = {
    name: schema if name in ENGINES_OWN else _closed(schema) for name, schema in _components["schemas"].items()
}
