"""Schemas of ``/v1/systemone``, one a profile (design §5, wire/systemone.md §2).

``native`` checks what the contract gives the server to check (state, question count, names, type, option cap) and
leaves the rest to the engine's own validation. ``jev`` checks the whole grammar, since nothing but plain questions
reaches the engine.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from marshmallow import Schema, ValidationError, fields

from shared import jsonio
from shared.wire import Limits
from web.schemas.base import (
    LIST,
    OBJECT,
    TEXT,
    FlatSchema,
    Rule,
    Text,
    cache_salt,
    check_size,
    load_fields,
    required,
)
from web.schemas.described import ANY_TEXT, SIDES, describe, question_schema, text_schema

__all__ = ["JEV_OPTIONS", "schema_for"]

#: Jev's own bounds; an engine's may be lower (wire/systemone.md §2.5).
JEV_OPTIONS, JEV_LEVELS, JEV_QUESTIONS = 255, 10, 400

_TYPES = ("noul", "choice", "score")
_TEXT_OR_NULL = Rule("union_type", "must be a string, an object, an array or null")
_UNTAGGED = Rule("union_tag_not_found", "must have a type")
_UNKNOWN_TYPE = Rule("union_tag_invalid", "must have the type noul, choice or score")
_NO_BOX = Rule("union_tag_invalid", "box questions need an image, and images are not supported")


class _Unsupported(fields.Field[Any]):
    """Refuses anything but null and the ``empty`` values that mean none (design §5, wire/systemone.md §10, row 19)."""

    def __init__(self, empty: list[Any], message: str, **kwargs: Any) -> None:
        super().__init__(allow_none=True, **kwargs)
        self._values = empty
        # As JSON: to Python 0 and False are equal.
        self._empty = {jsonio.dumps(value) for value in empty}
        self._rule = Rule("value_error", message)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if jsonio.dumps(value) not in self._empty:
            raise ValidationError(self._rule)
        return None

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return {"enum": self._values}


class _NoulSides(fields.Field[Any]):
    """Null, or an object with ``true`` and/or ``false``, each a text or null."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not isinstance(value, dict):
            raise ValidationError(OBJECT)
        errors: dict[str, list[Rule]] = {}
        for side, text in value.items():
            if side not in ("true", "false"):
                errors[side] = [Rule("extra_forbidden", "is neither true nor false")]
            elif text is not None and not isinstance(text, (str, dict, list)):
                errors[side] = [_TEXT_OR_NULL]
        if errors:
            raise ValidationError(errors)
        return value

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return {"type": "object", "properties": {"true": ANY_TEXT, "false": ANY_TEXT}, "additionalProperties": False}


