"""Bytes read as a program that makes values and edits good bodies, so that one target serves a coverage-guided fuzzer,
hypothesis and a list of seeds alike. Running out of bytes reads zeros."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

#: Every name that some schema or message knows, and names that a careless validator trips over.
NAMES = (
    *("id", "state", "question", "options", "description", "orderings", "workload", "decisions", "questions", "type"),
    *("criteria", "instructions", "images", "assets", "model", "true", "false", "yes", "YES", "No", "0", "1"),
    *("v", "op", "boot_id", "slot", "budget_ms", "request_id", "status", "message", "queue_ms", "score_ms", "calls"),
    *("input", "role", "content", "text", "data", "choices", "value", "levels", "label", "name", "joint"),
    *("terms", "cache_salt", "long_context", "_schema", "__proto__", "", " ", "a", "b", "é", "\U0001f600", "\x00"),
)
WORDS = (
    *("noul", "choice", "score", "box", "none", "rotations", "all", "", "a", "b", "billing", "tech", "d1", "x" * 300),
    *("predicate", "message", "user", "input_text", "input_json", "input_image", "system", "true"),
    *("predict", "ok", "\x00", "\u2028", "\U0001f600", "NaN", "0123456789abcdef" * 2),
)
NUMBERS = (0, 1, -1, 2, 15, 16, 17, 255, 256, 400, 2**31, 2**53, 2**63, 10**30, 0.0, -0.0, 0.5, 1e308, 5e-324, 1.0)
#: Sizes at the schemas' own bounds.
SIZES = (0, 1, 2, 3, 4, 5, 10, 11, 16, 17, 64, 65)
#: An edit may multiply what earlier ones multiplied.
_MOST_PLACES = 1500


class Program:
    """A reader of bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def byte(self) -> int:
        found = self._data[self._at] if self._at < len(self._data) else 0
        self._at += 1
        return found

    def bytes(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def rest(self) -> bytes:
        return self.bytes(max(0, self.left))

    def pick(self, values: Sequence[Any]) -> Any:
        return values[self.byte() % len(values)]

    def value(self, depth: int = 0) -> Any:
        """Any JSON value."""
        kind = self.byte() % (10 if depth == 0 else 8 if depth < 4 else 6)
        if kind < 3:
            return self.pick((None, True, False))
        if kind == 3:
            return self.pick(NUMBERS)
        if kind == 4:
            return self.pick(WORDS)
        if kind == 5:
            return self.bytes(self.byte() % 6).decode("utf-8", "replace")
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.byte() % 4)]
        if kind == 7:
            return {self.pick(NAMES): self.value(depth + 1) for _ in range(self.byte() % 4)}
        size, item = self.pick(SIZES), self.value(depth + 1)
        return [copy.deepcopy(item) for _ in range(size)] if kind == 8 else {f"n{i}": item for i in range(size)}

    def edited(self, good: Any, most: int = 8) -> Any:
        """A copy of a good body with up to ``most`` edits in any place."""
        root = [copy.deepcopy(good)]
        for _ in range(min(most, self.left // 2)):
            places = list(_places(root))
            if len(places) > _MOST_PLACES:
                break
            container, key = places[(self.byte() * 256 + self.byte()) % len(places)]
            act = self.byte() % 4
            if act == 0 and container is not root:
                del container[key]
            elif act == 1 and isinstance(container[key], dict):
                container[key][self.pick(NAMES)] = self.value()
            elif act == 2 and isinstance(container[key], list) and container[key]:
                # More of the same: identical items, which is also how ids come to occur twice.
                container[key].extend(copy.deepcopy(container[key][0]) for _ in range(self.pick(SIZES)))
            else:
                container[key] = self.value()
        return root[0]


def _places(root: Any) -> Any:
    stack: list[Any] = [root]
    while stack:
        item = stack.pop()
        for key in list(item) if isinstance(item, dict) else range(len(item)):
            yield item, key
            if isinstance(item[key], (dict, list)):
                stack.append(item[key])
