"""The acceptance list: each line on a sound engine, each planted fault on the line that must show it, and whole lists
through real processes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scorer.bench import accept, checks, controls, inside, pair, rows
from scorer.bench.checks import FAIL, NOT_APPLICABLE, PASS, Line
from scorer.bench.forms import Row
from scorer.bench.source import EngineSource
from scorer.engines.base import CallResult, OutOfMemory
from shared.settings import PREFIX
from tests.bench_offline.planted import (
    BiasedEngine,
    DriftingEngine,
    LosingEngine,
    SoundEngine,
    checked,
    jev_row,
    write,
)
from tests.harness import ROOT, TOKEN, Pair, short_dir


@pytest.fixture
def asked(tmp_path: Path) -> list[Row]:
    files, found = checked(write(tmp_path / "f.jsonl", [jev_row(number) for number in range(36)]))
    return list(rows.read(files, found))


def listed(engine: Any, asked: list[Row], **options: Any) -> dict[str, Line]:
    source = EngineSource(engine=engine)
    source.load()
    lines, _ = inside.inspect(source, asked, **options)
    return {line.name: line for line in lines}


def outcomes(lines: Mapping[str, Line]) -> dict[str, str]:
    return {name: line.outcome for name, line in lines.items()}


def test_a_sound_engine_passes_every_line_that_it_can(asked: list[Row]) -> None:
    lines = listed(SoundEngine(), asked)
    assert outcomes(lines) == {
        "whole answers": PASS,
        "positive control": PASS,
        "negative control": PASS,
        "A-vs-A, in process": PASS,
        "chunks, in process": PASS,
        "21 binary questions": PASS,
        "16 questions, long state": PASS,
        "memory": PASS,
        "over-cap request": NOT_APPLICABLE,
    }
    assert lines["positive control"].found == "36 of 36 right; chance 0.33"
    assert lines["negative control"].found == "36 of 36 follow, 0 stay"
    assert "does not run on CUDA" in lines["over-cap request"].why
    assert all(line.expected for line in lines.values())


def test_a_position_bias_fails_both_controls(asked: list[Row]) -> None:
    lines = listed(BiasedEngine(), asked)
    assert lines["positive control"].outcome == lines["negative control"].outcome == FAIL
    assert lines["positive control"].found == "12 of 36 right; chance 0.33"
    assert lines["negative control"].found == "0 of 36 follow, 36 stay"


def test_a_drift_fails_a_vs_a_and_the_line_says_how_far(asked: list[Row]) -> None:
    lines = listed(DriftingEngine(1e-6), asked)
    assert lines["A-vs-A, in process"].outcome == FAIL
    assert "36 of 36 answers differ, largest move" in lines["A-vs-A, in process"].found
    assert lines["chunks, in process"].outcome == FAIL
    assert lines["positive control"].outcome == PASS
    assert listed(DriftingEngine(1e-6), asked, tolerance=0.01)["A-vs-A, in process"].outcome == PASS


def test_a_lost_option_and_a_nan_fail_the_first_line_and_name_the_row(tmp_path: Path) -> None:
    values = [jev_row(number, {3: "lose apple", 4: "nan apple"}.get(number)) for number in range(12)]
    files, found = checked(write(tmp_path / "f.jsonl", values))
    line = listed(LosingEngine(), list(rows.read(files, found)))["whole answers"]
    assert line.outcome == FAIL
    assert line.found == "10 of 12; f.jsonl row-3 decision: an answer's options are not exactly those asked"


def test_an_accuracy_that_is_asked_for_decides(asked: list[Row]) -> None:
    assert listed(SoundEngine(), asked, least=1.0)["positive control"].outcome == PASS
    half = [*asked[:18], *(row._replace(expected={"decision": "fruit"}) for row in asked[18:])]
    assert listed(SoundEngine(), half, least=0.9)["positive control"].outcome == FAIL


def test_an_answer_that_depends_on_its_neighbours_in_a_request_fails_the_chunks(asked: list[Row]) -> None:
    class Remembering(SoundEngine):
        """Lets the calls of one request look at each other."""

        def prepare(self, state: Any, calls: Any, *terms: Any) -> Any:
            self.together = len(calls)
            return super().prepare(state, calls, *terms)

        def numbers(self, state: Any, labels: Any) -> list[float]:
            own = super().numbers(state, labels)
            return own if self.together == 1 else own[::-1]

    line = listed(Remembering(), asked)["chunks, in process"]
    assert line.outcome == FAIL
    assert line.found.startswith("0 of 3 chunks (16+16+8 questions)")


def test_a_shape_over_the_engine_s_limit_is_not_applicable(asked: list[Row]) -> None:
    class Short(SoundEngine):
        def prepare(self, state: Any, calls: Any, *terms: Any) -> Any:
            if len(str(state)) > 1500:
                raise ValueError("Example has 9 tokens, above 8; truncation is forbidden")
            return super().prepare(state, calls, *terms)

    lines = listed(Short(), asked)
    assert lines["16 questions, long state"].outcome == NOT_APPLICABLE
    assert lines["21 binary questions"].outcome == PASS


def test_the_long_state_has_about_3_900_tokens(asked: list[Row]) -> None:
    source = EngineSource(engine=SoundEngine())
    source.load()
    assert abs(len(checks.long_state(source).split()) - 3900) < 50


def test_controls_have_the_right_option_in_each_position_equally_often() -> None:
    labelled = [row for row in controls.control_rows() if row.expected["decision"]]
    places = [row.labels["decision"].index(str(row.expected["decision"])) for row in labelled]
    assert len(labelled) == 24
    assert [places.count(place) for place in range(4)] == [6, 6, 6, 6]
    (question,) = {row.questions["decision"]["instructions"] for row in labelled}
    first = controls.rotated(labelled[0], "decision")
    assert first["instructions"] == question
    assert list(first["criteria"]) == ["a", "b", "c", "d"]
    assert first["criteria"]["b"] == labelled[0].questions["decision"]["criteria"]["a"]


def test_a_restart_is_compared_bit_for_bit_and_a_second_process_that_fails_is_a_failure() -> None:
    one = {"r": {"probabilities": {"a": 0.25, "b": 0.75}, "decision": "b", "prompt": "x"}}
    other = {"r": {"probabilities": {"a": 0.25 + 2**-50, "b": 0.75}, "decision": "b", "prompt": "x"}}
    assert accept.restarted(one, lambda: one, 0.0).outcome == PASS
    line = accept.restarted(one, lambda: other, 0.0)
    assert (line.outcome, line.found) == (
        FAIL,
        "1 of 1 answers differ, largest move 8.88e-16, 0 decisions moved",
    )
    assert accept.restarted(one, lambda: other, 1e-9).outcome == PASS
    assert accept.restarted(one, lambda: {}, 1.0).outcome == FAIL
    moved = {"r": {**one["r"], "decision": "a"}}
    assert accept.restarted(one, lambda: moved, 1.0).outcome == FAIL

    def fails() -> Any:
        raise accept.AcceptError("it broke", 70)

    assert accept.restarted(one, fails, 0.0).found == "it broke"


def test_an_over_cap_request_must_fail_leave_nothing_and_change_nothing(
    asked: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line's logic on a card that is not there; tests/gpu has the real one."""

    class Card(SoundEngine):
        fraction, leak, reserved = 1.0, 0, 100 << 20

        def memory(self) -> dict[str, int]:
            return {"reserved": self.reserved}

        def predict(self, call: Any) -> CallResult:
            if self.fraction < 1.0:
                self.reserved += self.leak
                raise OutOfMemory
            return super().predict(call)

    class Cuda:
        def __init__(self, engine: Card) -> None:
            self.engine = engine

        def get_device_properties(self, _: int) -> Any:
            return type("Properties", (), {"total_memory": 1 << 30})

        def empty_cache(self) -> None:
            pass

        def set_per_process_memory_fraction(self, fraction: float, _: int) -> None:
            self.engine.fraction = fraction

    def line(engine: Card) -> Line:
        torch = type("Torch", (), {"cuda": Cuda(engine)})
        monkeypatch.setattr(inside.importlib, "import_module", lambda _: torch)
        return listed(engine, asked)["over-cap request"]

    good = line(Card())
    assert (good.outcome, good.found) == (
        PASS,
        "out of memory; 0 MiB left behind; then bit-identical (36 answers)",
    )
    leaking = Card()
    leaking.leak = 64 << 20
    assert line(leaking).outcome == FAIL

    class Roomy(Card):
        def predict(self, call: Any) -> CallResult:
            return SoundEngine.predict(self, call)

    assert line(Roomy()).found == "a request beyond 8 MiB of room: it was answered"


