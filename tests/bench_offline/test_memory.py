"""Memory does not grow with the rows, but for the few numbers an answer that the measures need all of.

Peaks of what Python allocates (tracemalloc; arrays count), for n rows and for seven times as many. Two things are
kept in memory up to a fixed amount, rows and keys; the amount is made small here, so that both sizes are beyond it.
"""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scorer.bench import index, recording, replay, rows
from scorer.bench.calibrate import fit
from scorer.bench.compare import compare
from scorer.bench.folder import RecordFile, records_of
from scorer.bench.measures import measure
from scorer.bench.run import Options
from scorer.bench.source import EngineSource
from tests.bench_offline.planted import SoundEngine, checked, jev_row, run_engine, write

FEW, MANY = 200, 1400


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(index, "_IN_MEMORY", 50)
    monkeypatch.setattr(rows, "_KEPT_BYTES", 5000)
    # A batch is as large as the machine is fast, and garbage waits for the collector.
    monkeypatch.setattr(recording, "HELD_S", 0.0)
    before = gc.get_threshold()
    gc.set_threshold(100, 1, 1)
    yield
    gc.set_threshold(*before)


def peak(work: Callable[[], Any]) -> int:
    """Bytes allocated at the worst moment of ``work`` beyond those before it; done once first, for what stays."""
    work()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def written(out: Path) -> int:
    """Bytes of a run's results."""
    return (out / "results.jsonl").stat().st_size


def results(tmp_path: Path, count: int) -> Path:
    """A run's folder of ``count`` rows, each in two orders."""
    data = write(tmp_path / f"{count}" / "f.jsonl", [jev_row(number) for number in range(count)])
    run_engine(SoundEngine(), data, tmp_path / f"out-{count}", Options(orderings="reverse"))
    return tmp_path / f"out-{count}"


def grown(whole: Callable[[int], tuple[int, int]]) -> float:
    """Bytes of memory that are held for a byte that was written. What CPython keeps for its next tuples and lists is in
    it, up to some ten thousand bytes."""
    (few, short), (many, long) = whole(FEW), whole(MANY)
    return (many - few) / (long - short)


def test_the_memory_of_a_run_does_not_grow_with_its_rows(tmp_path: Path) -> None:
    def whole(count: int) -> tuple[int, int]:
        data = write(tmp_path / f"{count}.jsonl", [jev_row(number) for number in range(count)])
        out = tmp_path / f"{count}"
        return peak(lambda: run_engine(SoundEngine(), data, out, overwrite=True)), written(out)

    assert grown(whole) < 0.1


def test_the_memory_of_a_continued_run_does_not_grow_with_what_is_there(tmp_path: Path) -> None:
    def whole(count: int) -> tuple[int, int]:
        out = results(tmp_path, count)
        data = tmp_path / f"{count}" / "f.jsonl"
        return peak(lambda: run_engine(SoundEngine(), data, out, Options(orderings="reverse"))), written(out)

    assert grown(whole) < 0.1


def test_the_memory_of_a_replay_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def whole(count: int) -> tuple[int, int]:
        out = results(tmp_path, count)
        files, found = checked(tmp_path / f"{count}" / "f.jsonl", orderings="reverse")
        return peak(lambda: replay.replay(out, files, found, EngineSource(engine=SoundEngine()))), written(out)

    assert grown(whole) < 0.1


@contextlib.contextmanager
def opened(path: Path) -> Iterator[RecordFile]:
    with contextlib.closing(RecordFile(path)) as records:
        yield records


def judge(path: Path) -> None:
    with opened(path) as records:
        measure(records)


def pair(path: Path) -> None:
    with opened(path) as a, opened(path) as b:
        compare(a, b)


def calibrated(path: Path) -> None:
    with opened(path) as records:
        fit(records, {}, 1)


@pytest.mark.parametrize("work", [judge, pair, calibrated])
def test_what_is_held_of_an_answer_is_far_less_than_its_line(tmp_path: Path, work: Callable[[Path], None]) -> None:
    def whole(count: int) -> tuple[int, int]:
        out = results(tmp_path, count)
        return peak(lambda: work(out)), written(out)

    assert grown(whole) < 0.6


def test_records_that_are_held_would_be_seen(tmp_path: Path) -> None:
    def whole(count: int) -> tuple[int, int]:
        out = results(tmp_path, count)
        return peak(lambda: list(records_of(out))), written(out)

    assert grown(whole) > 1.0


def test_a_file_of_records_is_measured_as_the_records_are(tmp_path: Path) -> None:
    out = results(tmp_path, FEW)
    own = list(records_of(out))
    with opened(out) as records:
        assert measure(records).metrics == measure(own).metrics
        assert compare(records, records) == compare(own, own)
        assert fit(records, {}, 1) == fit(own, {}, 1)
    assert measure(own).metrics["order"]["all"]["answers"] == FEW
