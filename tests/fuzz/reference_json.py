"""The rule that ``shared.jsonio.loads`` is held against, written out from RFC 8259 and the README's sentence on JSON
and nothing of the standard library's parser: UTF-8 with at most one byte order mark; the grammar; finite numbers;
integers of at most 4,300 digits; no name twice in one object; no lone surrogate; at most 64 levels."""

from __future__ import annotations

import math
import re
from typing import Any

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_PLAIN = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")


class Refused(Exception):
    """The bytes are not JSON that the service takes."""


def read(data: bytes, max_depth: int = 64) -> Any:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused from None
    return _Reader(text[1:] if text.startswith("\ufeff") else text, max_depth).document()


class _Reader:
    def __init__(self, text: str, max_depth: int) -> None:
        self._text = text
        self._at = 0
        self._max_depth = max_depth

    def document(self) -> Any:
        self._space()
        value = self._value(0)
        self._space()
        if self._at != len(self._text):
            raise Refused
        return value

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, expected: str) -> None:
        if not self._text.startswith(expected, self._at):
            raise Refused
        self._at += len(expected)

    def _space(self) -> None:
        while self._peek() and self._peek() in " \t\n\r":
            self._at += 1

    def _value(self, depth: int) -> Any:
        first = self._peek()
        if first in ("{", "["):
            if depth == self._max_depth:
                raise Refused
            return self._object(depth + 1) if first == "{" else self._array(depth + 1)
        if first == '"':
            return self._string()
        for word, value in (("true", True), ("false", False), ("null", None)):
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        return self._number()

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._take("{")
        self._space()
        if self._peek() == "}":
            self._at += 1
            return found
        while True:
            name = self._string()
            if name in found:
                raise Refused
            self._space()
            self._take(":")
            self._space()
            found[name] = self._value(depth)
            self._space()
            if self._peek() != ",":
                self._take("}")
                return found
            self._at += 1
            self._space()

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self._take("[")
        self._space()
        if self._peek() == "]":
            self._at += 1
            return found
        while True:
            found.append(self._value(depth))
            self._space()
            if self._peek() != ",":
                self._take("]")
                return found
            self._at += 1
            self._space()

    def _string(self) -> str:
        self._take('"')
        out: list[str] = []
        while True:
            char = self._peek()
            self._at += 1
            if not char or char < " ":
                raise Refused
            if char == '"':
                return "".join(out)
            out.append(self._escape() if char == "\\" else char)

    def _escape(self) -> str:
        char = self._peek()
        self._at += 1
        if char in _PLAIN:
            return _PLAIN[char]
        if char != "u":
            raise Refused
        unit = self._unit()
        if 0xD800 <= unit <= 0xDBFF:
            self._take("\\u")
            low = self._unit()
            if not 0xDC00 <= low <= 0xDFFF:
                raise Refused
            return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
        if 0xDC00 <= unit <= 0xDFFF:
            raise Refused
        return chr(unit)

    def _unit(self) -> int:
        found = _HEX.match(self._text, self._at)
        if not found:
            raise Refused
        self._at += 4
        return int(found.group(), 16)

    def _number(self) -> int | float:
        found = _NUMBER.match(self._text, self._at)
        if not found:
            raise Refused
        self._at = found.end()
        if found.group(2) is None and found.group(3) is None:
            if len(found.group(1)) > 4300:
                raise Refused
            return int(found.group())
        number = float(found.group())
        if math.isinf(number):
            raise Refused
        return number