# -- whole lists ---


def whole_list(*arguments: Any, **settings: str) -> tuple[int, str, dict[str, str]]:
    """Exit code, everything that is printed, and the outcomes by line. Nothing may be left behind."""
    scratch = short_dir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    env |= {f"{PREFIX}{name}": value for name, value in settings.items()} | {"TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "scorer", "accept", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=290, check=False)
    assert list(scratch.iterdir()) == []
    scratch.rmdir()
    out = next(Path(str(value)) for value in arguments if str(value).endswith(".json"))
    told = json.loads(out.read_bytes()) if out.exists() else {"lines": []}
    return done.returncode, done.stdout + done.stderr, {line["name"]: line["outcome"] for line in told["lines"]}


def test_the_whole_list_on_the_embedded_engine(tmp_path: Path) -> None:
    pytest.importorskip("sparrow_decider")
    code, text, lines = whole_list("--out", tmp_path / "list.json", ENGINE="sparrow")
    assert code == 0, text
    assert lines == {
        "whole answers": PASS,
        "positive control": PASS,
        "negative control": PASS,
        "A-vs-A, in process": PASS,
        "chunks, in process": PASS,
        "21 binary questions": PASS,
        "16 questions, long state": PASS,
        "memory": PASS,
        "over-cap request": NOT_APPLICABLE,
        "A-vs-A, restarted": PASS,
        "the engine's own numbers, HTTP": PASS,
        "401": PASS,
        "429": PASS,
        "chunks, HTTP": PASS,
        "21 binary questions, HTTP": PASS,
        "16 questions, long state, HTTP": PASS,
    }
    assert "15 pass, 0 FAIL, 1 not applicable" in text


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("torch", "transformers")), reason="no torch or transformers"
)
def test_the_whole_list_on_the_tiny_checkpoint_takes_less_than_five_minutes(tmp_path: Path) -> None:
    from scorer.engines.intern_tiny.build import build

    settings = {name.removeprefix(PREFIX): value for name, value in build(tmp_path / "tiny").settings().items()}
    code, text, lines = whole_list("--out", tmp_path / "list.json", **settings)
    assert code == 0, text
    not_asked = {name for name, outcome in lines.items() if outcome == NOT_APPLICABLE}
    assert not_asked == {"positive control", "negative control", "over-cap request"}
    assert "weights are random" in " ".join(text.split())
    assert len(lines) == 16


