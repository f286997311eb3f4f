"""The run directory: where both tiers meet (socket, slot files, lock file, metrics)."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

__all__ = ["RunDir", "RunDirError", "ScorerRunning"]

#: sun_path holds 108 bytes with its terminator; a longer path would fail at bind with an unclear message.
_MAX_SOCKET_PATH = 107


class RunDirError(RuntimeError):
    """The run directory cannot be used; the message names the path and what is wrong."""


class ScorerRunning(RuntimeError):
    """Another scorer holds this run directory."""


class RunDir:
    """Paths of one run directory, made and checked on construction.

    Raises :class:`RunDirError` when it cannot be made, is open to other users, or is so deep that the
    socket's path is over 107 bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
            mode = stat.S_IMODE(self.path.stat().st_mode)
        except OSError as error:
            raise RunDirError(f"INTERN_DECISION_RUN_DIR: {self.path}: {error.strerror}") from None
        if mode & 0o007:
            # Anyone who can enter could steal the socket's name. Not mended here: it may be a directory that others
            # use.
            raise RunDirError(
                f"INTERN_DECISION_RUN_DIR: {self.path} has mode {mode:04o}; it must be closed to other users (0750)"
            )
        if len(os.fsencode(self.socket)) > _MAX_SOCKET_PATH:
            raise RunDirError(
                f"INTERN_DECISION_RUN_DIR: the socket path {self.socket} has {len(os.fsencode(self.socket))} bytes, "
                f"a Unix socket's path at most {_MAX_SOCKET_PATH}"
            )

    @property
    def socket(self) -> Path:
        """The scorer's socket."""
        return self.path / "scorer.sock"

    @property
    def endpoint(self) -> str:
        """The socket as a ZeroMQ address."""
        return f"ipc://{self.socket}"

    @property
    def slots(self) -> Path:
        """The slot file (see :mod:`shared.slots`)."""
        return self.path / "slots"

    @property
    def metrics(self) -> Path:
        """Where the web workers count (see :mod:`web.metric_files`)."""
        return self.path / "metrics"

    @property
    def decision_slots(self) -> Path:
        """The slot file of the decision routes' own cap."""
        return self.path / "decision-slots"

    def lock_scorer(self) -> int:
        """Claim the directory for one scorer; returns the descriptor that holds the claim for life.

        A second bind on the same ``ipc://`` path silently steals the endpoint (architecture.md §1.5), so the claim is
        made on a lock file first. Raises :class:`ScorerRunning` when another scorer has it.
        """
        fd = os.open(self.path / "scorer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise ScorerRunning(f"another scorer is running on {self.path}") from None
        return fd
