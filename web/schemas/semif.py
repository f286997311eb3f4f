"""Schemas of ``/decide`` and ``/decide/shared``: SemIf's rules, as the contract's § Endpoints restates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from marshmallow import Schema, ValidationError, fields, post_load, validates_schema

from web.errors import Invalid, Problem
from web.plan import MAX_ALL_OPTIONS, count_orderings
from web.schemas.base import LIST, STRING, TEXT, List, Rule, StrictSchema, String, Text, required

__all__ = ["MAX_OPTIONS", "check_rows", "decide_schema", "shared_schema"]

MIN_OPTIONS, MAX_OPTIONS = 2, 16

_MODES = ("none", "rotations", "all")


class _Orderings(fields.Field[Any]):
    """One of the three words; null and absent mean ``none`` (wire/semif.md §8, 16)."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not isinstance(value, str) or value not in _MODES:
            raise ValidationError(Rule("enum", "must be none, rotations or all"))
        return value

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return {"enum": list(_MODES)}


class _NoWorkload(fields.Field[Any]):
    """There is no per-workload table, so any value but null is refused, false and 0 included (contract, Limits)."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        raise ValidationError(Rule("value_error", "there are no workloads; leave it out"))

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return {"type": "null"}


class _Option(StrictSchema):
    id = String(**required(STRING))
    description = String(**required(STRING))


class _Decision(StrictSchema):
    """What a decision of either route has; ``options`` is added with the engine's cap."""

    json_rules: ClassVar[Mapping[str, Any]] = {
        "description": "The option ids of a decision are unique.",
        "if": {"required": ["orderings"], "properties": {"orderings": {"const": "all"}}},
        "then": {"properties": {"options": {"maxItems": MAX_ALL_OPTIONS}}},
    }

    id = String(nonempty=True, **required(STRING))
    question = String(nonempty=True, **required(STRING))
    orderings = _Orderings(allow_none=True)
    workload = _NoWorkload(allow_none=True)

    @validates_schema(skip_on_field_errors=True)
    def _check_decision(self, data: dict[str, Any], **_kwargs: Any) -> None:
        ids = [option["id"] for option in data["options"]]
        if len(set(ids)) != len(ids):
            raise ValidationError({"options": [Rule("value_error", "option ids must be unique in a decision")]})
        if data.get("orderings") == "all" and len(ids) > MAX_ALL_OPTIONS:
            raise ValidationError({"orderings": [Rule("value_error", f"all takes at most {MAX_ALL_OPTIONS} options")]})

    @post_load
    def _default_orderings(self, data: dict[str, Any], **_kwargs: Any) -> dict[str, Any]:
        data["orderings"] = data.get("orderings") or "none"
        return data


class _Shared(StrictSchema):
    json_rules: ClassVar[Mapping[str, Any]] = {"description": "The decision ids of a request are unique."}

    state = Text(nonempty=True, **required(TEXT))
    workload = _NoWorkload(allow_none=True)

    @validates_schema(skip_on_field_errors=True)
    def _check_ids(self, data: dict[str, Any], **_kwargs: Any) -> None:
        ids = [decision["id"] for decision in data["decisions"]]
        if len(set(ids)) != len(ids):
            raise ValidationError({"decisions": [Rule("value_error", "decision ids must be unique in a request")]})


@lru_cache(maxsize=8)
def decide_schema(most_options: int) -> Schema:
    """Schema of a ``/decide`` body; ``most_options`` is the engine's cap (never above 16)."""
    return _Decision.from_dict({"state": Text(nonempty=True, **required(TEXT)), "options": _options(most_options)})()


@lru_cache(maxsize=8)
def shared_schema(most_options: int) -> Schema:
    """Schema of a ``/decide/shared`` body; ``most_options`` as for :func:`decide_schema`."""
    decision = _Decision.from_dict({"options": _options(most_options)})()
    return _Shared.from_dict({"decisions": List(decision, 1, None, **required(LIST))})()


def _options(most: int) -> List:
    return List(_Option(), MIN_OPTIONS, min(most, MAX_OPTIONS), **required(LIST))


def check_rows(decisions: Sequence[Mapping[str, Any]], most: int) -> None:
    """Raise :class:`web.errors.Invalid` unless the request scores 1 to ``most`` orderings (MAX_DECISIONS, counted after
    expansion: contract, Limits)."""
    rows = sum(count_orderings(len(decision["options"]), decision["orderings"]) for decision in decisions)
    if rows > most:
        raise Invalid([Problem((), f"{rows} orderings to score; a request may have 1 to {most}", "too_long")])
