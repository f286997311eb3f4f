"""The scriptable engine of the tests. It has no model: the option at position i gets the i-th number of a list.

A state that is an object with the name ``fake`` scripts its own request; otherwise the file ``fake.json`` in the run
directory, read at every call, scripts all of them; otherwise the defaults hold. A script is an object with any of:

    weights       numbers by option position, renormalised (default 0.6, 0.3, 0.1, then 0.05 each)
    probabilities numbers by option position, passed on as they are
    sleep_s       seconds to sleep in predict
    prepare_error / error   [kind, message] to raise there: value, oom, runtime, fatal, non_finite
    on_call       index of the call inside the request that `error` strikes (default: every call)
    drop_option / drop_answer / nan / set   break the answer: leave the last option or the last question out, put NaN or
                  the object `set` into every answer
    canary        what the canary answers from then on
    release_error what to raise after a job, outside of any call; of the file only
    exit          kill the process with this code in predict (SIGKILL when it is 9)

When the run directory has a file ``fake_calls.jsonl``, every predicted call is appended to it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scorer.engines.base import (
    CallResult,
    FatalEngineError,
    NonFiniteForward,
    OutOfMemory,
    PreparedCall,
    Question,
    StartRefused,
    canonical_hashes,
)
from scorer.engines.questions import Options, answer, check_questions, read_options
from shared import jsonio
from shared.settings import ScorerSettings
from shared.wire import NO_TERMS, EngineInfo, Limits, Terms

__all__ = ["FakeEngine"]

_WEIGHTS = (0.6, 0.3, 0.1)
_REST = 0.05
_ERRORS = {
    "value": ValueError,
    "oom": OutOfMemory,
    "runtime": RuntimeError,
    "fatal": FatalEngineError,
    "non_finite": NonFiniteForward,
}


class FakeEngine:
    """See the module's text."""

    def __init__(self, settings: ScorerSettings) -> None:
        self._limits = Limits(tokens=settings.max_tokens)
        self._run_dir: Path = settings.run_dir
        self._load_thread = 0

    def load(self) -> None:
        """Obey ``load_sleep_s`` and ``load_error`` of the script file, for start-up tests."""
        script = self._file_script()
        time.sleep(script.get("load_sleep_s", 0))
        if "load_error" in script:
            raise StartRefused(script["load_error"])
        self._load_thread = threading.get_ident()

    def info(self) -> EngineInfo:
        """A description with nothing real in it."""
        return EngineInfo(
            engine="fake",
            name="fake",
            revision="0",
            readout="numbers from the test's script; prompt_sha256 hashes the call's JSON",
            prompt_version="fake-1",
            probability_status="not probabilities of anything",
            default_profile="jev",
            description="scriptable engine for tests",
            release_date="2026-11-30",
            limits=self._limits,
            model={"source": "fake", "revision": "0"},
            calibration={"method": "none", "temperature": 1.0},
        )

    def prepare(
        self, state: Any, calls: Sequence[Mapping[str, Question]], terms: Terms = NO_TERMS
    ) -> list[PreparedCall]:
        """Check the questions; a word counts as a token."""
        script = self._script(state)
        if "prepare_error" in script:
            self._raise(script["prepare_error"])
        prepared = []
        for index, (questions, digest) in enumerate(zip(calls, canonical_hashes(state, calls), strict=True)):
            check_questions(questions, self._limits.questions)
            options = {name: read_options(question, self._limits.options) for name, question in questions.items()}
            tokens = len(jsonio.dumps([state, questions]).split())
            if tokens > self._limits.tokens:
                raise ValueError(f"Example has {tokens} tokens, above {self._limits.tokens}; truncation is forbidden")
            prepared.append(PreparedCall(tokens, digest, (index, state, questions, options)))
        return prepared

    def predict(self, call: PreparedCall) -> CallResult:
        """Answer by script."""
        index, state, questions, options = call.payload
        script = self._script(state)
        self._log(
            {
                "state": state,
                "questions": questions,
                "thread": threading.get_ident(),
                "load_thread": self._load_thread,
                "start": time.monotonic(),
            }
        )
        time.sleep(script.get("sleep_s", 0))
        if "exit" in script:
            os.kill(os.getpid(), signal.SIGKILL) if script["exit"] == 9 else os._exit(script["exit"])
        if "error" in script and script.get("on_call", index) == index:
            self._raise(script["error"])
        answers = {name: _answer(item, script) for name, item in options.items()}
        if script.get("drop_answer"):
            answers.popitem()
        self._log({"end": time.monotonic()})
        return CallResult(
            {
                "answers": answers,
                "usage": {
                    "input_tokens": call.input_tokens,
                    "output_tokens": len(answers),
                    "decision_count": len(answers),
                },
                "timing": {"inference_ms": round(1000.0 * script.get("sleep_s", 0), 2)},
                "calibration": {"method": "none", "temperature": 1.0},
                "model": "fake",
                "backend": "fake",
            }
        )

    def canary(self) -> Any:
        """The script file's ``canary``, or a constant."""
        return self._file_script().get("canary", "the same")

    def release(self) -> None:
        """Nothing to release; raises as scripted."""
        script = self._file_script()
        if "release_error" in script:
            self._raise(script["release_error"])

    def memory(self) -> dict[str, int]:
        """No counters."""
        return {}

    def _script(self, state: Any) -> dict[str, Any]:
        own = state.get("fake") if isinstance(state, dict) else None
        return own if isinstance(own, dict) else self._file_script()

    def _file_script(self) -> dict[str, Any]:
        try:
            return dict(jsonio.loads((self._run_dir / "fake.json").read_bytes()))
        except FileNotFoundError:
            return {}

    def _log(self, line: dict[str, Any]) -> None:
        path = self._run_dir / "fake_calls.jsonl"
        if path.exists():
            with path.open("ab") as file:
                file.write(jsonio.dumps(line) + b"\n")

    @staticmethod
    def _raise(error: Sequence[str]) -> None:
        kind, message = error
        raise _ERRORS[kind](message)


def _answer(options: Options, script: Mapping[str, Any]) -> dict[str, Any]:
    size = len(options.labels)
    if "probabilities" in script:
        numbers = [float(p) for p in script["probabilities"][:size]]
    else:
        given = script.get("weights", _WEIGHTS)
        weights = [float(given[i]) if i < len(given) else _REST for i in range(size)]
        numbers = [weight / sum(weights) for weight in weights]
    out = answer(options, numbers)
    if script.get("drop_option"):
        out["probabilities"].pop(options.labels[-1])
    if script.get("nan"):
        out["probabilities"][options.labels[0]] = float("nan")
    out.update(script.get("set", {}))
    return out
