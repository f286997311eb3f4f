"""The files through which the workers of one service add up their counts: prometheus-client's multiprocess mode.

Each worker writes its own two files, memory-mapped, so nothing is lost when it is killed. Whoever answers a scrape
reads all of them. A dead worker's files are folded into one by the master, or they would pile up with every death
(trouble.md rank 36); a lock keeps a scrape from seeing half of that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

__all__ = ["MetricFiles"]

#: What this project writes, and the bytes set aside for each; the labels' values are few, so none outgrows them. The
#: disk must have them before they are mapped: a write into a page for which it has no room kills the process (SIGBUS).
_KINDS = {"counter": 1 << 16, "histogram": 1 << 18}
_DEAD = "dead"


class MetricFiles:
    """The files in ``directory``. The master calls :meth:`wipe` and :meth:`absorb`, a worker the others."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def wipe(self) -> None:
        """Make the directory and remove what an earlier service left in it. Raises OSError."""
        self._directory.mkdir(exist_ok=True)
        for file in self._directory.iterdir():
            file.unlink()

    def reserve(self) -> None:
        """Set aside this process's files, before its first metric. Raises OSError when the disk is full."""
        for kind, size in _KINDS.items():
            _reserve(self._file(kind, os.getpid()), size)

    def read(self) -> list[Metric]:
        """The sums over all workers, the dead included."""
        with self._lock(fcntl.LOCK_SH):
            return list(MultiProcessCollector.merge(_begun(self._directory.glob("*.db"))))

    def absorb(self, pids: Iterable[int]) -> bool:
        """Fold the files of dead workers into one a kind; False when a scrape is reading: ask again at the next
        death."""
        try:
            with self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB):
                for kind in _KINDS:
                    self._absorb(kind, [file for pid in pids if (file := self._file(kind, pid)).exists()])
        except BlockingIOError:
            return False
        return True

    def _absorb(self, kind: str, gone: list[Path]) -> None:
        total = self._file(kind, _DEAD)
        sums: dict[str, float] = {}
        for path in _begun([*gone, total] if total.exists() else gone):
            for key, value, _, _ in MmapedDict.read_all_values_from_file(path):
                sums[key] = sums.get(key, 0.0) + value
        made = total.with_suffix(".new")
        made.unlink(missing_ok=True)
        # 4 bytes of length, up to 8 of padding, 16 of value and time.
        _reserve(made, max(_KINDS[kind], 8 + sum(len(key.encode()) + 28 for key in sums)))
        written = MmapedDict(str(made))
        for key, value in sums.items():
            written.write_value(key, value, 0.0)
        written.close()
        made.rename(total)
        for file in gone:
            file.unlink()

    def _file(self, kind: str, of: int | str) -> Path:
        return self._directory / f"{kind}_{of}.db"

    @contextlib.contextmanager
    def _lock(self, how: int) -> Iterator[None]:
        fd = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, how)
            yield
        finally:
            os.close(fd)


def _begun(files: Iterable[Path]) -> list[str]:
    """Without the empty ones, which prometheus-client cannot read: being made, or of a worker with no room on disk."""
    return [str(file) for file in files if file.stat().st_size]


def _reserve(file: Path, size: int) -> None:
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)
