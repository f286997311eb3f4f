"""Fields of a grammar that is closed: an object has the names that it is given and no others, a kind is told by its
``type``. Not marshmallow schemas: one costs more than all of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marshmallow import ValidationError, fields, missing

from web.schemas.base import LIST, MISSING, OBJECT, Rule, String, check_size, load_fields
from web.schemas.described import describe

__all__ = ["STRING_OR_LIST", "UNKNOWN", "Ignored", "Items", "Object", "Only", "StringOr", "Tagged"]

UNKNOWN = Rule("extra_forbidden", "is not a parameter here")
STRING_OR_LIST = Rule("union_type", "must be a string or a list")


class Object(fields.Field[dict[str, Any]]):
    """An object with these members and no others. Not a marshmallow schema: that costs more a question than all of its
    fields."""

    def __init__(self, **members: fields.Field[Any]) -> None:
        super().__init__()
        self.members = members

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValidationError(OBJECT)
        loaded, errors = load_fields(self.members.items(), value)
        unknown = {name: [UNKNOWN] for name in value if name not in self.members}
        if unknown or errors:
            raise ValidationError({**unknown, **errors})
        return loaded

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        needed = [name for name, field in self.members.items() if field.required]
        properties = {name: describe(field) for name, field in self.members.items()}
        return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


class Tagged(fields.Field[dict[str, Any]]):
    """An object of one of several kinds, told by its ``type``; ``refused`` are kinds that OpenAI has, with the reason
    that they are not served."""

    def __init__(self, kinds: Mapping[str, Object], refused: Mapping[str, Rule] | None = None) -> None:
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

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        found = [describe(kind) for kind in self.kinds.values()]
        return {"anyOf": [{**schema, "required": ["type", *schema["required"]]} for schema in found]}


class Items(fields.Field[list[Any]]):
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

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return {"type": "array", "items": describe(self.item), "minItems": self._least, "maxItems": self._most}


class StringOr(fields.Field[Any]):
    """A string of at most ``most`` characters, or a list."""

    def __init__(self, most: int, items: Items, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.string = String(most=most)
        self.items = items

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if isinstance(value, str):
            return self.string.deserialize(value, attr, data)
        if isinstance(value, list):
            return self.items.deserialize(value, attr, data)
        raise ValidationError(STRING_OR_LIST)

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return {"anyOf": [describe(self.string), describe(self.items)]}


class Ignored(fields.Field[Any]):
    """An object of OpenAI's own caching, or null. What it says changes nothing here, so it is not looked into."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not isinstance(value, dict):
            raise ValidationError(OBJECT)
        return value

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return {"type": "object"}


class Only(fields.Field[str]):
    """One word."""

    def __init__(self, word: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.word = word

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if value != self.word:
            raise ValidationError(Rule("enum", f"must be {self.word}"))
        return self.word

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return {"enum": [self.word]}


def _words(names: Mapping[str, Any]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"
