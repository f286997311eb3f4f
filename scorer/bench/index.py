"""A set of keys whose memory does not grow with their number: in a dictionary at first, then in a private SQLite file.

A run has to know which ids a file has had and which answers a folder already holds. Both grow with the rows; at ten
million of them a dictionary would hold gigabytes.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence

from shared import jsonio

__all__ = ["Index"]

#: Keys that stay in memory: about 20 MB.
_IN_MEMORY = 100_000

Key = Sequence[str | int]


class Index:
    """Maps keys (sequences of strings and whole numbers) to whole numbers. ``in_memory`` is the number of keys (unset:
    100,000) above which it moves to a temporary file, which SQLite makes and removes itself. One thread at a time.

    A key of the file is the first 16 bytes of its hash: two keys are taken for one with a chance of n² / 2¹²⁹.
    """

    def __init__(self, in_memory: int | None = None) -> None:
        self._most = _IN_MEMORY if in_memory is None else in_memory
        self._small: dict[tuple[str | int, ...], int] = {}
        self._file: sqlite3.Connection | None = None
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, key: Key, value: int = 0) -> bool:
        """Put a key in; False when it is there already, and then its value stays."""
        own = tuple(key)
        if self._file is None:
            if own in self._small:
                return False
            self._small[own] = value
            self._size += 1
            if self._size > self._most:
                self._spill()
            return True
        found = self._file.execute("INSERT OR IGNORE INTO keys VALUES (?, ?)", (_digest(own), value)).rowcount == 1
        self._size += found
        return found

    def get(self, key: Key) -> int | None:
        """The key's value; None when it is not there."""
        own = tuple(key)
        if self._file is None:
            return self._small.get(own)
        row = self._file.execute("SELECT value FROM keys WHERE key = ?", (_digest(own),)).fetchone()
        return None if row is None else int(row[0])

    def __contains__(self, key: Key) -> bool:
        return self.get(key) is not None

    def close(self) -> None:
        """Remove the temporary file."""
        if self._file is not None:
            self._file.close()

    def _spill(self) -> None:
        # An empty name is a database in a temporary file that goes with its connection. Never committed: nobody else
        # reads it, and a transaction a key would be a sync of the disk each.
        self._file = sqlite3.connect("", isolation_level=None)
        self._file.execute("PRAGMA journal_mode = OFF")
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.execute("CREATE TABLE keys (key BLOB PRIMARY KEY, value INTEGER) WITHOUT ROWID")
        self._file.execute("BEGIN")
        self._file.executemany("INSERT INTO keys VALUES (?, ?)", ((_digest(k), v) for k, v in self._small.items()))
        self._small = {}


def _digest(key: tuple[str | int, ...]) -> bytes:
    return hashlib.blake2b(jsonio.dumps(key), digest_size=16).digest()