class _Options(fields.Field[Any]):
    """An object of option name to text or null; the order is the caller's."""

    def __init__(self, most: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._most = most

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not isinstance(value, dict):
            raise ValidationError(OBJECT)
        check_size(len(value), 1, self._most, "options")
        errors = {
            name: [_TEXT_OR_NULL]
            for name, text in value.items()
            if text is not None and not isinstance(text, (str, dict, list))
        }
        if errors:
            raise ValidationError(errors)
        return value

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return {"type": "object", "minProperties": 1, "maxProperties": self._most, "additionalProperties": ANY_TEXT}


class _Levels(fields.Field[Any]):
    """A list of texts, lowest first; a map is refused, so is a null level."""

    def __init__(self, most: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._most = most

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not isinstance(value, list):
            raise ValidationError(LIST)
        check_size(len(value), 1, self._most, "levels")
        errors = {
            i: [Rule("string_type", TEXT)] for i, text in enumerate(value) if not isinstance(text, (str, dict, list))
        }
        if errors:
            raise ValidationError(errors)
        return value

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return {"type": "array", "minItems": 1, "maxItems": self._most, "items": text_schema()}


class _Questions(fields.Field[Any]):
    """The ``questions`` object; how one question is checked is the profile's."""

    def __init__(self, most: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._most = most

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValidationError(OBJECT)
        check_size(len(value), 1, self._most, "questions")
        loaded, errors = {}, {}
        for name, question in value.items():
            try:
                if not name:
                    raise ValidationError(Rule("too_short", "a question's name must not be empty"))
                loaded[name] = self._question(question)
            except ValidationError as error:
                errors[name] = error.messages if isinstance(error.messages, dict) else {"_schema": error.messages}
        if errors:
            raise ValidationError(errors)
        return loaded

    def json_schema(self) -> dict[str, Any]:
        """The rule as JSON Schema."""
        return {
            "type": "object",
            "minProperties": 1,
            "maxProperties": self._most,
            "propertyNames": {"minLength": 1},
            "additionalProperties": {"anyOf": self._question_schemas()},
        }

    def _question(self, question: Any) -> dict[str, Any]:
        raise NotImplementedError

    def _question_schemas(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    @staticmethod
    def _type(question: Any) -> str:
        if not isinstance(question, dict):
            raise ValidationError(OBJECT)
        if "type" not in question:
            raise ValidationError({"type": [_UNTAGGED]})
        kind = question["type"]
        if not isinstance(kind, str) or kind not in _TYPES:
            raise ValidationError({"type": [_NO_BOX if kind == "box" else _UNKNOWN_TYPE]})
        return kind


def _check_noul(question: dict[str, Any]) -> None:
    """A noul asks something: instructions, or at least one side described (design §5)."""
    criteria = question.get("criteria")
    described = isinstance(criteria, dict) and any(criteria[side] for side in criteria if side.lower() in SIDES)
    if not question.get("instructions") and not described:
        raise ValidationError({"instructions": [Rule("value_error", "a noul needs instructions or a described side")]})


class _NativeQuestions(_Questions):
    """The question passes on untouched, whatever else it holds: the engine's own validation decides."""

    def __init__(self, most: int, most_options: int, **kwargs: Any) -> None:
        super().__init__(most, **kwargs)
        self._most_options = most_options

    def _question(self, question: Any) -> dict[str, Any]:
        kind = self._type(question)
        if kind == "noul":
            _check_noul(question)
        criteria = question.get("criteria")
        if kind != "noul" and isinstance(criteria, (dict, list)):
            try:
                check_size(len(criteria), 1, self._most_options, "options")
            except ValidationError as error:
                raise ValidationError({"criteria": error.messages}) from None
        return dict(question)

    def _question_schemas(self) -> list[dict[str, Any]]:
        most = self._most_options
        criteria = {"minProperties": 1, "maxProperties": most, "minItems": 1, "maxItems": most}
        return [
            question_schema(kind) if kind == "noul" else question_schema(kind, criteria=criteria) for kind in _TYPES
        ]


class _JevQuestions(_Questions):
    def __init__(self, limits: Limits, **kwargs: Any) -> None:
        super().__init__(min(limits.request_questions, JEV_QUESTIONS), **kwargs)
        self._instructions = Text(allow_none=True)
        self._criteria: dict[str, fields.Field[Any]] = {
            "noul": _NoulSides(allow_none=True),
            "choice": _Options(min(limits.options, JEV_OPTIONS), **required(OBJECT)),
            "score": _Levels(min(limits.levels, JEV_LEVELS), **required(LIST)),
        }

    def _question(self, question: Any) -> dict[str, Any]:
        kind = self._type(question)
        members = (("instructions", self._instructions), ("criteria", self._criteria[kind]))
        loaded, errors = load_fields(members, question)
        if errors:
            raise ValidationError(errors)
        loaded = {"type": kind, **loaded}
        if kind == "noul":
            _check_noul(loaded)
        return loaded

    def _question_schemas(self) -> list[dict[str, Any]]:
        instructions = describe(self._instructions)
        return [
            question_schema(kind, ["criteria"] * field.required, instructions=instructions, criteria=describe(field))
            for kind, field in self._criteria.items()
        ]


class _SystemOne(FlatSchema):
    """Common to both profiles. ``model`` is accepted with any value and ignored (contract § POST /v1/systemone)."""

    model = fields.Raw(allow_none=True)
    images = _Unsupported([[]], "images not supported")
    assets = _Unsupported([[], {}], "images not supported")


class _Jev(_SystemOne):
    """Fields of vLLM's and Granite Switch's own that a client may send: at their defaults they ask for nothing
    (contract/granite-switch-decision.md; wire/decisions.md §8, S3 to S5)."""

    instructions = _Unsupported([], "instructions belong to a question, not to the request")
    chat_template_kwargs = _Unsupported([{"enable_thinking": False}], 'may only be {"enable_thinking": false}')
    joint = _Unsupported([False], "questions are answered one by one; joint may only be false")
    audio = _Unsupported([[]], "audio not supported")
    videos = _Unsupported([[]], "videos not supported")
    priority = _Unsupported([0], "there are no priorities; it may only be 0")
    cache_salt = cache_salt()


def _with(base: type[FlatSchema], **more: fields.Field[Any]) -> Schema:
    """A schema of ``base`` with more fields."""
    return base.from_dict(dict(more))()


@lru_cache(maxsize=8)
def schema_for(profile: str, limits: Limits, native_options: int) -> Schema:
    """The schema of a body in ``profile`` under an engine's limits; ``native_options`` is NATIVE_MAX_OPTIONS."""
    if profile == "native":
        questions: _Questions = _NativeQuestions(
            limits.questions, min(native_options, limits.options), **required(OBJECT)
        )
        return _with(_SystemOne, state=Text(nonempty=True, **required(TEXT)), questions=questions)
    return _with(_Jev, state=Text(**required(TEXT)), questions=_JevQuestions(limits, **required(OBJECT)))
