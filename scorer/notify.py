"""What systemd is told of this process (sd_notify(3)): loading, ready, alive, stopping.

The broker reports its state at every turn of its loop, after it has looked for a hung job. So the pings end when the
loop stands still (a frozen process, a write to a log that nobody reads) or when one job has run too long, and the
unit's ``WatchdogSec=`` then replaces what cannot replace itself. Without ``NOTIFY_SOCKET`` nothing is sent.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping

__all__ = ["Notifier"]

#: A load and a drain put ``TimeoutStartSec=`` and ``TimeoutStopSec=`` off by 60 s with each notice: their bounds are
#: settings (LOAD_S, DRAIN_S), which the unit cannot know. A process that is frozen sends no notice and has none.
_EXTEND = "EXTEND_TIMEOUT_USEC=60000000"
_ALIVE = "WATCHDOG=1"
#: What is sent once, when a state begins, and what again and again while it lasts.
_ENTERED = {"loading": (), "ready": ("READY=1",), "draining": ("STOPPING=1",)}
_LASTING = {"loading": (_EXTEND,), "ready": (_ALIVE,), "draining": (_ALIVE, _EXTEND)}
#: Seconds between two notices of one state.
_EVERY_S = 5.0


class Notifier:
    """Sends notices to the socket at ``address`` (None: to nobody), often enough for a manager that loses patience
    after ``watchdog_s`` seconds. Never raises and never waits: a notice that cannot be sent is made up for at the next
    turn of the loop."""

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self._address = address
        # A third of the patience, so that one lost notice costs nothing.
        self._every_s = min(_EVERY_S, watchdog_s / 3) if watchdog_s else _EVERY_S
        self._state = ""
        self._due = 0.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Notifier:
        """The notifier for this process's service manager. Its variables are systemd's, not settings of ours, so a bad
        one is no reason to refuse a start."""
        found = os.environ if environ is None else environ
        address = found.get("NOTIFY_SOCKET", "")
        # "@name" is a name without a file, which the kernel takes with a zero byte first.
        address = "\0" + address[1:] if address.startswith("@") else address
        patience = found.get("WATCHDOG_USEC", "")
        ours = found.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watched = ours and re.fullmatch(r"[1-9][0-9]{0,17}", patience) is not None
        return cls(address or None, int(patience) / 1e6 if watched else None)

    def report(self, state: str, status: str) -> None:
        """The process is alive and ``loading``, ``ready`` or ``draining``; ``status`` is for ``systemctl status``."""
        if self._address is None:
            return
        now = time.monotonic()
        entered = state != self._state
        if not (entered or now >= self._due):
            return
        lines = [
            *(_ENTERED[state] if entered else ()),
            # A line break in it would begin an assignment of its own.
            f"STATUS={' '.join(status.split())}",
            *_LASTING[state],
        ]
        if self._sent("\n".join(lines).encode(), self._address):
            self._state, self._due = state, now + self._every_s

    @staticmethod
    def _sent(message: bytes, address: str) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            try:
                return sender.sendto(message, address) == len(message)
            except (OSError, ValueError):
                return False
