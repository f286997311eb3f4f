"""The protocol between the inference thread and an engine (design §4).

The inference thread alone calls an engine: ``load`` once, then, for every job, ``prepare`` for all its calls and
``predict`` for each in turn. An engine therefore needs no lock.

What an engine may raise, and what becomes of it:

    StartRefused        load only: exit 78, no restart
    ValueError          prepare or predict: the input is at fault, 422 with the message, which must quote no caller text
    OutOfMemory         503 out_of_memory, and the process goes on; so does a RuntimeError whose first line says
                        "out of memory"
    FatalEngineError    500 scoring_failed, then the process exits for its supervisor to replace
    anything else       500 scoring_failed, then the canary must answer as it did at start, or the process exits
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from shared import jsonio
from shared.wire import NO_TERMS, EngineInfo, Terms

__all__ = [
    "CallResult",
    "Engine",
    "EngineFailure",
    "FatalEngineError",
    "NonFiniteForward",
    "OutOfMemory",
    "PreparedCall",
    "Question",
    "StartRefused",
    "canonical_hashes",
]

#: ``{"type": "noul"|"choice"|"score", "instructions": ..., "criteria": ...}`` as the surface's profile made it.
Question = Mapping[str, Any]


class StartRefused(Exception):
    """The engine must not serve; the message names the setting or file, what was expected and what was found."""


class EngineFailure(Exception):
    """A failure that is not the caller's. ``origin`` tells where it really happened, as log fields
    (:func:`shared.logs.frames`), when the engine raises it anew, without the frames of the first exception."""

    origin: Mapping[str, Any] | None = None


class OutOfMemory(EngineFailure):
    """The device had no room for the call."""


class NonFiniteForward(EngineFailure):
    """The model answered with a number that is not finite: never the caller's fault."""


class FatalEngineError(EngineFailure):
    """The device context is poisoned; no later call in this process can be trusted."""


class PreparedCall(NamedTuple):
    """A call that is validated, rendered and tokenised, but has met no model.

    ``input_tokens`` counts the whole call, the state and all its questions; ``prompt_sha256`` is the hash of the prompt
    text, or, for an engine without one, of the canonical JSON of the call (:func:`canonical_hashes`); ``payload`` is
    the engine's own.
    """

    input_tokens: int
    prompt_sha256: str
    payload: Any


class CallResult(NamedTuple):
    """``answer`` is the object of engine/intern-decision.md §1.8: ``answers``, ``usage``, ``timing``, ``calibration``,
    ``model``,
    ``backend``. ``cached_tokens`` counts tokens of the call that were not read again because an earlier call of the
    same request had read them."""

    answer: dict[str, Any]
    cached_tokens: int = 0


class Engine(Protocol):
    """See the module's text. Construction must be cheap and must not touch a device."""

    def load(self) -> None:
        """Load the model and warm it up. Raises :class:`StartRefused`."""

    def info(self) -> EngineInfo:
        """The description that status replies carry; valid after :meth:`load`."""

    def prepare(
        self, state: Any, calls: Sequence[Mapping[str, Question]], terms: Terms = NO_TERMS
    ) -> Sequence[PreparedCall]:
        """Validate, render and tokenise every call of one request, without any forward pass.

        ``calls`` maps field names to questions. Raises ValueError, so that a request of which any call is bad or too
        long costs no forward pass at all.
        """

    def predict(self, call: PreparedCall) -> CallResult:
        """Score one prepared call. Calls come in the order of :meth:`prepare`'s result, and back to back."""

    def canary(self) -> Any:
        """Score a fixed small call; two results compare equal only if they are bit-identical."""

    def release(self) -> None:
        """Let go of everything a failed or finished job left behind. Called after every job."""

    def memory(self) -> dict[str, int]:
        """Memory counters for status, in bytes; read on the inference thread after each job."""


def canonical_hashes(state: Any, calls: Sequence[Mapping[str, Question]]) -> list[str]:
    """sha256 (hex) of each call's canonical JSON ``{"state":...,"questions":{...}}``: compact, UTF-8, names in the
    caller's order, since that order is part of what was asked. The state is written and hashed once for all calls."""
    prefix = hashlib.sha256(b'{"state":' + jsonio.canonical(state) + b',"questions":')
    out = []
    for questions in calls:
        digest = prefix.copy()
        digest.update(jsonio.canonical(questions) + b"}")
        out.append(digest.hexdigest())
    return out
