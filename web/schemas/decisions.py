"""Schema of ``/v1/decisions``: OpenAI's grammar, as far as text goes (wire/decisions.md §3, §7).

Here a name that the grammar does not have is refused, at every depth. What the grammar has and an engine that reads one
text does not (other roles, tool calls, images) is refused by its own name. Null counts as absent where OpenAI's clients
send it, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from marshmallow import RAISE, Schema, ValidationError, fields

from shared import jsonio
from shared.wire import Limits
from web.decisions import label_of
from web.schemas.base import (
    LIST,
    OBJECT,
    STRING,
    Rule,
    StrictSchema,
    String,
    cache_salt,
    required,
)
from web.schemas.closed import STRING_OR_LIST, UNKNOWN, Ignored, Items, Object, Only, StringOr, Tagged

__all__ = ["MOST_CHOICES", "MOST_LEVELS", "MOST_QUESTIONS", "decisions_schema"]

#: OpenAI's own bounds (wire/decisions.md §3); an engine's may be lower.
MOST_QUESTIONS, MOST_CHOICES, MOST_LEVELS = 400, 255, 10
_MOST_INPUT, _MOST_TEXT = 10_485_760, 1_048_576
_MOST_ITEMS, _MOST_PARTS = 131_072, 16_384
_MOST_JSON_LEVELS, _MOST_JSON_VALUES, _MOST_JSON_BYTES = 32, 10_000, 256 * 1024

_JSON = Rule("union_type", "must be an object or a list of objects")
_VALUE = Rule("union_type", "must be a string, true or false")
_NO_ITEM, _NO_ROLE = Rule("enum", "must be message"), Rule("enum", "must be user")
_TOOL_ITEMS = {
    name: Rule("unsupported", f"{name} is not supported: tool calls and their outputs cannot be read here")
    for name in ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
}
_ROLES = {
    name: Rule("unsupported", f"{name} messages are not supported: put what is asked about in a user message")
    for name in ("developer", "system", "assistant")
}


class _Choices(Items):
    """Options of which no two read alike: a model is shown text, so ``true`` and ``"true"`` would merge (§7, D8)."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        choices = super()._deserialize(value, attr, data, **kwargs)
        first: dict[str, int] = {}
        for index, choice in enumerate(choices):
            known = first.setdefault(label_of(choice["value"]), index)
            if known != index:
                rule = Rule("unsupported", f"would merge with the value of choice {known}: both read the same")
                raise ValidationError({index: {"value": [rule]}})
        return choices


class _Value(fields.Field[Any]):
    """A choice's value: a string or a boolean, never a number that reads like one (§10, 4)."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str | bool:
        if isinstance(value, bool):
            return value
        if not isinstance(value, str):
            raise ValidationError(_VALUE)
        return str(_LONG_STRING.deserialize(value, attr, data))

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return {"type": ["string", "boolean"], "maxLength": _MOST_TEXT}


class _Json(fields.Field[Any]):
    """The data of an ``input_json`` part: an object or a list of objects, within OpenAI's bounds."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not isinstance(value, dict) and not (
            isinstance(value, list) and all(isinstance(item, dict) for item in value)
        ):
            raise ValidationError(_JSON)
        levels, values = _measure(value)
        if levels > _MOST_JSON_LEVELS:
            raise ValidationError(Rule("too_long", f"must not be nested deeper than {_MOST_JSON_LEVELS} levels"))
        if values > _MOST_JSON_VALUES:
            raise ValidationError(Rule("too_long", f"must have at most {_MOST_JSON_VALUES} values"))
        if len(jsonio.dumps(value)) > _MOST_JSON_BYTES:
            raise ValidationError(Rule("too_long", f"must have at most {_MOST_JSON_BYTES} bytes as compact JSON"))
        return value

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema, but for its three bounds."""
        return {"type": ["object", "array"], "items": {"type": "object"}}


class _Message(Object):
    """A user message. Other items and roles of OpenAI's grammar are refused by name, before their members are looked
    at."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            kind, role = value.get("type"), value.get("role")
            if isinstance(kind, str) and kind != "message":
                raise ValidationError({"type": [_TOOL_ITEMS.get(kind, _NO_ITEM)]})
            if isinstance(role, str) and role != "user":
                raise ValidationError({"role": [_ROLES.get(role, _NO_ROLE)]})
        return super()._deserialize(value, attr, data, **kwargs)


class _Decisions(StrictSchema):
    """The body but for its questions, which take the engine's limits."""

    json_rules: ClassVar[Mapping[str, Any]] = {"additionalProperties": False}

    class Meta:
        unknown = RAISE

    error_messages = {"type": OBJECT, "unknown": UNKNOWN}  # noqa: RUF012 (an instance variable to marshmallow)

    model = String(most=_MOST_TEXT, **required(STRING))
    prompt_cache_key = String(most=64, allow_none=True)
    prompt_cache_options = Ignored(allow_none=True)
    safety_identifier = String(most=128, allow_none=True)
    cache_salt = cache_salt()


_LONG_STRING = String(most=_MOST_TEXT)


def _parts(what: str) -> Items:
    """Text and JSON parts; an image is refused as the part it is."""
    text = Object(
        type=Only("input_text"), text=String(**required(STRING)), prompt_cache_breakpoint=Ignored(allow_none=True)
    )
    json = Object(type=Only("input_json"), data=_Json(**required(_JSON)))
    refused = {"input_image": Rule("unsupported", f"input_image is not supported: images cannot be read in {what}")}
    return Items(Tagged({"input_text": text, "input_json": json}, refused), 0, _MOST_PARTS, "parts")


def _input() -> StringOr:
    content = StringOr(_MOST_INPUT, _parts("the input"), **required(STRING_OR_LIST))
    message = _Message(type=Only("message", allow_none=True), role=Only("user", **required(STRING)), content=content)
    return StringOr(_MOST_INPUT, Items(message, 1, _MOST_ITEMS, "items"), **required(STRING_OR_LIST))


def _question(kind: str, **more: fields.Field[Any]) -> Object:
    instructions = StringOr(_MOST_TEXT, _parts("instructions"), **required(STRING_OR_LIST))
    return Object(type=Only(kind), name=_optional(), instructions=instructions, **more)


def _optional() -> String:
    return String(most=_MOST_TEXT, allow_none=True)


@lru_cache(maxsize=8)
def decisions_schema(limits: Limits) -> Schema:
    """The schema of a body under an engine's limits."""
    choice = Object(value=_Value(**required(_VALUE)), description=_optional())
    level = Object(label=String(most=_MOST_TEXT, **required(STRING)), description=_optional())
    choices = _Choices(choice, 2, min(limits.options, MOST_CHOICES), "choices", **required(LIST))
    levels = Items(level, 2, min(limits.levels, MOST_LEVELS), "levels", **required(LIST))
    question = Tagged(
        {
            "predicate": _question("predicate"),
            "choice": _question("choice", choices=choices),
            "score": _question("score", levels=levels),
        }
    )
    questions = Items(question, 1, min(limits.request_questions, MOST_QUESTIONS), "questions", **required(LIST))
    return _Decisions.from_dict({"input": _input(), "questions": questions})()


def _measure(value: Any) -> tuple[int, int]:
    """Levels of containers, the outermost counting as one, and values of any kind, itself included."""
    levels = values = 0
    here: Sequence[Any] = [value]
    while here:
        values += len(here)
        containers = [item for item in here if isinstance(item, (dict, list))]
        levels += bool(containers)
        here = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    return levels, values
