"""Engines with a planted fault, rows of our own, and a loaded source on either. Nothing here has a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scorer.bench import rows, run
from scorer.bench.rows import Checked, InputFile
from scorer.bench.run import Options, Outcome
from scorer.bench.source import EngineSource
from scorer.engines.base import CallResult, PreparedCall, Question, canonical_hashes
from scorer.engines.questions import Options as Labels
from scorer.engines.questions import answer, check_questions, read_options
from shared.wire import NO_TERMS, EngineInfo, Limits, Terms


class SoundEngine:
    """Chooses the option whose description shares most words with the state. Subclasses plant the fault."""

    name = "sound"

    def __init__(self) -> None:
        self.calls = 0
        self.released = 0

    def load(self) -> None:
        pass

    def info(self) -> EngineInfo:
        return EngineInfo(self.name, self.name, "1", "words", "1", "none", "jev", "planted", "2026-11-30", Limits())

    def prepare(
        self, state: Any, calls: Sequence[Mapping[str, Question]], terms: Terms = NO_TERMS
    ) -> list[PreparedCall]:
        out = []
        for questions, digest in zip(calls, canonical_hashes(state, calls), strict=True):
            check_questions(questions, 16)
            labels = {name: read_options(question, 255) for name, question in questions.items()}
            tokens = len(str(state).split()) + 5 * len(questions)
            out.append(PreparedCall(tokens, digest, (state, labels)))
        return out

    def predict(self, call: PreparedCall) -> CallResult:
        self.calls += 1
        state, labels = call.payload
        answers = {name: self.answer(state, item) for name, item in labels.items()}
        return CallResult({"answers": answers, "timing": {"inference_ms": 0.1}, "usage": {}})

    def answer(self, state: Any, labels: Labels) -> dict[str, Any]:
        return answer(labels, self.numbers(state, labels))

    def numbers(self, state: Any, labels: Labels) -> list[float]:
        words = set(str(state).lower().replace(",", " ").replace(".", " ").split())
        weights = [0.1 + len(words & set(str(text).lower().replace(",", " ").split())) for text in labels.descriptions]
        return [weight / sum(weights) for weight in weights]

    def canary(self) -> Any:
        return "the same"

    def release(self) -> None:
        self.released += 1

    def memory(self) -> dict[str, int]:
        return {}


class BiasedEngine(SoundEngine):
    """Goes by position: the first option, whatever it says."""

    name = "biased"

    def numbers(self, state: Any, labels: Labels) -> list[float]:
        rest = 0.3 / max(1, len(labels.labels) - 1)
        return [0.7 if place == 0 else rest for place in range(len(labels.labels))]


class DriftingEngine(SoundEngine):
    """Every call moves a little further from what the rows say, ``step`` of probability a call."""

    name = "drifting"

    def __init__(self, step: float = 1e-4) -> None:
        super().__init__()
        self.step = step

    def numbers(self, state: Any, labels: Labels) -> list[float]:
        size, share = len(labels.labels), min(1.0, self.step * self.calls)
        return [(1 - share) * p + share / size for p in super().numbers(state, labels)]


class OverconfidentEngine(SoundEngine):
    """Sure to 0.99 and right in about six of ten."""

    name = "overconfident"

    def numbers(self, state: Any, labels: Labels) -> list[float]:
        own = super().numbers(state, labels)
        size, best = len(own), own.index(max(own))
        if hashlib.sha256(str(state).encode()).digest()[0] > 153:
            best = (best + 1) % size
        return [0.99 if place == best else 0.01 / (size - 1) for place in range(size)]


class LosingEngine(SoundEngine):
    """Loses the last option, or gives NaN, where the state says so."""

    name = "losing"

    def answer(self, state: Any, labels: Labels) -> dict[str, Any]:
        out = super().answer(state, labels)
        if "lose" in str(state):
            out["probabilities"].pop(labels.labels[-1])
        if "nan" in str(state):
            out["probabilities"][labels.labels[0]] = float("nan")
        if "refuse" in str(state):
            raise ValueError("refused by rule")
        if "break" in str(state):
            raise RuntimeError("caller's words: " + str(state))
        return out


TOPICS = {"fruit": "apple pear plum", "tools": "hammer saw drill", "birds": "owl crow wren"}


def jev_row(number: int, state: str | None = None, **more: Any) -> dict[str, Any]:
    """A row in JevBench's form whose right option the sound engine finds; the order of the options turns with the
    number."""
    names = list(TOPICS)
    topic = names[number % 3]
    turned = names[number // 3 % 3 :] + names[: number // 3 % 3]
    word = TOPICS[topic].split()[number % 2]
    return {
        "id": f"row-{number}",
        "state": f"number {number} is about {word}" if state is None else state,
        "question": {
            "type": "choice",
            "instructions": "What is it about?",
            "criteria": {name: TOPICS[name] for name in turned},
        },
        "labels": names,
        "expected": topic,
        "family": "even" if number % 2 == 0 else "odd",
        **more,
    }


def write(path: Path, values: Sequence[Any]) -> Path:
    """Values (or raw bytes) as lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(v if isinstance(v, bytes) else json.dumps(v).encode() + b"\n" for v in values))
    return path


def checked(*paths: Path, **options: Any) -> tuple[list[InputFile], Checked]:
    """Find and check."""
    files = rows.find(list(paths))
    return files, rows.check(files, **options)


def run_engine(engine: Any, data: Path, out: Path, options: Options | None = None, **more: Any) -> Outcome:
    """A whole run of an engine object."""
    options = options or Options()
    files, found = checked(data, families=options.families, orderings=options.orderings)
    return run.run(files, found, EngineSource(engine=engine), out, options, **more)


def lines(path: Path) -> list[dict[str, Any]]:
    """A JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
