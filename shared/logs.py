"""Logging of both tiers: one line a record, JSON or text, never any caller's text.

Extra fields are passed as ``extra={"fields": {...}}`` and must be ids, counts, sizes and times only. A failure is
logged as the exception's type and its frames, without its message: an engine's message may quote the caller's state
(trouble.md rank 47).
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from functools import lru_cache
from typing import Any

from shared import jsonio

__all__ = ["configure", "frames"]


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
        tail = "".join(f" {name}={jsonio.dumps_ascii(value)}" for name, value in fields.items())
        message = jsonio.dumps_ascii(record.getMessage())[1:-1]
        return f"{_timestamp(record)} {record.levelname.lower()} {record.name}: {message}{tail}"


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
