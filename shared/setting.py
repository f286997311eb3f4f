"""What one setting is; the rows themselves are in :mod:`shared.settings` and, for one engine, beside it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["PREFIX", "SCORER", "WEB", "Setting"]

PREFIX = "INTERN_DECISION_"

WEB, SCORER = "web", "scorer"


@dataclass(frozen=True)
class Setting:
    """One row of the table: ``default`` is the text a user would set, or None for unset."""

    name: str
    default: str | None
    parse: Callable[[str], Any]
    tiers: tuple[str, ...]
    help: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name

    @property
    def field(self) -> str:
        """The attribute of the settings object."""
        return self.name.lower()