def test_a_running_server_is_asked_what_a_server_can_show(served: Pair, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    url = f"http://127.0.0.1:{served.port}/decide"
    code, text, lines = whole_list("--url", url, "--token-file", token, "--out", tmp_path / "list.json")
    assert code == 0, text
    assert lines["401"] == lines["429"] == lines["chunks, HTTP"] == PASS
    assert lines["A-vs-A, the same server"] == lines["whole answers"] == PASS
    assert lines["positive control"] == lines["memory"] == lines["A-vs-A, restarted"] == NOT_APPLICABLE


def test_an_engine_that_refuses_to_start_ends_the_list_with_its_reason(tmp_path: Path) -> None:
    code, text, lines = whole_list("--out", tmp_path / "list.json", ENGINE="nix")
    assert (code, lines) == (78, {})
    assert "there is no engine 'nix'" in text
    assert "Traceback" not in text


def test_a_pair_that_does_not_come_up_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}ENGINE", "nix")
    with pytest.raises(pair.PairError, match="scorer left with 78: scorer: INTERN_DECISION_ENGINE"):
        pair.OwnPair().__enter__()


def test_where_the_web_tier_is_not_installed_no_pair_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert pair.why_not() == ""
    monkeypatch.setattr(pair.importlib.util, "find_spec", lambda name: None if name == "flask" else object())
    assert pair.why_not() == "not installed: flask"
    monkeypatch.setattr(pair, "_CONF", tmp_path / "none")
    assert "conf/gunicorn.conf.py" in pair.why_not()


def test_rows_of_one_s_own_are_the_controls(tmp_path: Path) -> None:
    data = write(tmp_path / "f.jsonl", [jev_row(number) for number in range(10)])
    assert [row.id for row in inside.asked_rows([data])] == [f"row-{number}" for number in range(10)]
    assert len(inside.asked_rows([])) == 30
