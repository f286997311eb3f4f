"""How an engine describes itself and its limits; what a status reply carries (design §4). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

__all__ = ["EngineInfo", "Limits"]


@dataclass(frozen=True)
class Limits:
    """What one engine takes. ``questions`` is per call, ``request_questions`` per request where each question is a call
    of its own; ``options`` and ``levels`` are per question; ``tokens`` is per call. ``request_tokens`` and, where the
    caller asked for a long context, ``long_request_tokens`` bound the tokens of a request, its state counted once; None
    is no bound."""

    questions: int = 16
    request_questions: int = 400
    options: int = 255
    levels: int = 10
    tokens: int = 8192
    request_tokens: int | None = None
    long_request_tokens: int | None = None


@dataclass(frozen=True)
class EngineInfo:
    """How an engine describes itself (design §4). ``model`` holds the pins shown in results and /health;
    ``calibration`` is what every answer carries; ``device`` and ``vram_cap_gib`` are for /health."""

    engine: str
    name: str
    revision: str
    readout: str
    prompt_version: str
    probability_status: str
    default_profile: str
    description: str
    release_date: str
    limits: Limits
    model: Mapping[str, Any] = field(default_factory=dict)
    calibration: Mapping[str, Any] | None = None
    device: str = "cpu"
    vram_cap_gib: float | None = None

    @property
    def served_model(self) -> str:
        """``name@revision``, the string that names the serving model on the Jev and OpenAI routes."""
        return f"{self.name}@{self.revision}"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EngineInfo:
        """From :meth:`to_json`'s object; a later release's further fields are passed over. Raises ValueError when
        one is missing."""
        try:
            return cls(**{**_known(cls, value), "limits": Limits(**_known(Limits, value["limits"]))})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"engine description: {error}") from None


def _known(kind: type, value: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: item for name, item in value.items() if name in names}
