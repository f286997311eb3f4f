"""Where answers come from. Here, what all sources have in common, and an engine in this process; a server is
:class:`scorer.bench.server.UrlSource`.

A source is asked a state and its calls, and gives one outcome a call, in order: an :class:`Answer` or a
:class:`Failure`. A failure is that call's; what ends the run is :class:`SourceBroken`.
"""

from __future__ import annotations

import gc
import hashlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from scorer import engines
from scorer.engines.base import Engine, Question
from scorer.recovery import Afterwards, classify
from shared import jsonio
from shared.settings import ScorerSettings

__all__ = ["Answer", "Calls", "EngineSource", "Failure", "Source", "SourceBroken", "fingerprint"]

Calls = Sequence[Mapping[str, Question]]


class SourceBroken(RuntimeError):
    """No later answer of this source can be trusted, or none will come; the message says why."""


class Answer(NamedTuple):
    """One call's answer: the answer objects by the questions' names in the call; tokens and hash of the call; the
    engine's own time and the whole time as the harness saw it (milliseconds)."""

    answers: Mapping[str, Any]
    input_tokens: int
    prompt_sha256: str
    inference_ms: float
    total_ms: float


class Failure(NamedTuple):
    """A call without an answer. ``kind`` is a short word, ``message`` quotes no caller text."""

    kind: str
    message: str


class Source(Protocol):
    """See the module's text. ``seconds`` adds up the time spent in the engine, or waiting for the server."""

    seconds: float

    def load(self) -> None:
        """Get ready. Raises StartRefused or SourceBroken."""

    @property
    def pins(self) -> dict[str, Any]:
        """What is asked, as JSON: another value means other numbers. After :meth:`load`."""

    @property
    def per_call(self) -> int:
        """The most questions of one call. After :meth:`load`."""

    def ask(self, state: Any, calls: Calls) -> Iterator[Answer | Failure]:
        """One outcome a call, in order. Raises SourceBroken."""

    def close(self) -> None:
        """Let go of what it holds."""


def fingerprint(pins: Mapping[str, Any]) -> str:
    """sha256 (hex) of the pins without the place that was asked: what a calibration is tied to."""
    own = {name: value for name, value in sorted(pins.items()) if name not in ("url", "surface")}
    return hashlib.sha256(jsonio.dumps(own)).hexdigest()


class EngineSource:
    """An engine in this process, made from ``settings`` unless ``engine`` is given, and driven as the scorer's
    inference thread drives it: prepare all calls of a request, predict each, release. The thread that loads it is the
    only one that may ask (INV-2)."""

    def __init__(self, settings: ScorerSettings | None = None, engine: Engine | None = None) -> None:
        if engine is None:
            engine = engines.create(ScorerSettings.from_env() if settings is None else settings)
        self.engine = engine
        self.seconds = 0.0
        self._thread = 0
        self._canary: Any = None

    def load(self) -> None:
        """Load on this thread. Raises StartRefused."""
        self._thread = threading.get_ident()
        self.engine.load()
        self._canary = self.engine.canary()
        # As the scorer does: what load left behind is not to be walked at every full collection.
        gc.collect()
        gc.freeze()

    @property
    def pins(self) -> dict[str, Any]:
        """The engine's description of itself."""
        return self.engine.info().to_json()

    @property
    def per_call(self) -> int:
        """The engine's own limit."""
        return self.engine.info().limits.questions

    def ask(self, state: Any, calls: Calls) -> Iterator[Answer | Failure]:
        """As :meth:`Source.ask`."""
        if threading.get_ident() != self._thread:
            raise SourceBroken("the engine may be asked by the thread that loaded it alone")
        began = time.perf_counter()
        try:
            prepared = self.engine.prepare(state, calls)
        except Exception as error:
            self.seconds += time.perf_counter() - began
            if len(calls) > 1:
                # Which call is at fault is not told, and the others are not.
                for call in calls:
                    yield from self.ask(state, [call])
            else:
                yield self._failed(error)
            return
        share = (time.perf_counter() - began) / len(calls)
        for ready in prepared:
            started = time.perf_counter()
            try:
                answer = self.engine.predict(ready).answer
            except Exception as error:
                self.seconds += share + time.perf_counter() - started
                yield self._failed(error)
                continue
            spent = share + time.perf_counter() - started
            self.seconds += spent
            outcome: Answer | Failure
            try:
                outcome = Answer(
                    answer["answers"],
                    ready.input_tokens,
                    ready.prompt_sha256,
                    float(answer["timing"]["inference_ms"]),
                    round(1000 * spent, 4),
                )
            except (KeyError, TypeError, ValueError):
                outcome = Failure("broken_answer", "the engine's answer has no answers or no timing")
            yield outcome
        began = time.perf_counter()
        self.engine.release()
        self.seconds += time.perf_counter() - began

    def close(self) -> None:
        """Nothing: an engine goes with its process."""

    def _failed(self, error: Exception) -> Failure:
        """The verdict that the scorer would reach (INV-4), and what it would do then."""
        verdict = classify(error)
        name = type(error).__name__
        # The frames own the tensors of the failed call.
        error.__traceback__ = None
        self.engine.release()
        if verdict.afterwards is Afterwards.EXIT:
            raise SourceBroken(f"the device has failed ({name}); the run can be continued in a new process")
        if verdict.afterwards is Afterwards.CANARY:
            try:
                healthy = self.engine.canary() == self._canary
            except Exception:
                healthy = False
            if not healthy:
                raise SourceBroken(f"after a failure ({name}) the canary does not answer as it did at the start")
        message = verdict.message if verdict.status == "invalid" else f"{verdict.message} ({name})"
        return Failure(verdict.status, message)
