"""What the offline harness adds to the engine: 1,000 rows on the sparrow engine, as ratios in one run.

    python -m tests.bench.bench_offline [--rows N] [--rounds N]

``run`` is the time outside the engine while rows are asked, checked and written, by the engine's own time (prepare,
predict and release); ``with check`` adds the pass that checks every row before the model is loaded. The best of the
rounds counts: a neighbour on the machine can only add. Last, the peak memory of runs of 10 and 100 times as many rows.
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
from time import perf_counter
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from scorer.bench import rows, run
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


def measure(values: list[dict[str, Any]], rounds: int) -> tuple[float, float, float, float]:
    """Milliseconds: check, run without the engine, engine, and answers: the best of each."""
    best = [float("inf")] * 3
    answers = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "rows.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in values))
            source = EngineSource(ScorerSettings.from_env({f"{PREFIX}ENGINE": "sparrow"}))
            began = perf_counter()
            files = rows.find([path])
            checked = rows.check(files)
            check = perf_counter() - began
            outcome = run.run(files, checked, source, Path(directory) / "out", Options())
            assert outcome.failures == 0
            answers = outcome.written
            own = outcome.source_seconds
            best = [min(pair) for pair in zip(best, (check, outcome.seconds - own, own), strict=True)]
    return 1000 * best[0], 1000 * best[1], 1000 * best[2], answers


def peak_mib(count: int) -> float:
    """Peak memory of a process that runs ``count`` rows."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_offline", "--child", str(count)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout) / 1024


def child(count: int) -> None:
    """Run ``count`` rows and print this process's peak memory in KiB. The rows are written one at a time."""
    writer = Writer(1)
    question = writer.question(4)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.jsonl"
        with path.open("w") as file:
            for number in range(count):
                row = {"id": f"row-{number}", "state": writer.text(60), "question": question, "expected": "option 1"}
                file.write(json.dumps(row) + "\n")
        files = rows.find([path])
        checked = rows.check(files)
        source = EngineSource(ScorerSettings.from_env({f"{PREFIX}ENGINE": "sparrow"}))
        run.run(files, checked, source, Path(directory) / "out", Options())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child)
        return
    writer = Writer(1)
    shapes = {
        "one question, a sentence": jevbench_like(writer, given.rows, 12),
        "one question, a paragraph": jevbench_like(writer, given.rows, 80),
        "one question, a page": jevbench_like(writer, given.rows, 500),
        "five questions, a long paragraph": canonical(writer, given.rows),
    }
    print(f"{given.rows} rows on the sparrow engine; harness / engine's own time")
    for name, values in shapes.items():
        check, around, own, answers = measure(values, given.rounds)
        print(
            f"  {name:33s} {1000 * own / answers:6.0f} us an answer; run {around / own:6.1%}, "
            f"with check {(around + check) / own:6.1%}"
        )
    few, many = peak_mib(10 * given.rows), peak_mib(100 * given.rows)
    print(
        f"peak memory: {10 * given.rows} rows {few:.1f} MiB, {100 * given.rows} rows {many:.1f} MiB ({many / few:.3f})"
    )


if __name__ == "__main__":
    main()
