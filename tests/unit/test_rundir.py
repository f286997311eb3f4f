"""The run directory (shared/rundir.py): design §3; architecture.md §1.5, §1.11; trouble.md rank 35."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.rundir import RunDir, RunDirError, ScorerRunning

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="rd-") as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_missing_directory_is_made_closed_to_others_with_its_parents(short: Path) -> None:
    run_dir = RunDir(short / "a" / "b")
    assert stat.S_IMODE(run_dir.path.stat().st_mode) == 0o750


def test_an_existing_directory_is_used_as_it_is(short: Path) -> None:
    own = short / "own"
    own.mkdir(mode=0o700)
    (own / "file").touch()
    RunDir(own)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert (own / "file").exists()


@pytest.mark.parametrize("mode", [0o755, 0o751, 0o752, 0o754, 0o777, 0o1777])
def test_a_directory_open_to_other_users_is_refused_and_left_alone(short: Path, mode: int) -> None:
    shared = short / "open"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(RunDirError, match=r"INTERN_DECISION_RUN_DIR: .*open has mode \d+"):
        RunDir(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == mode


def test_paths_are_absolute_and_both_tiers_compute_them_alike(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(short)
    relative, absolute = RunDir(Path("run")), RunDir(short / "run")
    assert relative.path.is_absolute()
    assert relative.endpoint == absolute.endpoint == f"ipc://{short}/run/scorer.sock"
    assert relative.slots == absolute.slots == short / "run" / "slots"


@pytest.mark.parametrize("extra", [0, 1, 60])
def test_a_socket_path_of_107_bytes_is_accepted_and_one_more_is_refused_with_the_limit(short: Path, extra: int) -> None:
    room = 107 - len(os.fsencode(short)) - len("//scorer.sock")
    path = short / ("d" * (room + extra))
    if extra:
        with pytest.raises(
            RunDirError, match=rf"INTERN_DECISION_RUN_DIR: .*scorer\.sock has {107 + extra} bytes.* 107"
        ):
            RunDir(path)
    else:
        assert len(os.fsencode(RunDir(path).socket)) == 107


def test_the_socket_path_is_measured_in_bytes_and_not_in_characters(short: Path) -> None:
    room = 107 - len(os.fsencode(short)) - len("//scorer.sock")
    with pytest.raises(RunDirError, match="bytes"):
        RunDir(short / ("é" * (room - 1)))


def test_a_file_in_the_directorys_place_is_refused_by_name(short: Path) -> None:
    (short / "file").touch()
    for path in (short / "file", short / "file" / "below"):
        with pytest.raises(RunDirError, match=r"INTERN_DECISION_RUN_DIR: .*file"):
            RunDir(path)


def test_a_second_scorer_on_the_directory_is_refused_until_the_first_lets_go(short: Path) -> None:
    run_dir = RunDir(short / "run")
    first = run_dir.lock_scorer()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ScorerRunning, match=str(run_dir.path)):
        RunDir(short / "run").lock_scorer()
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(first)
    os.close(run_dir.lock_scorer())


def test_the_claim_of_a_killed_scorer_is_free_at_once(short: Path) -> None:
    run_dir = RunDir(short / "run")
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from shared.rundir import RunDir\n"
            "RunDir(Path(sys.argv[1])).lock_scorer(); print('held', flush=True); sys.stdin.read()",
            str(run_dir.path),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(ScorerRunning):
        run_dir.lock_scorer()
    holder.kill()
    holder.communicate()
    os.close(run_dir.lock_scorer())


def test_two_directories_have_two_scorers(short: Path) -> None:
    locks = [RunDir(short / name).lock_scorer() for name in ("a", "b")]
    for lock in locks:
        os.close(lock)


def test_the_lock_file_is_private_and_is_not_inherited(short: Path) -> None:
    run_dir = RunDir(short / "run")
    lock = run_dir.lock_scorer()
    assert stat.S_IMODE((run_dir.path / "scorer.lock").stat().st_mode) == 0o600
    assert not os.get_inheritable(lock)
    os.close(lock)
