"""The progress watchdog: the end of a process whose inference thread has been at one thing for too long.

The thread cannot be stopped from outside, so the process ends, with every stack on stderr, and is replaced. Long work
alone is never a hang: the bounds are settings, far above the longest legal job (architecture.md §1.5).
"""

from __future__ import annotations

import faulthandler
import logging
import os
import time

from scorer.worker import LOADING, Snapshot
from shared.settings import ScorerSettings

__all__ = ["EXIT_BROKEN", "exit_if_hung"]

EXIT_BROKEN = 70  # sysexits EX_SOFTWARE

_log = logging.getLogger("scorer.hang")


def exit_if_hung(snapshot: Snapshot, started: float, settings: ScorerSettings) -> None:
    """End the process with EXIT_BROKEN when the load, begun at monotonic ``started``, has taken longer than LOAD_S or
    the running job longer than HANG_S."""
    loads = snapshot.state == LOADING
    since = started if loads else snapshot.busy_since
    most_s = settings.load_s if loads else settings.hang_s
    if since is None or time.monotonic() - since <= most_s:
        return
    what = "the load" if loads else "one job"
    _log.critical(f"{what} has run too long", extra={"fields": {"seconds": most_s}})
    faulthandler.dump_traceback(all_threads=True)
    os._exit(EXIT_BROKEN)
