"""A progress line on a terminal: done of all, rate, time left. Silent anywhere else.

Of our own and not tqdm: that would be one more dependency of the scorer, with a monitor thread, for one line.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

__all__ = ["Progress"]

_EVERY_S = 0.2


class Progress:
    """Counts towards ``total``, of which ``done`` were there before and count in no rate. ``stream`` is stderr unless a
    test gives another one."""

    def __init__(self, total: int, done: int = 0, what: str = "answers", stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty()
        self._total, self._done, self._before, self._what = total, done, done, what
        self._failed = 0
        self._started = time.monotonic()
        self._next = self._started

    def step(self, count: int = 1, failed: int = 0) -> None:
        """``count`` more are done, ``failed`` of them without an answer."""
        self._done += count
        self._failed += failed
        if self._shown and (now := time.monotonic()) >= self._next:
            self._next = now + _EVERY_S
            self._stream.write(f"\r\x1b[K{self.text(now - self._started)}")
            self._stream.flush()

    def text(self, elapsed_s: float) -> str:
        """The line, ``elapsed_s`` seconds after the start."""
        fresh = self._done - self._before
        rate = fresh / elapsed_s if elapsed_s > 0 else 0.0
        share = self._done / self._total if self._total else 1.0
        left = _clock((self._total - self._done) / rate) if rate else "?"
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._done}/{self._total} {self._what} ({share:.0%}), {rate:.3g}/s, {left} left{failed}"

    def close(self) -> None:
        """Leave the last state standing on a line of its own."""
        if self._shown:
            self._stream.write(f"\r\x1b[K{self.text(time.monotonic() - self._started)}\n")
            self._stream.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
