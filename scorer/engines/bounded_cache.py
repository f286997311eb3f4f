"""A least-recently-used cache bounded in entries and in bytes. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["BoundedCache"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """A least-recently-used cache of at most ``entries`` entries and ``total`` bytes, as counted by who puts them in.

    An entry of more than ``largest`` bytes is not kept at all. One thread only.
    """

    def __init__(self, entries: int, total: int, largest: int) -> None:
        self._entries, self._total, self._largest = entries, total, largest
        self._items: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Key) -> Value | None:
        """The value, now the most recently used, or None."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep ``value``, counted as ``size`` bytes, and let the oldest go until all bounds hold."""
        if size > self._largest:
            return
        self.bytes += size - self._items.pop(key, (None, 0))[1]
        self._items[key] = (value, size)
        while len(self._items) > self._entries or self.bytes > self._total:
            self.bytes -= self._items.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forget everything."""
        self._items.clear()
        self.bytes = 0
