"""How the text of a setting becomes its value. Pure.

Each parser takes the text and returns the value, or raises ValueError with a rule that reads on after the variable's
name ("must be ..."). The text itself is never repeated: it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

__all__ = ["TOKEN_MIN", "bind", "choice", "flag", "integer", "name", "number", "path", "reference", "text", "token"]

TOKEN_MIN = 32


def integer(minimum: int, maximum: int = 10**12) -> Callable[[str], int]:
    """A whole number within bounds, in ASCII digits only."""

    def parse(text: str) -> int:
        # int() would take "1_000", " 5 ", "+5" and digits of other scripts (trouble.md rank 48).
        if not re.fullmatch(r"[0-9]{1,18}", text) or not minimum <= int(text) <= maximum:
            raise ValueError(f"must be a whole number of at least {minimum} and at most {maximum}")
        return int(text)

    return parse


def number(maximum: int) -> Callable[[str], float]:
    """A finite number above 0, in plain decimal notation."""

    def parse(text: str) -> float:
        # float() would take "nan", "inf", "1e3" and the rest of the list above.
        if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text) or not 0 < float(text) <= maximum:
            raise ValueError(f"must be a number above 0 and at most {maximum}")
        return float(text)

    return parse


def choice(*allowed: str) -> Callable[[str], str]:
    """One of the words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError("must be one of " + ", ".join(allowed))
        return text

    return parse


def name(text: str) -> str:
    """An engine's name."""
    # Which names exist is the scorer's to say: its registry of engines is the one list.
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,40}", text):
        raise ValueError("must be the name of an engine, in lower case")
    return text


def flag(text: str) -> bool:
    """``0`` or ``1``."""
    return choice("0", "1")(text) == "1"


def text(value: str) -> str:
    """Any text without control characters."""
    if not value or any(ord(ch) < 32 for ch in value):
        raise ValueError("must not be empty or hold control characters")
    return value


def bind(value: str) -> str:
    """Where to listen."""
    host, colon, port = value.rpartition(":")
    if value.startswith("unix:"):
        good = len(value) > len("unix:")
    else:
        good = bool(colon and host) and re.fullmatch(r"[0-9]{1,5}", port) is not None and 0 < int(port) <= 65535
    if not good:
        raise ValueError("must be HOST:PORT or unix:PATH")
    return text(value)


def path(value: str) -> Path:
    """A path."""
    return Path(text(value))


def reference(value: str) -> str:
    """A function, as ``module:function``."""
    module, _, function = value.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), function]):
        raise ValueError("must be MODULE:FUNCTION")
    return value


def token(value: str) -> str:
    """A bearer token (INV-6)."""
    # The value is a secret: the message says the rule, never the value.
    if len(value) < TOKEN_MIN or not all(33 <= ord(ch) <= 126 for ch in value):
        raise ValueError(f"must be at least {TOKEN_MIN} visible ASCII characters (33-126)")
    return value
