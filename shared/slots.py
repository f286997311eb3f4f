"""Admission over all web workers and threads: at most ``MAX_QUEUE`` requests in progress, counted by the kernel; and,
from a second file, at most ``MAX_CONCURRENT_DECISIONS`` on the decision routes.

One file in the run directory, one open-file-description (OFD) byte-range lock per slot. Such a lock belongs to one
``open()``: threads and processes exclude each other, and the kernel frees it when the holder dies, SIGKILL included,
so no slot can leak (architecture.md §1.1; a POSIX lock or a semaphore fails one of the two).

Two lock ranges, for the strict variant of that section:

* ``held[i]`` is locked by the web tier from admission to the reply;
* ``work[i]`` is locked by the scorer while it really runs slot i's job.

A slot is free only when neither is locked, so a killed web worker does not free a slot that still costs the model
time. The order of steps on both sides makes the check airtight: the web tier locks ``held[i]``, *then* writes the job
id, *then* probes ``work[i]``; the scorer locks ``work[i]``, *then* checks ``held[i]`` and the job id. Whichever comes
second sees the other.

Linux only: OFD locks exist nowhere else, and a lock cannot be inherited by ``fork`` without keeping the slot, so a
web worker must never fork.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

__all__ = ["Slot", "SlotFileError", "SlotTable", "WorkLease"]

_MAGIC = b"IDSLOTS1"
_HEADER = struct.Struct("<8sI")
_RECORDS_AT = 64
_ID_SIZE = 16
#: Lock bytes lie far beyond the records; a lock may cover bytes that the file does not have.
_HELD_AT = 1 << 30
_WORK_AT = 1 << 31
_HEADER_LOCK_AT = 1 << 32
#: struct flock on 64-bit Linux: l_type, l_whence, (padding), l_start, l_len, l_pid (must be 0 for OFD locks), padding.
_FLOCK = struct.Struct("hhqqi4x")


class SlotFileError(RuntimeError):
    """The slot file cannot be used: another size is in force, or it is damaged or gone."""


def _lock(fd: int, kind: int, offset: int) -> bool:
    """Try to set an OFD lock on one byte; False when somebody else holds it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _locked_by_other(fd: int, offset: int) -> bool:
    """Whether another open file description holds a lock on the byte; takes nothing."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


class Slot:
    """One admitted request. A context manager: leaving it, however, frees the slot; its number is then added to
    ``freed``."""

    def __init__(self, fd: int, index: int, freed: list[int]) -> None:
        self._fd = fd
        self.index = index
        self._freed = freed

    def close(self) -> None:
        """Free the slot. Safe to call twice."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
            self._freed.append(self.index)

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class WorkLease:
    """The scorer's proof that it runs one slot's job. A context manager, like :class:`Slot`."""

    def __init__(self, table: SlotTable, index: int, job_id: bytes) -> None:
        self._table = table
        self.index = index
        self._job_id = job_id

    def wanted(self) -> bool:
        """Whether the web tier still holds the slot for this very job."""
        return self._table.owned(self.index, self._job_id)

    def close(self) -> None:
        """Give ``work[i]`` back."""
        _lock(self._table.fd, fcntl.F_UNLCK, _WORK_AT + self.index)

    def __enter__(self) -> WorkLease:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class SlotTable:
    """The slot file of one run directory.

    ``size`` is the value of ``setting``. It stands in the file's header and is rewritten only while no slot is held, so
    that two sets of workers (a reload with a new value) can never run two limits at once: the later one refuses to
    start. The scorer opens the file without a size and takes the header's word.
    """

    def __init__(self, path: Path, size: int | None = None, setting: str = "MAX_QUEUE") -> None:
        """Open or create the file. Raises :class:`SlotFileError` on another size in use, OSError on I/O trouble."""
        self.path = path
        self._setting = setting
        #: Slots that this process has freed and not taken again, the last one last: never more than it held at once.
        self._freed: list[int] = []
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._stat = os.fstat(self.fd)
            self.size = self._read_size() if size is None else self._agree_on(size)
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Close the table (tests; a server keeps it for life)."""
        os.close(self.fd)

    def acquire(self, job_id: bytes) -> Slot | None:
        """Take a free slot for the job (16 bytes), or None when all are taken.

        Raises :class:`SlotFileError` when the file was removed, replaced or resized meanwhile: locks on a file that
        nobody else can see, or two limits at once, would admit too many.
        """
        fd = self._open_same_file()
        try:
            for index in self._candidates():
                if not _lock(fd, fcntl.F_WRLCK, _HELD_AT + index):
                    continue
                # Read while a slot is held: whoever changes the size writes first and looks for held slots second.
                if self._read_size() != self.size:
                    raise SlotFileError(
                        f"{self._setting} in {self.path} is no longer {self.size}: another web tier uses this run "
                        "directory"
                    )
                os.pwrite(fd, job_id, _RECORDS_AT + _ID_SIZE * index)
                if _locked_by_other(fd, _WORK_AT + index):
                    # A stale job of a dead request still runs in this slot.
                    _lock(fd, fcntl.F_UNLCK, _HELD_AT + index)
                    continue
                return Slot(fd, index, self._freed)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def _candidates(self) -> Iterator[int]:
        """Every slot, in the order to try them: first what was freed here, most likely free still. From the lowest
        number up alone, 32 callers made each look at a dozen held ones: 130 us at worst, and a thread switch each."""
        with contextlib.suppress(IndexError):
            while True:
                yield self._freed.pop()
        yield from range(self.size)

    def begin_work(self, index: int, job_id: bytes) -> WorkLease | None:
        """Mark the slot as running, or None when its request is gone and the job must be skipped.

        The scorer may have opened the file before the web tier sized it, and a restarted web tier may have made a new
        one in place of a deleted one; either is noticed here rather than skipping jobs for ever.
        """
        return self._try_begin(index, job_id) or (self._reopen() and self._try_begin(index, job_id)) or None

    def wanted(self, index: int, job_id: bytes) -> bool:
        """Whether a request still waits for this job. Once false, false for ever: ids are never used twice.

        Looks at the path again, like :meth:`begin_work`.
        """
        return self._owned_in_range(index, job_id) or (self._reopen() and self._owned_in_range(index, job_id))

    def _owned_in_range(self, index: int, job_id: bytes) -> bool:
        return 0 <= index < self.size and self.owned(index, job_id)

    def _try_begin(self, index: int, job_id: bytes) -> WorkLease | None:
        if not 0 <= index < self.size or not _lock(self.fd, fcntl.F_WRLCK, _WORK_AT + index):
            return None
        lease = WorkLease(self, index, job_id)
        if not lease.wanted():
            lease.close()
            return None
        return lease

    def _reopen(self) -> bool:
        """Look at the path again; True when there is something new to see."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) == (self._stat.st_dev, self._stat.st_ino):
            os.close(fd)
            try:
                size = self._read_size()
            except SlotFileError:
                return False  # damaged: nobody can tell what is wanted, and the web tier refuses new requests
            changed, self.size = size != self.size, size
            return changed
        os.close(self.fd)
        self.fd, self._stat = fd, found
        self.size = self._read_size()
        return True

    def owned(self, index: int, job_id: bytes) -> bool:
        """Whether somebody holds the slot for this job id."""
        return (
            _locked_by_other(self.fd, _HELD_AT + index)
            and os.pread(self.fd, _ID_SIZE, _RECORDS_AT + _ID_SIZE * index) == job_id
        )

    def in_use(self) -> int:
        """Slots that are held or running at this moment (an approximate count while requests come and go)."""
        return sum(
            _locked_by_other(self.fd, _HELD_AT + index) or _locked_by_other(self.fd, _WORK_AT + index)
            for index in range(self.size)
        )

    def _open_same_file(self) -> int:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SlotFileError(f"the slot file {self.path} is gone; restart the web tier") from None
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != (self._stat.st_dev, self._stat.st_ino):
            os.close(fd)
            raise SlotFileError(f"the slot file {self.path} was replaced; restart the web tier")
        return fd

    def _read_size(self) -> int:
        head = os.pread(self.fd, _HEADER.size, 0)
        if len(head) < _HEADER.size:
            return 0
        magic, size = _HEADER.unpack(head)
        if magic != _MAGIC:
            raise SlotFileError(f"{self.path} is not a slot file")
        return int(size)

    def _agree_on(self, size: int) -> int:
        # Workers start together: one at a time may look at the header and change it.
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _HEADER_LOCK_AT, 1, 0))
        try:
            current = self._read_size()
            if current == size:
                return size
            # Written first and looked at second, so that no request can slip in between under the old size.
            os.pwrite(self.fd, _HEADER.pack(_MAGIC, size), 0)
            self.size = max(current, size)
            if current and self.in_use():
                os.pwrite(self.fd, _HEADER.pack(_MAGIC, current), 0)
                raise SlotFileError(
                    f"{self._setting} is {size} here, but requests are in progress under {self._setting}={current}; "
                    "stop the running web tier before changing it"
                )
            return size
        finally:
            _lock(self.fd, fcntl.F_UNLCK, _HEADER_LOCK_AT)
