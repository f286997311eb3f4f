"""Pins: which checkpoint may be served, and which bytes of its ``inference.py`` may run (INV-3).

The 4B release is built in. Another release takes an explicit file, named by the setting ``PINS_FILE``, of exactly this
form:

    {"name": "...", "revision": "...", "sha256": "..."}

so that serving other code is always somebody's written decision, never a side effect of another path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shared import jsonio

__all__ = ["INTERN_DECISION_4B", "Pin", "PinError", "dump_pin", "read_pin"]

_RULES = {
    "name": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"), "1 to 128 of the characters A-Z a-z 0-9 . _ / -"),
    "revision": (re.compile(r"[0-9a-f]{40}"), "40 hexadecimal digits in lower case"),
    "sha256": (re.compile(r"[0-9a-f]{64}"), "64 hexadecimal digits in lower case"),
}


class PinError(ValueError):
    """A pins file is missing or malformed; the message names the file and the rule."""


@dataclass(frozen=True)
class Pin:
    """One release: ``name`` is what its ``inference.py`` calls itself, ``revision`` the commit its snapshot directory
    is named after, ``sha256`` the hash (hex) of its ``inference.py``."""

    name: str
    revision: str
    sha256: str


INTERN_DECISION_4B = Pin(
    name="Intern-Decision-4B",
    revision="0e5e6aa7d6d750e2b1504ba11a8136cb58aeb3cd",
    sha256="c904e2c67ca0775621a22375ee373d2ba30b52117cda870c6c9ef74143b29863",
)


def read_pin(path: Path) -> Pin:
    """Read a pins file. Raises :class:`PinError` for a file that cannot be read, is not strict JSON, lacks a name, has
    one too many, or holds a value of the wrong form."""
    try:
        value = jsonio.loads(path.read_bytes())
    except OSError as error:
        raise PinError(f"{path}: {error.strerror}") from None
    except jsonio.InvalidJSON as error:
        raise PinError(f"{path}: {error}") from None
    return _pin(path, value)


def dump_pin(pin: Pin) -> bytes:
    """A pins file's content for ``pin``; :func:`read_pin` reads it back."""
    return jsonio.dumps(asdict(pin)) + b"\n"


def _pin(path: Path, value: Any) -> Pin:
    if not isinstance(value, Mapping) or set(value) != set(_RULES):
        raise PinError(f"{path}: must be an object with exactly the names {', '.join(_RULES)}")
    for name, (pattern, rule) in _RULES.items():
        if not isinstance(value[name], str) or not pattern.fullmatch(value[name]):
            raise PinError(f"{path}: {name} must be {rule}")
    return Pin(**value)
