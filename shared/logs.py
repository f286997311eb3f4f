"""Logging of both tiers: one line a record, JSON or text, never any caller's text.

Extra fields are passed as ``extra={"fields": {...}}`` and must be ids, counts, sizes and times only. A failure is
logged as the exception's type and its frames, without its message: an engine's message may quote the caller's state
(trouble.md rank 47).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
from functools import lru_cache
from typing import Any

from shared import jsonio

__all__ = ["complete_streams", "configure", "frames", "tell"]


def complete_streams() -> None:
    """Give a process that was started without some of its standard streams empty ones. Call it first of all.

    Otherwise the next file to be opened gets the number of the missing one: a scorer without standard error had its
    lock file there, gunicorn its listening socket, and what C code writes to "standard error" would have gone there. A
    stack dump, a message or a flush raised, and the exit code was 1, which reads as worth a restart.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number, so its own, as long as nothing was opened before.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def tell(message: str) -> None:
    """Say on standard error why the process ends. That nobody can read it (a full disk) must not change the exit code,
    so nothing is left in a buffer that would be written once more at the end."""
    with contextlib.suppress(OSError):
        os.write(2, f"{message}\n".encode("utf-8", "backslashreplace"))


def frames(error: BaseException) -> dict[str, Any]:
    """An exception as log fields: its type and where it passed, innermost last, without its message."""
    return {
        "exception": type(error).__qualname__,
        "frames": [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)],
    }


class _JSONFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1]:
            line.update(frames(record.exc_info[1]))
        return jsonio.dumps_ascii(line)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1]:
            fields.update(frames(record.exc_info[1]))
        # Written as JSON strings, neither a value nor the message can forge a second line.
        tail = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        message = jsonio.dumps_ascii(record.getMessage())[1:-1]
        return f"{_timestamp(record)} {record.levelname.lower()} {record.name}: {message}{tail}"


def _shown(value: Any) -> str:
    # Most are numbers, and a JSON encoder takes ten times as long for one.
    return repr(value) if type(value) in (int, float) else jsonio.dumps_ascii(value)


def _timestamp(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.msecs):03d}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def configure(log_format: str, level: str) -> None:
    """Send every logger of this process to stderr in ``log_format`` (``json`` or ``text``) from ``level`` up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JSONFormatter() if log_format == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # What no format of ours shows need not be found out for every record (the logging cookbook's own advice).
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    # A full disk or a closed stderr must not fail a request (architecture.md §4, test 18).
    logging.raiseExceptions = False
