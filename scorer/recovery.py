"""What an exception of an engine means, and whether the process may go on. Pure.

The rules are INV-4's and architecture.md §1.5's: only out-of-memory and bad input leave the process unquestioned; a
fatal device error ends it; anything else leaves it on probation until the canary has answered as it did at start.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from scorer.engines.base import FatalEngineError, OutOfMemory
from shared import wire

__all__ = ["Afterwards", "Verdict", "classify"]

#: First lines of CUDA errors after which the context answers nothing but errors, or garbage (trouble.md rank 33).
_FATAL = (
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "misaligned address",
    "hardware stack error",
)


class Afterwards(Enum):
    """What has to happen once the reply is out."""

    GO_ON = "go on"
    CANARY = "run the canary"
    EXIT = "exit"


@dataclass(frozen=True)
class Verdict:
    """A reply's status and message, and what follows. A message other than a ValueError's never quotes the
    exception."""

    status: str
    message: str
    afterwards: Afterwards


def classify(error: BaseException) -> Verdict:
    """The verdict on an exception that ``prepare`` or ``predict`` raised."""
    text = str(error)
    first_line = text.splitlines()[0].lower() if text else ""
    if isinstance(error, (OutOfMemory, MemoryError)) or (
        isinstance(error, RuntimeError) and "out of memory" in first_line
    ):
        return Verdict(wire.OUT_OF_MEMORY, "the model ran out of memory on this request", Afterwards.GO_ON)
    if isinstance(error, ValueError):
        return Verdict(wire.INVALID, _for_a_header(text), Afterwards.GO_ON)
    fatal = isinstance(error, FatalEngineError) or (
        isinstance(error, RuntimeError) and any(mark in first_line for mark in _FATAL)
    )
    return Verdict(wire.FAILED, "the model failed on this request", Afterwards.EXIT if fatal else Afterwards.CANARY)


def _for_a_header(text: str) -> str:
    """The message as a reply header can carry it: UTF-8, and within its size if each character is escaped."""
    return text.encode("utf-8", "replace")[: wire.MAX_HEADER_BYTES // 8].decode("utf-8", "ignore")
