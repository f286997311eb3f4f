"""A run: what it writes, how it is continued, what it refuses, and the planted faults that it must show."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from scorer.bench import folder, recording
from scorer.bench.folder import FolderError
from scorer.bench.progress import Progress
from scorer.bench.records import Record
from scorer.bench.run import Options
from scorer.bench.source import EngineSource, SourceBroken
from shared.settings import PREFIX
from tests.bench_offline.planted import (
    BiasedEngine,
    DriftingEngine,
    LosingEngine,
    OverconfidentEngine,
    SoundEngine,
    jev_row,
    lines,
    run_engine,
    write,
)
from tests.harness import ROOT, wait_for


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "rows" / "f.jsonl", [jev_row(number) for number in range(12)])


def offline(*arguments: Any, run_dir: Path, **popen: Any) -> subprocess.Popen[str]:
    """``python -m scorer bench ...`` on the fake engine, whose script is in ``run_dir``."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    env |= {f"{PREFIX}ENGINE": "fake", f"{PREFIX}RUN_DIR": str(run_dir)}
    command = [sys.executable, "-m", "scorer", "bench", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


# -- what is written ---


def test_a_run_writes_a_record_an_answer_and_a_manifest_with_pins_hashes_and_options(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    outcome = run_engine(SoundEngine(), data, out, Options(orderings="rotations"))
    records = list(folder.records_of(out))
    assert (outcome.written, outcome.failures, len(records)) == (36, 0, 36)
    first, second = records[0], records[1]
    assert first.key == ("f.jsonl", "row-0", "decision", 0)
    assert (first.order, second.order) == ((0, 1, 2), (1, 2, 0))
    assert first.labels == second.labels == ("fruit", "tools", "birds")
    assert first.correct
    assert first.prompt_sha256 != second.prompt_sha256
    assert first.inference_ms == 0.1
    assert first.total_ms > 0
    manifest = folder.manifest_of(out)
    assert manifest is not None
    assert manifest["status"] == "finished"
    assert manifest["engine"]["name"] == "sound"
    assert manifest["data"][0]["rows"] == 12
    assert len(manifest["data"][0]["sha256"]) == 64
    assert manifest["options"]["orderings"] == "rotations"
    assert manifest["failed"] == {}


def test_a_line_is_what_the_record_says_of_itself(data: Path, tmp_path: Path) -> None:
    run_engine(SoundEngine(), data, tmp_path / "out", Options(limit=1))
    (line,) = lines(tmp_path / "out" / "results.jsonl")
    record = Record.from_json(line)
    assert json.loads(json.dumps(record.to_json())) == line


def test_packed_questions_share_a_call_and_one_by_one_they_do_not(tmp_path: Path) -> None:
    question = jev_row(0)["question"]
    row = {"id": "p", "state": "apple", "questions": dict.fromkeys(("x", "y", "z"), question)}
    data = write(tmp_path / "f.jsonl", [row])
    run_engine(SoundEngine(), data, tmp_path / "packed", Options(packed=True))
    run_engine(SoundEngine(), data, tmp_path / "alone")
    packed, alone = (list(folder.records_of(tmp_path / name)) for name in ("packed", "alone"))
    assert [record.field for record in packed] == [record.field for record in alone] == ["x", "y", "z"]
    assert [record.questions for record in packed] == [3, 3, 3]
    assert [record.questions for record in alone] == [1, 1, 1]
    assert len({record.prompt_sha256 for record in packed}) == 1
    # Alone each is named q, so the three calls are the same text.
    assert len({record.prompt_sha256 for record in alone}) == 1
    assert packed[0].prompt_sha256 != alone[0].prompt_sha256


def test_limit_takes_the_first_rows_and_with_a_seed_draws_as_many(tmp_path: Path) -> None:
    data = write(tmp_path / "f.jsonl", [jev_row(number) for number in range(100)])

    def asked(name: str, **options: Any) -> list[str]:
        run_engine(SoundEngine(), data, tmp_path / name, Options(limit=10, **options))
        return [record.row for record in folder.records_of(tmp_path / name)]

    assert asked("first") == [f"row-{number}" for number in range(10)]
    drawn = asked("drawn", seed=1)
    assert len(set(drawn)) == 10
    assert drawn != asked("first-again")
    assert drawn == asked("again", seed=1)
    assert drawn != asked("other", seed=2)
    assert all(int(row.split("-")[1]) % 2 for row in asked("odd", seed=1, families=("odd",)))


# -- going on ---


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    rows = [jev_row(number) for number in range(60)]
    data = write(tmp_path / "f.jsonl", rows)
    run_dir, out = tmp_path / "run", tmp_path / "out"
    run_dir.mkdir()
    (run_dir / "fake.json").write_text('{"sleep_s": 0.03}')
    (run_dir / "fake_calls.jsonl").touch()
    process = offline(data, "--out", out, "--no-report", run_dir=run_dir)
    results = out / "results.jsonl"
    wait_for(lambda: results.read_bytes().count(b"\n") >= 10, 30, "ten answers")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert folder.manifest_of(out)["status"] == "running"  # type: ignore[index]
    before = results.read_bytes()
    assert before.endswith(b"\n")
    assert before.count(b"\n") < 60
    (run_dir / "fake.json").write_text("{}")
    stdout, stderr = offline(data, "--out", out, "--no-report", run_dir=run_dir).communicate(timeout=60)
    assert stderr == ""
    assert f"{60 - before.count(bytes([10]))} answers written, {before.count(bytes([10]))} were there" in stdout
    assert results.read_bytes().startswith(before)
    assert sorted(record.row for record in folder.records_of(out)) == sorted(row["id"] for row in rows)
    assert folder.manifest_of(out)["status"] == "finished"  # type: ignore[index]
    # What was in the middle of a call may be asked twice, nothing else.
    begun = [line for line in lines(run_dir / "fake_calls.jsonl") if "start" in line]
    assert 60 <= len(begun) <= 61


def test_sigterm_stops_a_run_that_can_be_continued(tmp_path: Path) -> None:
    data = write(tmp_path / "f.jsonl", [jev_row(number) for number in range(60)])
    run_dir, out = tmp_path / "run", tmp_path / "out"
    run_dir.mkdir()
    (run_dir / "fake.json").write_text('{"sleep_s": 0.03}')
    process = offline(data, "--out", out, "--no-report", run_dir=run_dir)
    wait_for(lambda: (out / "results.jsonl").read_bytes().count(b"\n") >= 5, 30, "five answers")
    process.terminate()
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "continued by the same command" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("cut", [1, 40])
def test_a_half_written_last_line_is_cut_off_and_asked_again(data: Path, tmp_path: Path, cut: int) -> None:
    out = tmp_path / "out"
    run_engine(SoundEngine(), data, out)
    whole = (out / "results.jsonl").read_bytes()
    (out / "results.jsonl").write_bytes(whole[:-cut])
    assert len(list(folder.records_of(out))) == 11
    outcome = run_engine(SoundEngine(), data, out)
    assert (outcome.before, outcome.written) == (11, 1)
    assert outcome.cut_bytes == len(whole.splitlines(keepends=True)[-1]) - cut
    after = lines(out / "results.jsonl")
    untimed = [{name: value for name, value in line.items() if name != "total_ms"} for line in after]
    assert untimed == [{n: v for n, v in json.loads(x).items() if n != "total_ms"} for x in whole.splitlines()]


def test_a_call_of_which_an_answer_is_missing_is_asked_again_whole_and_nothing_is_written_twice(tmp_path: Path) -> None:
    question = jev_row(0)["question"]
    data = write(
        tmp_path / "f.jsonl", [{"id": "p", "state": "apple", "questions": dict.fromkeys(("x", "y", "z"), question)}]
    )
    out = tmp_path / "out"
    run_engine(SoundEngine(), data, out, Options(packed=True))
    kept = (out / "results.jsonl").read_bytes().splitlines(keepends=True)
    (out / "results.jsonl").write_bytes(kept[0] + kept[1][:20])
    engine = SoundEngine()
    outcome = run_engine(engine, data, out, Options(packed=True))
    assert (outcome.before, outcome.written, engine.calls) == (1, 2, 1)
    assert [(r.field, r.questions) for r in folder.records_of(out)] == [("x", 3), ("y", 3), ("z", 3)]


def test_a_finished_run_asks_nothing(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_engine(SoundEngine(), data, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    engine = SoundEngine()
    outcome = run_engine(engine, data, out)
    assert (outcome.written, outcome.before, engine.calls) == (0, 12, 0)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_damaged_line_in_the_middle_is_named_and_nothing_is_touched(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_engine(SoundEngine(), data, out)
    damaged = (out / "results.jsonl").read_bytes().replace(b'"row":"row-3"', b'"row":!row-3"')
    (out / "results.jsonl").write_bytes(damaged)
    with pytest.raises(FolderError, match=r"results\.jsonl:4: not JSON of ours"):
        run_engine(SoundEngine(), data, out)
    assert (out / "results.jsonl").read_bytes() == damaged


def test_another_engine_other_rows_and_other_options_are_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_engine(SoundEngine(), data, out)
    before = (out / "results.jsonl").read_bytes()
    with pytest.raises(FolderError, match=r"engine\.engine, engine\.name: give another folder, or --overwrite"):
        run_engine(BiasedEngine(), data, out)
    with pytest.raises(FolderError, match=r"options\.orderings"):
        run_engine(SoundEngine(), data, out, Options(orderings="reverse"))
    with pytest.raises(FolderError, match=r"options\.packed"):
        run_engine(SoundEngine(), data, out, Options(packed=True))
    write(data, [jev_row(number) for number in range(13)])
    with pytest.raises(FolderError, match=r"data\.0\.bytes, data\.0\.rows, data\.0\.sha256"):
        run_engine(SoundEngine(), data, out)
    assert (out / "results.jsonl").read_bytes() == before


def test_other_rows_are_refused_before_the_model_is_loaded(data: Path, tmp_path: Path) -> None:
    class Unloadable(SoundEngine):
        def load(self) -> None:
            raise AssertionError("loaded")

    out = tmp_path / "out"
    run_engine(SoundEngine(), data, out)
    with pytest.raises(FolderError, match=r"options\.limit"):
        run_engine(Unloadable(), data, out, Options(limit=3))


def test_overwrite_begins_anew_and_a_folder_of_something_else_is_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_engine(SoundEngine(), data, out)
    outcome = run_engine(BiasedEngine(), data, out, overwrite=True)
    assert (outcome.before, outcome.written) == (0, 12)
    assert folder.manifest_of(out)["engine"]["name"] == "biased"  # type: ignore[index]
    other = tmp_path / "other"
    write(other / "mine.txt", [b"text"])
    with pytest.raises(FolderError, match=r"is not empty and holds no run\.json"):
        run_engine(SoundEngine(), data, other)
    assert [path.name for path in other.iterdir()] == ["mine.txt"]


def test_a_folder_that_is_being_written_is_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    class Nested(SoundEngine):
        error: Exception | None = None

        def predict(self, call: Any) -> Any:
            if self.error is None:
                try:
                    run_engine(SoundEngine(), data, out)
                except FolderError as error:
                    self.error = error
            return super().predict(call)

        def info(self) -> Any:
            return SoundEngine().info()

    engine = Nested()
    run_engine(engine, data, out)
    assert "is being written by another process" in str(engine.error)


# -- what fails is named ---


def test_a_lost_option_a_nan_a_refusal_and_a_breakdown_are_named_counted_and_asked_again(tmp_path: Path) -> None:
    states = {2: "lose one", 5: "a nan", 7: "refuse me", 9: "break down"}
    data = write(tmp_path / "f.jsonl", [jev_row(number, states.get(number)) for number in range(12)])
    out = tmp_path / "out"
    outcome = run_engine(LosingEngine(), data, out)
    assert outcome.failed == {"broken_answer": 2, "invalid": 1, "failed": 1}
    assert outcome.manifest["failed"] == {"broken_answer": 2, "failed": 1, "invalid": 1}
    told = lines(out / "failures.jsonl")
    assert [(line["row"], line["field"], line["reason"]) for line in told] == [
        ("row-2", "decision", "broken_answer"),
        ("row-5", "decision", "broken_answer"),
        ("row-7", "decision", "invalid"),
        ("row-9", "decision", "failed"),
    ]
    assert told[0]["message"] == "an answer's options are not exactly those asked"
    assert told[1]["message"] == "a probability is not a finite number from 0 to 1"
    assert told[2]["message"] == "refused by rule"
    assert "caller's words" not in (out / "failures.jsonl").read_text()
    assert len(list(folder.records_of(out))) == 8

    class Mended(SoundEngine):
        name = "losing"

    again = run_engine(Mended(), data, out)
    assert (again.written, again.before, again.failures) == (4, 8, 0)
    assert (out / "failures.jsonl").read_bytes() == b""


def test_one_bad_question_does_not_take_the_row_s_others_with_it(tmp_path: Path) -> None:
    good = jev_row(0)["question"]
    many = {"type": "choice", "instructions": "?", "criteria": {str(number): "x" for number in range(200)}}
    data = write(tmp_path / "f.jsonl", [{"id": "r", "state": "apple", "questions": {"good": good, "many": many}}])

    class Picky(SoundEngine):
        def prepare(self, state: Any, calls: Any, *terms: Any) -> Any:
            if any(len(question["criteria"]) > 100 for call in calls for question in call.values()):
                raise ValueError("too many options")
            return super().prepare(state, calls, *terms)

    outcome = run_engine(Picky(), data, tmp_path / "out")
    assert (outcome.written, outcome.failed) == (1, {"invalid": 1})


def test_an_engine_that_does_not_recover_ends_the_run_and_what_it_answered_stays(tmp_path: Path) -> None:
    data = write(tmp_path / "f.jsonl", [jev_row(number, "break" if number == 5 else None) for number in range(12)])

    class Broken(LosingEngine):
        def canary(self) -> Any:
            return self.calls < 5

    with pytest.raises(SourceBroken, match="canary"):
        run_engine(Broken(), data, tmp_path / "out")
    assert len(list(folder.records_of(tmp_path / "out"))) == 5
    assert folder.manifest_of(tmp_path / "out")["status"] == "running"  # type: ignore[index]


def test_only_the_thread_that_loaded_the_engine_may_ask_it() -> None:
    source = EngineSource(engine=SoundEngine())
    thread = threading.Thread(target=source.load)
    thread.start()
    thread.join()
    with pytest.raises(SourceBroken, match="the thread that loaded it"):
        list(source.ask("apple", [{"q": jev_row(0)["question"]}]))


def test_the_findings_show_each_planted_fault(tmp_path: Path) -> None:
    measures = pytest.importorskip("scorer.bench.measures")
    findings = pytest.importorskip("scorer.bench.findings")
    rows = [jev_row(number) for number in range(240)]

    def told(engine: Any, values: list[Any], orderings: str = "none") -> str:
        out = tmp_path / engine.name
        data = write(tmp_path / f"{engine.name}.jsonl", values)
        outcome = run_engine(engine, data, out, Options(orderings=orderings))
        metrics = measures.summarise(list(folder.records_of(out)))
        return "\n".join(findings.findings(metrics, findings.failures(outcome.manifest)))

    sound = told(SoundEngine(), rows, "reverse")
    for word in ("Position:", "Drift:", "Overconfident:", "Failed:"):
        assert word not in sound
    assert "Position:" in told(BiasedEngine(), rows, "reverse")
    assert "Drift:" in told(DriftingEngine(0.003), rows)
    assert "Overconfident:" in told(OverconfidentEngine(), rows)
    losing = [jev_row(number, "lose one" if number % 10 == 0 else None) for number in range(60)]
    assert "Failed: 6" in told(LosingEngine(), losing)


# -- memory and the progress line ---

PEAK = """
import resource, sys
from scorer.bench import cli
code = cli.main(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""


def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    env |= {f"{PREFIX}ENGINE": "fake", f"{PREFIX}RUN_DIR": str(tmp_path)}
    peaks = []
    for count in (2_000, 20_000):
        data = tmp_path / f"{count}.jsonl"
        with data.open("w") as file:
            for number in range(count):
                file.write(json.dumps(jev_row(number, f"{number} " + "some words " * 200)) + "\n")
        command = [
            sys.executable,
            "-c",
            PEAK,
            "bench",
            str(data),
            "--out",
            str(tmp_path / f"out-{count}"),
            "--no-report",
        ]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=100)
        peaks.append(int(done.stdout.rpartition("peak ")[2]))
    # The second file is 45 MB longer. What may grow is the index of ids, which is bounded.
    assert peaks[1] - peaks[0] < 12 * 1024


def test_the_progress_line_has_rate_and_time_left_and_is_silent_where_nobody_looks() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        bar = Progress(100, done=20, stream=stream)
        bar.step(29)
        bar.step(1, failed=1)
        bar.close()
    assert pipe.getvalue() == ""
    assert "\r" in terminal.getvalue()
    assert terminal.getvalue().endswith("failed\n")
    bar = Progress(100, done=20, stream=pipe)
    bar.step(30, failed=1)
    assert bar.text(10.0) == "50/100 answers (50%), 3/s, 0:17 left, 1 failed"
    assert Progress(7200, stream=pipe).text(1.0) == "0/7200 answers (0%), 0/s, ? left"
    slow = Progress(7201, stream=pipe)
    slow.step()
    assert slow.text(1.0).endswith("2:00:00 left")


def test_answers_of_a_slow_engine_are_in_the_file_as_they_come(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[int] = []

    class Looking(SoundEngine):
        name = "sound"

        def predict(self, call: Any) -> Any:
            seen.append((out / "results.jsonl").read_bytes().count(b"\n"))
            time.sleep(2 * recording.HELD_S)
            return super().predict(call)

    run_engine(Looking(), data, out)
    assert seen == list(range(12))
