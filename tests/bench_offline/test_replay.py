"""A saved run scored again: bit-identical, within a tolerance, or changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scorer.bench import replay
from scorer.bench.folder import FolderError
from scorer.bench.run import Options
from scorer.bench.source import EngineSource
from tests.bench_offline.planted import (
    BiasedEngine,
    DriftingEngine,
    LosingEngine,
    SoundEngine,
    checked,
    jev_row,
    run_engine,
    write,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "f.jsonl", [jev_row(number) for number in range(20)])


def replayed(out: Path, data: Path, engine: Any, orderings: str = "none", **options: Any) -> dict[str, Any]:
    return replay.replay(out, *checked(data, orderings=orderings), EngineSource(engine=engine), **options)


def test_the_same_engine_is_bit_identical_in_every_ordering(data: Path, tmp_path: Path) -> None:
    run_engine(SoundEngine(), data, tmp_path / "out", Options(orderings="rotations", limit=10, seed=3))
    result = replayed(tmp_path / "out", data, SoundEngine(), "rotations")
    assert (result["verdict"], result["answers"], result["identical"]) == ("bit-identical", 30, 30)
    assert (result["largest"], result["run_finished"], result["engine_differs"]) == (0.0, True, [])
    assert "30 bit-identical" in replay.render(result)


def test_a_drift_is_within_the_tolerance_or_a_change(data: Path, tmp_path: Path) -> None:
    run_engine(SoundEngine(), data, tmp_path / "out")
    near = replayed(tmp_path / "out", data, DriftingEngine(1e-5), tolerance=0.001)
    assert (near["verdict"], near["changed"], near["decisions_moved"]) == ("within the tolerance", 0, 0)
    assert near["within"] == 20
    assert 0 < near["largest"] < 0.001
    assert near["engine_differs"] == ["engine.engine", "engine.name"]
    assert "it differs in engine.engine" in replay.render(near)
    far = replayed(tmp_path / "out", data, DriftingEngine(1e-5), tolerance=1e-6)
    assert far["verdict"] == "changed"
    assert far["worst"][0]["row"] == "row-19"


def test_a_moved_decision_is_a_change_whatever_the_tolerance(data: Path, tmp_path: Path) -> None:
    run_engine(SoundEngine(), data, tmp_path / "out")
    result = replayed(tmp_path / "out", data, BiasedEngine(), tolerance=1.0)
    assert result["verdict"] == "changed"
    assert result["decisions_moved"] > 0
    assert result["worst"][0]["decision_moved"]


def test_an_answer_that_fails_now_is_a_change(tmp_path: Path) -> None:
    data = write(tmp_path / "f.jsonl", [jev_row(number, "lose" if number == 3 else None) for number in range(6)])
    run_engine(SoundEngine(), data, tmp_path / "out")
    result = replayed(tmp_path / "out", data, LosingEngine())
    assert (result["verdict"], result["failed"], result["identical"]) == ("changed", 1, 5)


def test_an_unfinished_run_is_replayed_as_far_as_it_goes(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_engine(SoundEngine(), data, out)
    whole = (out / "results.jsonl").read_bytes().splitlines(keepends=True)
    (out / "results.jsonl").write_bytes(b"".join(reversed(whole[:8])) + whole[8][:10])
    result = replayed(out, data, SoundEngine())
    assert (result["verdict"], result["answers"]) == ("bit-identical", 8)
    limited = replayed(out, data, SoundEngine(), limit=3)
    assert limited["answers"] == 3


def test_other_rows_and_a_folder_without_a_run_are_refused(data: Path, tmp_path: Path) -> None:
    run_engine(SoundEngine(), data, tmp_path / "out")
    other = write(tmp_path / "other" / "f.jsonl", [jev_row(0)])
    with pytest.raises(FolderError, match="the rows are not those of the run"):
        replayed(tmp_path / "out", other, SoundEngine())
    (tmp_path / "nothing").mkdir()
    with pytest.raises(FolderError, match="holds no run"):
        replayed(tmp_path / "nothing", data, SoundEngine())
