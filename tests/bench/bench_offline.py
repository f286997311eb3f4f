"""What the offline harness adds to the engine: 1,000 rows on the sparrow engine, as ratios in one run.

    python -m tests.bench.bench_offline [--rows N] [--rounds N]

``run`` is the time outside the engine while rows are asked, answers checked and written, by the engine's own time in
the same run (prepare, predict and release); ``with check`` adds the pass that checks every row before the model is
loaded. ``bare`` is stricter: what check and run take more processor time than the same calls asked of the engine in a
bare loop, whose caches nobody disturbs. The best of the rounds counts: a neighbour on the machine can only add.

Last, the peak memory of the whole command, report and all, and of the other commands, over 10 and 100 times as many
rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, thread_time_ns
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from scorer.bench import cli, rows, run
from scorer.bench.rows import Checked, InputFile
from scorer.bench.run import Options
from scorer.bench.source import EngineSource
from shared.settings import PREFIX, ScorerSettings

_SYLLABLES = [c + v for c in (*"bcdfghklmnprstvw", "st", "tr", "pl") for v in (*"aeiou", "ai", "er", "on")]


class Writer:
    """Texts of words that occur as often as words do, so that no cache finds more than it would in real ones."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        words = ["".join(self.draw.choices(_SYLLABLES, k=self.draw.randint(1, 3))) for _ in range(8000)]
        self.words = words
        self.weights = [1 / rank for rank in range(1, len(words) + 1)]

    def text(self, words: int) -> str:
        """A sentence."""
        return " ".join(self.draw.choices(self.words, self.weights, k=words)).capitalize() + "."

    def question(self, options: int) -> dict[str, Any]:
        """A choice."""
        criteria = {f"option {number}": self.text(8) for number in range(options)}
        return {"type": "choice", "instructions": self.text(10), "criteria": criteria}


def jevbench_like(writer: Writer, count: int, words: int) -> list[dict[str, Any]]:
    """One question a row, twelve rows a question, as in JevBench."""
    out = []
    for number in range(count):
        if number % 12 == 0:
            question = writer.question(2 + number // 12 % 4)
        expected = writer.draw.choice(list(question["criteria"]))
        row = {"id": f"row-{number}", "state": writer.text(words), "question": question, "expected": expected}
        out.append({**row, "family": f"family {number % 5}"})
    return out


def canonical(writer: Writer, count: int) -> list[dict[str, Any]]:
    """Five questions over a longer state, as in typed_decisions."""
    questions = {f"field {number}": writer.question(4) for number in range(5)}
    targets = {name: {"label": "option 1"} for name in questions}
    return [
        {"id": f"row-{number}", "state": writer.text(200), "questions": questions, "targets": targets}
        for number in range(count)
    ]


def alone(files: list[InputFile], checked: Checked, options: Options) -> int:
    """Nanoseconds of processor time that the engine takes for the calls of a run, asked for nothing else."""
    source = loaded()
    per_call = source.per_call if options.packed else 1
    asked = [
        (row.state, [call.questions for call in calls]) for row, calls in run.work(files, checked, options, per_call)
    ]
    engine = source.engine
    began = thread_time_ns()
    for state, calls in asked:
        for call in engine.prepare(state, calls):
            engine.predict(call)
        engine.release()
    return thread_time_ns() - began


def loaded() -> EngineSource:
    """A source on a new engine; a run's own load does nothing more, and is not measured."""
    source = EngineSource(ScorerSettings.from_env({f"{PREFIX}ENGINE": "sparrow"}))
    source.load()
    source.load = lambda: None  # type: ignore[method-assign]
    return source


def measure(values: list[dict[str, Any]], rounds: int, options: Options) -> dict[str, float]:
    """Microseconds an answer, the best of each: ``check``, ``around`` (the run without the engine), ``own`` (the
    engine in the run); and as processor time ``busy`` (check and run) and ``bare`` (the engine alone)."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in values))
        for number in range(rounds):
            busy, began = thread_time_ns(), perf_counter()
            files = rows.find([path])
            checked = rows.check(files)
            check, busy = perf_counter() - began, thread_time_ns() - busy
            bare = alone(files, checked, options)
            source = loaded()
            began_ns = thread_time_ns()
            outcome = run.run(files, checked, source, Path(directory) / f"out-{number}", options)
            busy += thread_time_ns() - began_ns
            assert outcome.failures == 0
            own = outcome.source_seconds
            found = {
                "check": check,
                "around": outcome.seconds - own,
                "own": own,
                "busy": busy / 1e9,
                "bare": bare / 1e9,
            }
            for name, seconds in found.items():
                best[name] = min(best.get(name, float("inf")), 1e6 * seconds / outcome.written)
    return best


def peak_mib(count: int, command: str) -> float:
    """Peak memory of a process that does ``command`` over ``count`` rows."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_offline", "--child", command, "--rows", str(count)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1]) / 1024


def child(command: str, count: int) -> None:
    """Do it and print this process's peak memory in KiB. The rows, and for all but ``bench`` the run, are made by
    another process."""
    with tempfile.TemporaryDirectory() as directory:
        path, out = Path(directory) / "rows.jsonl", Path(directory) / "out"
        given = {
            "bench": ["bench", str(path), "--out", str(out)],
            "compare": ["compare", str(out), str(out)],
            "calibrate": ["calibrate", str(out)],
            "replay": ["replay", str(out), str(path)],
        }
        environment = {**os.environ, f"{PREFIX}ENGINE": "sparrow"}
        write = [sys.executable, "-m", "tests.bench.bench_offline", "--write", str(path), "--rows", str(count)]
        subprocess.run(write, check=True)
        if command != "bench":
            first = [sys.executable, "-m", "scorer", *given["bench"], "--no-report"]
            subprocess.run(first, env=environment, stdout=subprocess.DEVNULL, check=True)
        os.environ[f"{PREFIX}ENGINE"] = "sparrow"
        code = cli.main(given[command])
        assert code == 0, code
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def write(path: Path, count: int) -> None:
    """Rows of one question, written one at a time."""
    writer = Writer(1)
    question = writer.question(4)
    with path.open("w") as file:
        for number in range(count):
            row = {"id": f"row-{number}", "state": writer.text(60), "question": question, "expected": "option 1"}
            file.write(json.dumps(row) + "\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.rows)
        return
    if given.write:
        write(given.write, given.rows)
        return
    writer = Writer(1)
    five = canonical(writer, given.rows)
    shapes = {
        "one question, a sentence": (jevbench_like(writer, given.rows, 12), Options()),
        "one question, a paragraph": (jevbench_like(writer, given.rows, 80), Options()),
        "one question, a page": (jevbench_like(writer, given.rows, 500), Options()),
        "five questions, one by one": (five, Options()),
        "five questions, packed": (five, Options(packed=True)),
    }
    print(f"{given.rows} rows on the sparrow engine; harness / engine's own time")
    for name, (values, options) in shapes.items():
        found = measure(values, given.rounds, options)
        own, around = found["own"], found["around"]
        print(
            f"  {name:27s} engine {own:5.0f} us an answer; run {around / own:5.1%}, with check "
            f"{(around + found['check']) / own:5.1%}; bare {found['busy'] / found['bare'] - 1:5.1%}"
        )
    for command in ("bench", "replay", "compare", "calibrate"):
        few, many = (peak_mib(times * given.rows, command) for times in (10, 100))
        print(
            f"peak memory of {command}: {10 * given.rows} rows {few:.1f} MiB, {100 * given.rows} rows {many:.1f} MiB "
            f"({many / few:.3f})"
        )


if __name__ == "__main__":
    main()
