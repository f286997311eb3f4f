"""From schemas and fields to JSON Schema (2020-12), for the OpenAPI document (web/openapi). Pure.

A field's own rule is written by its ``json_schema``, beside the code that checks it; here is what puts them together
and what several need.
"""

from __future__ import annotations

from typing import Any

from marshmallow import Schema, fields

__all__ = ["ANY_TEXT", "SIDES", "describe", "question_schema", "text_schema"]

#: Names of a noul's sides that engines know (engine/intern-decision.md §1.5).
SIDES = frozenset({"yes", "true", "1", "no", "false", "0"})
#: A text or null.
ANY_TEXT = {"type": ["string", "object", "array", "null"]}

_SILENT: dict[str, Any] = {"enum": [None, False, 0, "", [], {}]}
#: In any case of its letters, for which JSON Schema has no flag.
_SIDE = "|".join("".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in side) for side in sorted(SIDES))
#: A noul has instructions or a side that says something.
_NOUL_RULE = {
    "anyOf": [
        {"required": ["instructions"], "properties": {"instructions": {"not": _SILENT}}},
        {
            "required": ["criteria"],
            "properties": {"criteria": {"type": "object", "not": {"patternProperties": {f"^({_SIDE})$": _SILENT}}}},
        },
    ]
}


def text_schema(nonempty: bool = False) -> dict[str, Any]:
    """JSON Schema of a :class:`Text`; each of the least sizes holds for its own type alone."""
    least = {"minLength": 1, "minProperties": 1, "minItems": 1} if nonempty else {}
    return {"type": ["string", "object", "array"], **least}


def describe(rule: Schema | fields.Field[Any]) -> dict[str, Any]:
    """A schema or one field as JSON Schema: types, limits and words as the very objects hold them that check a body.

    Raises TypeError for a field that has no ``json_schema`` of its own: nothing may be left out in silence.
    """
    if isinstance(rule, Schema):
        properties = {name: describe(field) for name, field in rule.fields.items()}
        needed = [name for name, field in rule.fields.items() if field.required]
        found: dict[str, Any] = {"type": "object", "properties": properties}
        return {**found, **({"required": needed} if needed else {}), **getattr(rule, "json_rules", {})}
    if type(rule) is fields.Raw:
        return {}  # any value
    if not hasattr(rule, "json_schema"):
        raise TypeError(f"{type(rule).__name__} has no json_schema")
    schema: dict[str, Any] = rule.json_schema()
    return _or_null(schema) if rule.allow_none else schema


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], *([] if None in schema["enum"] else [None])]}
    kinds = schema["type"]
    if kinds == "null":
        return schema
    return {**schema, "type": [*(kinds if isinstance(kinds, list) else [kinds]), "null"]}


def question_schema(kind: str, needed: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """A question of ``/v1/systemone`` of one type; ``needed`` are the names that it must have beside ``type``."""
    return {
        "type": "object",
        "required": ["type", *(needed or [])],
        "properties": {"type": {"const": kind}, **properties},
        **(_NOUL_RULE if kind == "noul" else {}),
    }
