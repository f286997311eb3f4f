"""What the dialects' schemas share: rules with a type name, strict fields, and the way from marshmallow's errors to
ours. Every field also writes its rule as JSON Schema, beside the code that checks it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from marshmallow import EXCLUDE, Schema, ValidationError, fields, missing

from web.errors import Invalid, Problem
from web.schemas.described import describe, text_schema

__all__ = [
    "FlatSchema",
    "List",
    "Rule",
    "StrictSchema",
    "String",
    "Text",
    "cache_salt",
    "load",
    "load_fields",
    "required",
]


class Rule(str):
    """An error message that knows its rule's name in the vocabulary of wire/systemone.md §4.3."""

    type: str

    def __new__(cls, type: str, message: str) -> Rule:
        """``type`` is the rule's name, ``message`` what the caller reads."""
        rule = super().__new__(cls, message)
        rule.type = type
        return rule

    def format(self, *_args: object, **_kwargs: object) -> Rule:
        """marshmallow formats every message; ours have nothing to fill in, and must stay rules."""
        return self


MISSING = Rule("missing", "is required")
STRING = Rule("string_type", "must be a string")
NONEMPTY = Rule("too_short", "must not be empty")
TEXT = Rule("union_type", "must be a string, an object or an array")
OBJECT = Rule("dict_type", "must be an object")
LIST = Rule("list_type", "must be a list")


def required(null: Rule) -> dict[str, Any]:
    """Field arguments of a required field; ``null`` is what a null gets."""
    return {"required": True, "error_messages": {"required": MISSING, "null": null}}


class StrictSchema(Schema):
    """Base of every schema: unknown names are ignored, a body that is not an object is a ``dict_type``.

    ``json_rules`` are the JSON Schema keywords for what its fields do not say by themselves.
    """

    json_rules: ClassVar[Mapping[str, Any]] = {}

    class Meta:  # noqa: D106 (marshmallow's own name)
        unknown = EXCLUDE

    error_messages = {"type": OBJECT}  # noqa: RUF012 (an instance variable to marshmallow)


class FlatSchema(StrictSchema):
    """A schema of fields alone, without hooks: marshmallow's loop around the fields costs more than all of them."""

    def load(self, data: Any, **_kwargs: Any) -> dict[str, Any]:
        """What was there. Raises ValidationError."""
        if not isinstance(data, dict):
            raise ValidationError(OBJECT)
        loaded, errors = load_fields(self.fields.items(), data)
        if errors:
            raise ValidationError(errors)
        return loaded


class String(fields.Field[str]):
    """A string, exactly; ``nonempty`` refuses ``""`` (white space is kept and counts, as in SemIf); ``most`` is its
    greatest length in characters."""

    def __init__(self, *, nonempty: bool = False, most: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._nonempty = nonempty
        self._most = most

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError(STRING)
        if self._nonempty and not value:
            raise ValidationError(NONEMPTY)
        if self._most is not None and len(value) > self._most:
            raise ValidationError(Rule("too_long", f"must have at most {self._most} characters"))
        return value

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        bounds = {"minLength": 1 if self._nonempty else None, "maxLength": self._most}
        return {"type": "string", **{name: bound for name, bound in bounds.items() if bound is not None}}


class Text(fields.Field[Any]):
    """A string, an object or an array, passed on as it is; ``nonempty`` refuses ``""``, ``{}`` and ``[]``."""

    def __init__(self, *, nonempty: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._nonempty = nonempty

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not isinstance(value, (str, dict, list)):
            raise ValidationError(TEXT)
        if self._nonempty and not value:
            raise ValidationError(NONEMPTY)
        return value

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return text_schema(self._nonempty)


class List(fields.Field[list[Any]]):
    """A list of ``least`` to ``most`` objects of one schema; ``most`` None is unbounded."""

    def __init__(self, schema: Schema, least: int, most: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._schema = schema
        self._least = least
        self._most = most

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValidationError(LIST)
        check_size(len(value), self._least, self._most)
        return load_each(self._schema, enumerate(value))

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        most = {} if self._most is None else {"maxItems": self._most}
        return {"type": "array", "items": describe(self._schema), "minItems": self._least, **most}


def cache_salt() -> String:
    """The field of that name on both decision routes: null as absent, else a string of 1 to 128 characters, vLLM's own
    bound (wire/decisions.md §12). An empty one is most likely a gateway's mistake, and would share the cache."""
    return String(nonempty=True, most=128, allow_none=True)


def check_size(size: int, least: int, most: int | None, what: str = "items") -> None:
    """Raise ValidationError ``too_short`` or ``too_long`` unless ``least <= size <= most``."""
    short = size < least
    if short or (most is not None and size > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValidationError(Rule("too_short" if short else "too_long", f"must have {bounds} {what}, not {size}"))


def load_each(schema: Schema, items: Iterator[tuple[int, Any]] | enumerate[Any]) -> list[Any]:
    """Load every item; the errors of all bad ones together, under their positions."""
    loaded, errors = [], {}
    for index, item in items:
        try:
            loaded.append(schema.load(item))
        except ValidationError as error:
            errors[index] = error.messages
    if errors:
        raise ValidationError(errors)
    return loaded


def load_fields(
    members: Iterable[tuple[str, fields.Field[Any]]], value: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load the named members of an object: what was there, and the errors by name."""
    loaded: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    for name, field in members:
        given = value.get(name, missing)
        if given is missing and not field.required and field.load_default is missing:
            continue
        try:
            found = field.deserialize(given, name, value)
        except ValidationError as error:
            errors[name] = error.messages
        else:
            if found is not missing:
                loaded[name] = found
    return loaded, errors


def load(schema: Schema, body: Any) -> dict[str, Any]:
    """Validate a parsed body. Raises :class:`web.errors.Invalid` with every problem found."""
    try:
        loaded: dict[str, Any] = schema.load(body)
    except ValidationError as error:
        raise Invalid(list(_problems(error.messages, ()))) from None
    return loaded


def _problems(messages: Any, loc: tuple[str | int, ...]) -> Iterator[Problem]:
    if isinstance(messages, Mapping):
        for name, inner in messages.items():
            # marshmallow's own "_schema" always holds a list; a question may be called so, and holds a mapping.
            here = loc if name == "_schema" and isinstance(inner, list) else (*loc, name)
            yield from _problems(inner, here)
        return
    for message in messages if isinstance(messages, list) else [messages]:
        if isinstance(message, Mapping):
            yield from _problems(message, loc)
        else:
            yield Problem(loc, str(message), getattr(message, "type", "value_error"))
