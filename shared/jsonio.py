"""Strict JSON, both ways: the only module of the project that parses or writes JSON.

The standard library's parser lets through what is not JSON (``NaN``), what is not finite (``1e400``
becomes infinity), names that occur twice (the last one wins, silently) and lone surrogates (which fail
later, when somebody encodes them). Every one of them would change what the caller asked, or turn the
caller's mistake into a 500, so all are refused here (trouble.md ranks 16, 17, 21, 39, 40).

What the tiers write themselves, and read of each other, goes through msgspec: an answer takes it a tenth of the
standard library's instructions. It keeps integers of any size and every bit of a double. Two things it leaves to the
standard library: a caller's body, whose doubled names it would not notice, and text that a model reads or that is
hashed, since it writes some numbers differently (1e-05 as 0.00001).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

__all__ = [
    "MAX_DEPTH",
    "InvalidJSON",
    "as_text",
    "canonical",
    "dumps",
    "dumps_ascii",
    "dumps_indented",
    "dumps_lines",
    "loads",
    "loads_ours",
]

#: Deepest nesting of objects and arrays accepted in a request body, the outermost container counting as one.
#: Fixed, so that the answer is the same on every Python version (wire/systemone.md §2.3).
MAX_DEPTH = 64

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_BOM = "\ufeff"


class InvalidJSON(ValueError):
    """The bytes are not the JSON that this service accepts; the message says which rule they break.

    ``offset`` is the character at which parsing stopped, where that is known.
    """

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset


def loads(data: bytes, max_depth: int = MAX_DEPTH) -> Any:
    """Parse UTF-8 JSON strictly.

    A byte order mark is tolerated (wire/semif.md §8, 21); objects keep the order of their names. Raises
    :class:`InvalidJSON` for any other encoding, bad syntax, NaN or Infinity, a number that overflows, an integer
    of more than 4,300 digits, a name that occurs twice in one object, a lone surrogate, or nesting deeper than
    ``max_depth``.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJSON("the body is not UTF-8", error.start) from None
    text = text.removeprefix(_BOM)
    try:
        value = _DECODER.decode(text)
    except InvalidJSON:
        raise
    except json.JSONDecodeError as error:
        raise InvalidJSON(f"the body is not valid JSON: {error.msg}", error.pos) from None
    except RecursionError:
        raise InvalidJSON(_too_deep(max_depth)) from None
    except ValueError:
        # Not a JSONDecodeError: CPython's limit on the digits of an integer.
        raise InvalidJSON("an integer in the body has more than 4300 digits") from None
    # Brackets inside strings only overcount, so a small count proves that the nesting is small; most bodies
    # are spared the walk.
    if text.count("[") + text.count("{") > max_depth and _depth(value) > max_depth:
        raise InvalidJSON(_too_deep(max_depth))
    if _SURROGATE_ESCAPE.search(text) and any(_has_lone_surrogate(item) for item in _strings(value)):
        raise InvalidJSON("a string in the body holds a lone surrogate, which has no UTF-8 form")
    return value


def loads_ours(data: bytes) -> Any:
    """Parse JSON that the other tier wrote with :func:`dumps`, in a fifth of the time of :func:`loads`, which has to
    assume a stranger.

    NaN, Infinity, bad syntax, bad UTF-8 and exhausting depth still raise :class:`InvalidJSON`.
    """
    try:
        return _read(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidJSON(f"not JSON of ours: {type(error).__name__}") from None


def dumps(value: Any) -> bytes:
    """Write compact UTF-8 JSON, names in the order given.

    Raises :class:`ValueError` for a non-finite number or a lone surrogate, so that neither ever leaves, and TypeError
    for an object of no JSON type; but a set is written as an array, and bytes as base64.
    """
    try:
        data: bytes = _write(value)
    except TypeError:
        # A subclass of str or float, numpy's float64 say, which msgspec does not know; or what has no form at all.
        return canonical(value)
    # msgspec writes NaN and the infinities as null; the standard library refuses them.
    return canonical(value) if b"null" in data else data


def canonical(value: Any) -> bytes:
    """As :func:`dumps`, but always in the standard library's words: for what a model reads and for hashes, where the
    digits of a number count."""
    return _ENCODER.encode(value).encode("utf-8")


def dumps_lines(values: Iterable[Any]) -> bytes:
    """A line each, as :func:`dumps` writes it. Raises what :func:`dumps` does."""
    return b"".join([dumps(value) + b"\n" for value in values])


def dumps_ascii(value: Any) -> str:
    """As :func:`dumps`, but for log lines: escaped to ASCII, so that no string can fail to be written or break a
    line."""
    try:
        data = dumps(value)
    except UnicodeEncodeError:  # a lone surrogate, which an escape can show
        return _ASCII_ENCODER.encode(value)
    return data.decode("ascii") if data.isascii() else _ASCII_ENCODER.encode(value)


def dumps_indented(value: Any) -> str:
    """As :func:`dumps`, but for files that people read and compare: two spaces a level, a line break at the end."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def as_text(value: Any) -> str:
    """A text as a model reads it: a string as it is, nothing for null, anything else as compact JSON, never as a Python
    repr (wire/systemone.md §10, rows 14 and 15)."""
    if value is None:
        return ""
    return value if isinstance(value, str) else canonical(value).decode()


def _refuse_constant(name: str) -> Any:
    raise InvalidJSON(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidJSON("a number in the body is too large to be finite")
    return value


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                shown = name if len(name) <= 64 else name[:64] + "..."
                raise InvalidJSON(f"the name {json.dumps(shown)} occurs twice in one object")
            seen.add(name)
    return value


def _too_deep(max_depth: int) -> str:
    return f"the body is nested deeper than {max_depth} levels"


def _depth(value: Any) -> int:
    """Levels of containers in ``value``; iterative, so that no input can exhaust the stack."""
    deepest, stack = 0, [(value, 1)]
    while stack:
        item, level = stack.pop()
        if isinstance(item, dict):
            children: Any = item.values()
        elif isinstance(item, list):
            children = item
        else:
            continue
        deepest = max(deepest, level)
        stack.extend((child, level + 1) for child in children if isinstance(child, (dict, list)))
    return deepest


def _strings(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


# Made once: json.loads and json.dumps would make a new one for every call with arguments such as these.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite_float, object_pairs_hook=_unique_names)
# Nothing here can hold itself, and looking for it took an eighth of the time; it would end as too deep.
_ASCII_ENCODER = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode
