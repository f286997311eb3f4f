"""Reading systemd's unit files as far as the tests need it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.harness import ROOT

__all__ = ["SCORER_UNIT", "WEB_UNIT", "Unit", "seconds"]


class Unit:
    """One unit file: ``get("Service", "Type")`` is the last value, ``all`` every one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: list[tuple[str, str, str]] = []
        section = ""
        for line in path.read_text().splitlines():
            if match := re.fullmatch(r"\[(\w+)\]", line):
                section = match[1]
            elif line and not line.startswith(("#", ";")):
                name, equals, value = line.partition("=")
                assert equals, f"{path.name}: {line}"
                self._values.append((section, name, value))

    def all(self, section: str, name: str) -> list[str]:
        return [value for s, n, value in self._values if (s, n) == (section, name)]

    def get(self, section: str, name: str) -> str:
        return self.all(section, name)[-1]

    def words(self, section: str, name: str) -> set[str]:
        return {word for value in self.all(section, name) for word in value.split()}

    def command(self) -> list[str]:
        return shlex.split(self.get("Service", "ExecStart"))

    def environment(self) -> dict[str, str]:
        pairs = [word.partition("=") for value in self.all("Service", "Environment") for word in shlex.split(value)]
        return {name: value for name, _, value in pairs}


def seconds(text: str) -> float:
    """``75s``, ``2s`` or plain seconds."""
    return float(text.removesuffix("s"))


SCORER_UNIT = Unit(ROOT / "conf" / "intern-decision-scorer.service")
WEB_UNIT = Unit(ROOT / "conf" / "intern-decision-web.service")
