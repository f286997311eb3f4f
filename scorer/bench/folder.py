"""A run's folder: ``run.json`` (the manifest), ``results.jsonl`` (a record a line) and ``failures.jsonl``.

A run that was killed leaves whole lines and perhaps a half of one, because all records of a call are one write at the
end of the file. So what is there up to the last line break is kept, and everything missing is asked again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from scorer.bench.index import Index
from scorer.bench.records import Record, RecordError
from shared import jsonio

__all__ = [
    "FAILURES",
    "MANIFEST",
    "RESULTS",
    "FolderError",
    "RecordFile",
    "Records",
    "RunFolder",
    "differences",
    "manifest_of",
    "placed",
    "records_of",
]

MANIFEST, RESULTS, FAILURES = "run.json", "results.jsonl", "failures.jsonl"

#: What must be the same for a run to be continued. The rest of a manifest tells what happened.
_SAME = ("format", "source", "engine", "data", "options")


class FolderError(RuntimeError):
    """The folder cannot be used as asked; the message names the file and what to do."""


class RunFolder:
    """The folder of one run, opened for writing by this process alone.

    ``manifest`` describes the run that is wanted. An empty or missing folder begins it; a folder of the same run
    continues it; of another, it is refused, unless ``overwrite``, which removes the run's own three files first.
    Raises FolderError, and OSError where the disk says no.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        there = None if overwrite else manifest_of(path)
        if there is None and not overwrite and any(map(_is_foreign, path.iterdir())):
            raise FolderError(f"{path} is not empty and holds no {MANIFEST}: give another folder")
        if there is not None and (found := differences(there, manifest)):
            raise FolderError(
                f"{path} holds another run; it differs in {', '.join(found)}: give another folder, or --overwrite"
            )
        # Opened for appending without emptying: another process may hold it. Without a buffer, since every call's
        # records are to be the kernel's at once.
        self._results = (path / RESULTS).open("a+b", buffering=0)
        try:
            fcntl.flock(self._results, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._results.close()
            raise FolderError(f"{path} is being written by another process") from None
        if overwrite:
            self._results.truncate(0)
        self.done = Index()
        #: Bytes of a half-written last line that were cut off.
        self.cut = 0
        try:
            self._take_stock()
        except FolderError:
            self._results.close()
            raise
        #: The manifest as it is to be written: the folder's own while that run is finished.
        self.manifest: dict[str, Any] = dict(manifest)
        self.finished = there is not None and there["status"] == "finished"
        if there is not None:
            self.manifest = there if self.finished else {**manifest, "created": there["created"]}
        # Rows that failed are asked again, so what failed before is no longer known.
        self._failures = (path / FAILURES).open("wb")

    def write(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Append the records (their JSON) of whole calls, in one write: safe from a kill when this returns."""
        data = jsonio.dumps_lines(records)
        # A short write is a disk that is about to be full: the next one says so.
        while data and (written := self._results.write(data)) < len(data):
            data = data[written:]

    def fail(self, entry: Mapping[str, Any]) -> None:
        """Append one failure."""
        self._failures.write(jsonio.dumps(entry) + b"\n")
        self._failures.flush()

    def save(self, **changes: Any) -> None:
        """Write the manifest, with changes; whole or not at all."""
        self.manifest.update(changes)
        part = self.path / f"{MANIFEST}.part"
        with part.open("wb") as file:
            file.write(jsonio.dumps(self.manifest) + b"\n")
            file.flush()
        part.replace(self.path / MANIFEST)

    def close(self) -> None:
        """Let go of the files."""
        self._results.close()
        self._failures.close()
        self.done.close()

    def _take_stock(self) -> None:
        """Cut a half-written last line off, and learn which answers are there."""
        end = 0
        with (self.path / RESULTS).open("rb") as stream:
            for number, line, record in _read(stream, self.path / RESULTS):
                end += len(line)
                if not self.done.add(record.key):
                    raise FolderError(f"{self.path / RESULTS}:{number}: this answer is there twice")
            self.cut = os.fstat(stream.fileno()).st_size - end
        if self.cut:
            self._results.truncate(end)


def manifest_of(path: Path) -> dict[str, Any] | None:
    """The manifest of a folder, None where there is none. Raises FolderError for one that cannot be read."""
    file = path / MANIFEST
    try:
        value = jsonio.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, jsonio.InvalidJSON) as error:
        raise FolderError(f"{file}: {error}") from None
    if not isinstance(value, dict) or not all(name in value for name in (*_SAME, "status", "created")):
        raise FolderError(f"{file}: is no manifest of a run")
    return value


def differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Dotted names of what keeps ``there`` from being the run that is ``wanted``; names that ``wanted`` does not have
    yet are passed over."""
    out: list[str] = []
    for name in _SAME:
        if name in wanted:
            out += _differences(name, there.get(name), jsonio.loads(jsonio.dumps(wanted[name])))
    return out


class RecordFile:
    """The records of a run's folder, or of a results file, read from the disk whenever they are walked: none is kept. A
    half-written last line is passed over.

    What reads raises FolderError, naming the line that is no record.
    """

    def __init__(self, path: Path) -> None:
        self._file = path / RESULTS if path.is_dir() else path
        self._open: BinaryIO | None = None

    def __iter__(self) -> Iterator[Record]:
        return (record for _, record in self.placed())

    def placed(self) -> Iterator[tuple[int, Record]]:
        """The records, each with the place at which :meth:`__getitem__` finds it again."""
        place = 0
        try:
            with self._file.open("rb") as stream:
                for _, line, record in _read(stream, self._file):
                    yield place, record
                    place += len(line)
        except OSError as error:
            raise FolderError(f"{self._file}: {error.strerror}") from None

    def __getitem__(self, place: int) -> Record:
        try:
            if self._open is None:
                self._open = self._file.open("rb")
            self._open.seek(place)
            line = self._open.readline()
        except OSError as error:
            raise FolderError(f"{self._file}: {error.strerror}") from None
        return _record(line, f"{self._file}, byte {place}")

    def close(self) -> None:
        """Let go of the file."""
        if self._open is not None:
            self._open.close()


#: What the measures read: a run's file, or records in memory.
Records = Sequence[Record] | RecordFile


def records_of(path: Path) -> Iterator[Record]:
    """The records of :class:`RecordFile`, once."""
    return iter(RecordFile(path))


def placed(records: Records) -> Iterator[tuple[int, Record]]:
    """The records, each with what finds it again: ``records[place]``."""
    return records.placed() if isinstance(records, RecordFile) else enumerate(records)


def _read(stream: BinaryIO, name: Path) -> Iterator[tuple[int, bytes, Record]]:
    for number, line in enumerate(stream, 1):
        if not line.endswith(b"\n"):
            return
        yield number, line, _record(line, f"{name}:{number}")


def _record(line: bytes, where: str) -> Record:
    try:
        return Record.from_json(jsonio.loads_ours(line))
    except (jsonio.InvalidJSON, RecordError) as error:
        raise FolderError(f"{where}: {error}") from None


def _is_foreign(entry: Path) -> bool:
    """Whether a folder without a manifest is not merely one whose run was killed in its first moment."""
    own = (RESULTS, FAILURES, f"{MANIFEST}.part")
    return entry.name not in own or (entry.name == RESULTS and entry.stat().st_size > 0)


def _differences(name: str, a: Any, b: Any) -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        return [
            found
            for key in sorted(a.keys() | b.keys())
            for found in _differences(f"{name}.{key}", a.get(key), b.get(key))
        ]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [found for i, (x, y) in enumerate(zip(a, b, strict=True)) for found in _differences(f"{name}.{i}", x, y)]
    return [] if a == b else [name]
