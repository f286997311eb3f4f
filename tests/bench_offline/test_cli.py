"""The commands as a user runs them: exit codes, messages, what is written, and that serve pays nothing for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scorer.bench import suite
from scorer.bench.suite import SuiteError
from shared.settings import PREFIX
from tests.bench_offline.planted import jev_row, lines, write
from tests.harness import ROOT, TOKEN, Pair


class Shell:
    """Runs ``python -m scorer ...`` on the fake engine, whose script is the file ``fake.json``."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        self.data = write(directory / "rows" / "f.jsonl", [jev_row(number) for number in range(12)])
        self.out = directory / "out"

    def script(self, **script: Any) -> None:
        (self.dir / "fake.json").write_text(json.dumps(script))

    def run(self, *arguments: Any, **settings: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        given = {"ENGINE": "fake", "RUN_DIR": str(self.dir), **settings}
        env |= {f"{PREFIX}{name}": value for name, value in given.items()}
        command = [sys.executable, "-m", "scorer", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    def bench(self, *arguments: Any, **settings: str) -> tuple[int, str, str]:
        return self.run("bench", self.data, "--out", self.out, *arguments, **settings)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_help_lists_every_command_and_each_has_its_own(shell: Shell) -> None:
    code, out, _ = shell.run("--help")
    assert code == 0
    for command in ("serve", "bench", "accept", "calibrate", "compare", "replay"):
        assert command in out
        code, own, _ = shell.run(command, "--help")
        assert code == 0
        assert f"python -m scorer {command}" in own


def test_serve_starts_without_the_offline_tools() -> None:
    code = "import scorer.__main__, sys; print([name for name in sys.modules if name.startswith('scorer.bench')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_command_and_a_missing_one_are_usage_errors(shell: Shell) -> None:
    assert shell.run("nix")[0] == 2
    assert shell.run()[0] == 2


def test_bench_without_a_report_needs_nothing_but_the_engine(shell: Shell) -> None:
    code, out, err = shell.bench("--no-report")
    assert (code, err) == (0, "")
    assert "12 answers written, 0 were there, 0 failed" in out
    assert sorted(path.name for path in shell.out.iterdir()) == ["failures.jsonl", "results.jsonl", "run.json"]
    code, out, _ = shell.bench("--no-report")
    assert (code, out) == (0, "the run is finished: 12 answers are there, nothing was asked\n")


def test_bench_writes_the_report_and_applies_the_gates(shell: Shell) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    code, out, err = shell.bench(
        "--orderings", "reverse", "--min-accuracy", "0.1", "--max-ece", "1", "--max-flips", "1"
    )
    assert (code, err) == (0, "")
    assert "accuracy 0.333 of 12 labelled answers" in out
    assert {"report.md", "report.html", "metrics.json", "run.json"} <= {path.name for path in shell.out.iterdir()}
    page = (shell.out / "report.html").read_bytes()
    code, out, err = shell.bench(
        "--orderings", "reverse", "--min-accuracy", "0.9", "--max-ece", "0", "--max-flips", "0"
    )
    assert code == 1
    assert len(err.splitlines()) == 3
    assert err.splitlines()[0] == "gate: accuracy 0.3333 is below 0.9"
    # Nothing was asked, so nothing was written.
    assert (shell.out / "report.html").read_bytes() == page


def test_a_lost_option_is_a_named_failure_and_the_exit_code_says_so(shell: Shell) -> None:
    shell.script(drop_option=True)
    code, out, _ = shell.bench("--no-report")
    assert code == 1
    assert "0 answers written, 0 were there, 12 failed" in out
    assert "failed: 12 broken_answer (see failures.jsonl)" in out
    assert lines(shell.out / "failures.jsonl")[0]["row"] == "row-0"
    shell.script(nan=True)
    assert shell.bench("--no-report")[0] == 1
    shell.script()
    code, out, _ = shell.bench("--no-report")
    assert code == 0
    assert "12 answers written" in out


def test_broken_rows_are_told_before_the_engine_is_loaded(shell: Shell) -> None:
    write(shell.data, [jev_row(0), jev_row(1, expected="fish"), b"{\n"])
    shell.script(load_error="loaded")
    code, out, err = shell.bench()
    assert (code, out) == (2, "")
    assert "f.jsonl:2: expected: is none of the question's options" in err
    assert "f.jsonl:3: the line is not valid JSON" in err
    assert not shell.out.exists()


def test_an_engine_that_does_not_load_is_refused_as_serve_refuses_it(shell: Shell) -> None:
    shell.script(load_error="the checkpoint is another one")
    code, _, err = shell.bench("--no-report")
    assert (code, err) == (78, "scorer: the checkpoint is another one\n")
    assert shell.bench("--no-report", ENGINE="nix")[0] == 78


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "2"], "--concurrency goes with --url"),
        (["--suite", "jevbench"], "--suite needs --url"),
        (["--no-report", "--min-accuracy", "0.5"], "gates need the measures"),
        (["--limit", "0"], "must be a whole number of at least 1"),
        (["--min-accuracy", "nan"], "must be a number from 0 to 1"),
        (["--packed", "--one-by-one"], "not allowed with"),
        (["--orderings", "some"], "invalid choice"),
        (["--url", "ftp://x", "--no-token"], "--url: the URL must be http"),
        (["--url", "http://127.0.0.1:1"], "or give --token-file or --no-token"),
        (["--families", "nix"], "no row is of the families asked; there are even, odd"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(shell: Shell, arguments: list[str], message: str) -> None:
    code, _, err = shell.bench(*arguments)
    assert code == 2
    assert message in err
    assert not shell.out.exists()


def test_another_run_s_folder_is_refused_and_overwritten_when_asked(shell: Shell) -> None:
    shell.bench("--no-report")
    code, _, err = shell.bench("--no-report", "--limit", "3")
    assert code == 2
    assert "holds another run; it differs in options.limit: give another folder, or --overwrite" in err
    code, out, _ = shell.bench("--no-report", "--limit", "3", "--overwrite")
    assert code == 0
    assert "3 answers written, 0 were there" in out


def test_a_server_is_asked_with_many_requests_at_once(shell: Shell, served: Pair) -> None:
    token = shell.dir / "token"
    token.write_text(TOKEN + "\n")
    url = f"http://127.0.0.1:{served.port}"
    code, out, err = shell.bench("--no-report", "--url", url, "--token-file", token, "--concurrency", "4")
    assert (code, err) == (0, "")
    assert "12 answers written" in out
    manifest = json.loads((shell.out / "run.json").read_bytes())
    assert TOKEN not in json.dumps(manifest)
    # By the setting, and on the other surface.
    code, out, err = shell.run(
        "bench", shell.data, "--out", shell.dir / "semif", "--no-report", "--url", f"{url}/decide", API_TOKEN=TOKEN
    )
    assert (code, err) == (0, "")
    token.write_text("x" * 40)
    code, _, err = shell.run(
        "bench", shell.data, "--out", shell.dir / "wrong", "--no-report", "--url", url, "--token-file", token
    )
    assert (code, err) == (70, "scorer: the server does not take the token (401)\n")


def test_replay_says_identical_or_changed_by_its_exit_code(shell: Shell) -> None:
    shell.bench("--no-report")
    code, out, err = shell.run("replay", shell.out, shell.data)
    assert (code, err) == (0, "")
    assert out.startswith("replay: bit-identical\n12 answers: 12 bit-identical")
    shell.script(weights=[0.600001, 0.3, 0.1])
    code, out, _ = shell.run("replay", shell.out, shell.data, "--tolerance", "0.001")
    assert code == 0
    assert out.startswith("replay: within the tolerance")
    code, out, _ = shell.run("replay", shell.out, shell.data)
    assert code == 1
    assert out.startswith("replay: changed")


def test_two_runs_are_compared_and_one_is_calibrated(shell: Shell) -> None:
    pytest.importorskip("sklearn")
    shell.bench("--no-report")
    shell.script(weights=[0.3, 0.6, 0.1])
    other = shell.dir / "other"
    assert shell.run("bench", shell.data, "--out", other, "--no-report")[0] == 0
    code, out, err = shell.run("compare", shell.out, other, "--out", shell.dir / "compared.json")
    assert (code, err) == (0, "")
    assert "Comparison of two runs" in out
    assert json.loads((shell.dir / "compared.json").read_bytes())["rows"]["paired"] == 12
    assert shell.run("compare", shell.out, other, "--out", shell.dir / "compared.json")[0] == 2
    code, out, err = shell.run("calibrate", shell.out)
    assert (code, err) == (0, "")
    stored = json.loads((shell.out / "calibration.json").read_bytes())
    assert stored["fingerprint"]["engine"] == "fake"
    code, _, err = shell.run("calibrate", shell.out)
    assert code == 2
    assert "calibration.json is there" in err
    assert shell.run("calibrate", shell.out, "--overwrite")[0] == 0


def test_nothing_that_is_printed_or_stored_outside_the_results_quotes_a_row(shell: Shell) -> None:
    secret = "zebra-secret"
    write(shell.data, [jev_row(0, f"{secret} text"), jev_row(1, f"{secret} text", expected="fish")])
    _, out, err = shell.bench("--no-report")
    assert secret not in out + err
    question = {"type": "choice", "instructions": secret, "criteria": {"x": secret, "y": secret}}
    write(shell.data, [jev_row(0, f"{secret} text", question=question, labels=["x", "y"], expected="x")])
    shell.script(error=["runtime", secret], canary="the same")
    _, out, err = shell.bench("--no-report")
    assert secret not in out + err
    shell.script()
    _, out, err = shell.bench("--no-report")
    assert secret not in out + err
    for path in shell.out.iterdir():
        assert secret not in path.read_text()


# -- the package's suite ---


def test_the_jevbench_suite_runs_against_a_server(shell: Shell, served: Pair) -> None:
    pytest.importorskip("jevbench")
    token = shell.dir / "token"
    token.write_text(TOKEN)
    arguments = ["bench", "--suite", "jevbench", "--suite-name", "examples", "--out", shell.out]
    arguments += ["--url", f"http://127.0.0.1:{served.port}/v1/systemone", "--token-file", token]
    code, out, err = shell.run(*arguments)
    assert (code, err) == (0, "")
    assert f"report: {shell.out / 'jevbench.json'}" in out
    assert (shell.out / "jevbench.json").stat().st_size > 1000
    assert not (ROOT / ".jevbench-cache").exists()
    code, _, err = shell.run(*arguments)
    assert code == 2
    assert "jevbench.json is there" in err


def test_without_the_package_the_suite_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jevbench", None)
    with pytest.raises(SuiteError, match=r"pip install 'intern-decision-serve\[jevbench\]'"):
        suite.run("http://127.0.0.1:1", None, tmp_path, suite="examples")
