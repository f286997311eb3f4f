"""Schema of ``/v1/decisions``: OpenAI's grammar, as far as text goes (wire/decisions.md §3, §7).

Here a name that the grammar does not have is refused, at every depth. What the grammar has and an engine that reads one
text does not (other roles, tool calls, images) is refused by its own name. Null counts as absent where OpenAI's clients
send it, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from marshmallow import RAISE, Schema, ValidationError, fields, missing

from shared import jsonio
from shared.wire import Limits
from web.decisions import label_of
from web.schemas.base import (
    LIST,
    MISSING,
    OBJECT,
    STRING,
    Rule,
    StrictSchema,
    String,
    cache_salt,
    check_size,
    required,
)

__all__ = ["MOST_CHOICES", "MOST_LEVELS", "MOST_QUESTIONS", "decisions_schema"]

#: OpenAI's own bounds (wire/decisions.md §3); an engine's may be lower.
MOST_QUESTIONS, MOST_CHOICES, MOST_LEVELS = 400, 255, 10
_MOST_INPUT, _MOST_TEXT = 10_485_760, 1_048_576
_MOST_ITEMS, _MOST_PARTS = 131_072, 16_384
_MOST_JSON_LEVELS, _MOST_JSON_VALUES, _MOST_JSON_BYTES = 32, 10_000, 256 * 1024

_UNKNOWN = Rule("extra_forbidden", "is not a parameter here")
_STRING_OR_LIST = Rule("union_type", "must be a string or a list")
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


class _Object(fields.Field[dict[str, Any]]):
    """An object with these members and no others. Not a marshmallow schema: that costs more a question than all of its
    fields."""

    def __init__(self, **members: fields.Field[Any]) -> None:
        super().__init__()
        self.members = members

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValidationError(OBJECT)
        loaded: dict[str, Any] = {}
        errors: dict[str, Any] = {name: [_UNKNOWN] for name in value if name not in self.members}
        for name, field in self.members.items():
            try:
                found = field.deserialize(value.get(name, missing), name, value)
            except ValidationError as error:
                errors[name] = error.messages
            else:
                if found is not missing:
                    loaded[name] = found
        if errors:
            raise ValidationError(errors)
        return loaded


class _Tagged(fields.Field[dict[str, Any]]):
    """An object of one of several kinds, told by its ``type``; ``refused`` are kinds that OpenAI has, with the reason
    that they are not served."""

    def __init__(self, kinds: Mapping[str, _Object], refused: Mapping[str, Rule] | None = None) -> None:
        super().__init__()
        self.kinds = kinds
        self._refused = refused or {}

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValidationError(OBJECT)
        kind = value.get("type", missing)
        if kind is missing:
            raise ValidationError({"type": [MISSING]})
        if isinstance(kind, str) and kind in self._refused:
            raise ValidationError(self._refused[kind])
        if not isinstance(kind, str) or kind not in self.kinds:
            raise ValidationError({"type": [Rule("enum", f"must be {_words(self.kinds)}")]})
        return dict(self.kinds[kind].deserialize(value, attr, data))


class _Items(fields.Field[list[Any]]):
    """A list of ``least`` to ``most`` values of one field."""

    def __init__(self, item: fields.Field[Any], least: int, most: int, what: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.item = item
        self._least, self._most, self._what = least, most, what

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValidationError(LIST)
        check_size(len(value), self._least, self._most, self._what)
        loaded, errors = [], {}
        for index, one in enumerate(value):
            try:
                loaded.append(self.item.deserialize(one))
            except ValidationError as error:
                errors[index] = error.messages
        if errors:
            raise ValidationError(errors)
        return loaded


class _Choices(_Items):
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


class _StringOr(fields.Field[Any]):
    """A string of at most ``most`` characters, or a list."""

    def __init__(self, most: int, items: _Items, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.string = String(most=most)
        self.items = items

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if isinstance(value, str):
            return self.string.deserialize(value, attr, data)
        if isinstance(value, list):
            return self.items.deserialize(value, attr, data)
        raise ValidationError(_STRING_OR_LIST)


class _Value(fields.Field[Any]):
    """A choice's value: a string or a boolean, never a number that reads like one (§10, 4)."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str | bool:
        if isinstance(value, bool):
            return value
        if not isinstance(value, str):
            raise ValidationError(_VALUE)
        return str(_LONG_STRING.deserialize(value, attr, data))


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


class _Ignored(fields.Field[Any]):
    """An object of OpenAI's own caching, or null. What it says changes nothing here, so it is not looked into."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not isinstance(value, dict):
            raise ValidationError(OBJECT)
        return value


class _Only(fields.Field[str]):
    """One word."""

    def __init__(self, word: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.word = word

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if value != self.word:
            raise ValidationError(Rule("enum", f"must be {self.word}"))
        return self.word


class _Message(_Object):
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

    class Meta:
        unknown = RAISE

    error_messages = {"type": OBJECT, "unknown": _UNKNOWN}  # noqa: RUF012 (an instance variable to marshmallow)

    model = String(most=_MOST_TEXT, **required(STRING))
    prompt_cache_key = String(most=64, allow_none=True)
    prompt_cache_options = _Ignored(allow_none=True)
    safety_identifier = String(most=128, allow_none=True)
    cache_salt = cache_salt()


_LONG_STRING = String(most=_MOST_TEXT)


def _parts(what: str) -> _Items:
    """Text and JSON parts; an image is refused as the part it is."""
    text = _Object(
        type=_Only("input_text"), text=String(**required(STRING)), prompt_cache_breakpoint=_Ignored(allow_none=True)
    )
    json = _Object(type=_Only("input_json"), data=_Json(**required(_JSON)))
    refused = {"input_image": Rule("unsupported", f"input_image is not supported: images cannot be read in {what}")}
    return _Items(_Tagged({"input_text": text, "input_json": json}, refused), 0, _MOST_PARTS, "parts")


def _input() -> _StringOr:
    content = _StringOr(_MOST_INPUT, _parts("the input"), **required(_STRING_OR_LIST))
    message = _Message(type=_Only("message", allow_none=True), role=_Only("user", **required(STRING)), content=content)
    return _StringOr(_MOST_INPUT, _Items(message, 1, _MOST_ITEMS, "items"), **required(_STRING_OR_LIST))


def _question(kind: str, **more: fields.Field[Any]) -> _Object:
    instructions = _StringOr(_MOST_TEXT, _parts("instructions"), **required(_STRING_OR_LIST))
    return _Object(type=_Only(kind), name=_optional(), instructions=instructions, **more)


def _optional() -> String:
    return String(most=_MOST_TEXT, allow_none=True)


@lru_cache(maxsize=8)
def decisions_schema(limits: Limits) -> Schema:
    """The schema of a body under an engine's limits."""
    choice = _Object(value=_Value(**required(_VALUE)), description=_optional())
    level = _Object(label=String(most=_MOST_TEXT, **required(STRING)), description=_optional())
    choices = _Choices(choice, 2, min(limits.options, MOST_CHOICES), "choices", **required(LIST))
    levels = _Items(level, 2, min(limits.levels, MOST_LEVELS), "levels", **required(LIST))
    question = _Tagged(
        {
            "predicate": _question("predicate"),
            "choice": _question("choice", choices=choices),
            "score": _question("score", levels=levels),
        }
    )
    questions = _Items(question, 1, min(limits.request_questions, MOST_QUESTIONS), "questions", **required(LIST))
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


def _words(names: Mapping[str, Any]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"
