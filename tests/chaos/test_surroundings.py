"""What is around the processes: their supervisor, their run directory, their standard error (architecture.md §4, tests
12, 17, 18; trouble.md ranks 30 and 35)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.settings import PREFIX
from tests.chaos.conftest import Record
from tests.harness import D1, ROOT, Pair, pair, wait_for
from tests.process.support import (
    Background,
    Load,
    at_once,
    invariants,
    kill,
    slow,
    spread,
    unavailable,
    wait_running,
    wait_slots,
)

pytestmark = pytest.mark.timeout(180)


# -- the supervisor --------------------------------------------------------------------------------


class Served(Pair):
    """Both tiers under ``conf/serve.py``, as `make serve` starts them."""

    def __init__(self, patience_s: float | None = None, **script: Any) -> None:
        super().__init__(start=False)
        self.log_file = self.dir / "serve.log"
        self.out: subprocess.Popen[bytes] | None = None
        self.logs = dict.fromkeys(self.logs, self.log_file)
        self.patience_s = patience_s
        if script:
            self.script(**script)
        self.serve()

    def serve(self) -> subprocess.Popen[bytes]:
        guard = "setpriv --pdeathsig TERM --" if shutil.which("setpriv") else ""
        env = {**self.env, "SERVE_GUARD": guard}
        del env[f"{PREFIX}BIND"]
        run = "import sys; sys.path.insert(0, 'conf'); import serve"
        if self.patience_s is not None:
            run += f"; serve.DEFAULT_PATIENCE_S = {self.patience_s}"
        run += f"; sys.argv = ['serve', '--port', '{self.port}', '--engine', 'fake']; sys.exit(serve.main())"
        with self.log_file.open("ab") as log:
            # The guard makes a killed launcher take supervisord with it, as in the Makefile.
            self.out = subprocess.Popen(
                [*guard.split(), sys.executable, "-c", run],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.out

    def processes(self) -> list[psutil.Process]:
        """The launcher and everything below it."""
        assert self.out is not None
        launcher = psutil.Process(self.out.pid)
        return [launcher, *launcher.children(recursive=True)]

    def close(self) -> None:
        assert self.out is not None
        left = self.processes() if self.out.poll() is None else []
        if self.out.poll() is None:
            self.out.terminate()
            self.out.wait(40)
        for process in left:
            if process.is_running():
                process.kill()


@contextmanager
def served(patience_s: float | None = None, **script: Any) -> Iterator[Served]:
    service = Served(patience_s, **script)
    try:
        yield service
    finally:
        service.close()


def gone(processes: list[psutil.Process], seconds: float) -> None:
    def left() -> list[psutil.Process]:
        return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

    try:
        wait_for(lambda: not left(), seconds, "every process gone")
    finally:
        for process in left():
            process.kill()


def the(processes: list[psutil.Process], word: str) -> psutil.Process:
    """The first process whose command line has a word."""
    return next(one for one in processes if word in one.cmdline())


needs_guard = pytest.mark.skipif(
    not shutil.which("setpriv"), reason="no setpriv here, and without it no parent-death signal"
)


@needs_guard
@pytest.mark.parametrize("loading", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_a_killed_launcher_takes_everything_with_it_and_the_next_start_works(loading: bool) -> None:
    """trouble.md rank 30: also while the model loads."""
    with served(**({"load_sleep_s": 60} if loading else {})) as service:
        if loading:
            wait_for(lambda: service.request("GET", "/health")[0] == 503, 40, "a 503 while it loads")
        else:
            service.wait_ready(40)
        processes = service.processes()
        assert len(processes) >= 6, "launcher, supervisord, scorer, master, two workers"
        kill(service.out)
        gone(processes, 15)
        service.script()
        service.serve()
        service.wait_ready(40)
        assert service.post("/decide", D1)[0] == 200


@pytest.mark.chaos
def test_the_supervisor_starts_a_killed_scorer_and_a_killed_master_again(record: Record) -> None:
    """trouble.md rank 30: a killed gunicorn master; and the scorer is kept and used again."""
    with served() as service:
        service.wait_ready(40)
        boot = service.request("GET", "/health")[2]["boot_id"]
        master = the(service.processes(), "gunicorn")
        workers = master.children()
        master.kill()
        gone(workers, 15)
        wait_for(lambda: service.post("/decide", D1)[0] == 200, 40, "served again")
        assert service.request("GET", "/health")[2]["boot_id"] == boot
        the(service.processes(), "scorer").kill()
        wait_for(lambda: service.request("GET", "/health")[2].get("boot_id") not in (None, boot), 40, "another scorer")
        assert service.post("/decide", D1)[0] == 200
        assert service.out is not None
        assert service.out.poll() is None


def test_every_line_of_both_tiers_comes_out_at_the_launcher_to_the_last() -> None:
    with served() as service:
        service.wait_ready(40)
        assert service.post("/decide", D1)[0] == 200
        assert service.out is not None
        service.out.terminate()
        assert service.out.wait(40) == 0
        lines = service.log_file.read_text()
    for logger in ("scorer.worker: ready", "scorer.job: job", "web.access: request", "gunicorn.error: Shutting down"):
        assert logger in lines
    assert "scorer.broker: stopped" in lines, "the last line of all"


@pytest.mark.chaos
def test_a_load_that_never_ends_is_given_up_and_leaves_no_process() -> None:
    """§4, test 12."""
    with served(3.0, load_sleep_s=600) as service:
        assert service.out is not None
        wait_for(lambda: len(service.processes()) >= 6, 40, "both tiers")
        processes = service.processes()
        assert service.out.wait(60) == 1
        assert "not healthy within" in service.log_file.read_text()
        gone(processes, 5)


# -- standard error --------------------------------------------------------------------------------


def redirected(service: Pair, name: str, where: str, **settings: str) -> subprocess.Popen[bytes]:
    """Start a tier with its standard error at a full disk, or closed."""
    command = {
        "scorer": f'"{sys.executable}" -m scorer serve',
        "web": f'"{sys.executable}" -m gunicorn -c conf/gunicorn.conf.py web.wsgi:app',
    }[name]
    target = "2>/dev/full" if where == "full" else "2>&-"
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"exec {command} {target}"],
        cwd=ROOT,
        env={**service.env, **{f"{PREFIX}{name}": value for name, value in settings.items()}},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    setattr(service, name, process)
    return process


@pytest.mark.parametrize("where", ["full", "closed"])
def test_a_full_disk_under_the_logs_or_no_standard_error_at_all_costs_no_request(where: str, record: Record) -> None:
    """§4, test 18."""
    with pair(start=False, MAX_QUEUE="8", LOG_LEVEL="DEBUG") as service:
        for path in service.logs.values():
            path.touch()
        redirected(service, "scorer", where)
        redirected(service, "web", where)
        service.wait_ready()
        with record(service, f"standard error: {where}") as seen, Load(service, threads=4) as load:
            seen.hit()
            load.answered(50)
            for error in (["runtime", "odd"], ["value", "odd"], ["oom", "odd"]):
                status, _ = service.post("/decide", {**D1, "state": {"fake": {"error": error}}})
                assert status == {"runtime": 500, "value": 422, "oom": 503}[error[0]]
            assert service.post("/decide", b"{")[0] == 422
            # Also a worker and a scorer that start now, and one that is stopped.
            os.kill(service.worker_pids()[0], signal.SIGTERM)
            wait_for(lambda: len(service.worker_pids()) == 2, 20, "two workers")
            seen.recovered()
        assert set(load.outcomes) <= {"200", "lost"}, load.outcomes
        seen.fault.add(load.outcomes, load.errors, len(load.strangers), cuts=True)
        for process in (service.web, service.scorer):
            process.terminate()
            assert process.wait(20) == 0


@pytest.mark.parametrize("where", ["full", "closed"])
def test_nobody_to_tell_changes_no_exit_code(where: str) -> None:
    """78 keeps a supervisor from restarting for ever; a message that cannot be written must not make it a 1."""
    with pair(start=False, HANG_S="1") as service:
        assert redirected(service, "scorer", where, ENGINE="bogus").wait(20) == 78
        assert redirected(service, "web", where, MAX_QUEUE="x").wait(20) == 78
        service.script(load_error="as scripted")
        assert redirected(service, "scorer", where).wait(20) == 78
        service.script()
        scorer = redirected(service, "scorer", where)
        web = redirected(service, "web", where)
        service.wait_ready()
        assert redirected(service, "scorer", where).wait(20) == 73
        service.scorer = scorer
        assert unavailable(service.post("/decide", slow(D1, 60)))
        assert scorer.wait(20) == 70, "the stack dump of a hung call has nowhere to go"
        web.terminate()
        assert web.wait(20) == 0


# -- the run directory -----------------------------------------------------------------------------


@pytest.mark.chaos
@pytest.mark.parametrize("what", ["directory", "slots", "socket", "truncated"])
def test_5_times_the_run_directory_is_tampered_with_under_load(what: str, record: Record, tmp_path: Path) -> None:
    """§4, test 17: 503 or refused, never more than MAX_QUEUE; a restart of both tiers mends it."""
    with pair(MAX_QUEUE="4") as service:
        service.logs = {name: tmp_path / f"{name}.log" for name in service.logs}
        for path in service.logs.values():
            path.touch()
        with record(service, f"run directory: {what}", cuts=True) as seen:
            for _ in range(5):
                with spread(service, 1), Load(service, threads=3) as load:
                    seen.hit()
                    if what == "directory":
                        shutil.rmtree(service.dir)
                    elif what == "slots":
                        (service.dir / "slots").unlink()
                    elif what == "socket":
                        (service.dir / "scorer.sock").unlink()
                    else:
                        os.truncate(service.dir / "slots", 0)
                    results = at_once([lambda: service.post("/decide", slow(D1, 0.2))] * 12)
                    counted = Counter(status for status, _ in results)
                    assert counted[200] <= 4
                    assert set(counted) <= {200, 429, 503}, counted
                    seen.restart()
                    for process in (service.web, service.scorer):
                        assert process is not None
                        process.terminate()
                        assert process.wait(20) == 0
                    service.start_scorer()
                    service.start_web()
                    seen.recovered()
                seen.load(load)
                allowed = {"200", "lost", "429 busy", "503 scorer_unavailable"}
                if what == "truncated":
                    # Admitted before; nobody can tell any more whether the request is still wanted.
                    allowed.add("504 deadline_exceeded")
                assert set(load.outcomes) <= allowed, load.outcomes
                wait_slots(service, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_can_neither_connect_nor_read_the_run_directory() -> None:
    """§4, test 35."""
    script = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
for name in ("scorer.sock", "slots", "scorer.lock"):
    path = os.path.join(sys.argv[1], name)
    try:
        if name.endswith("sock"):
            socket.socket(socket.AF_UNIX).connect(path)
        else:
            open(path, "rb")
    except PermissionError:
        continue
    sys.exit(f"{name} can be reached")
"""
    with pair() as service:
        done = subprocess.run(
            [sys.executable, "-c", script, str(service.dir)], capture_output=True, text=True, check=False, timeout=30
        )
        assert done.returncode == 0, done.stderr
        invariants(service)


def test_two_services_on_two_run_directories_do_not_meet() -> None:
    with pair(MAX_QUEUE="2") as one, pair(MAX_QUEUE="2") as other:
        running = [Background(lambda s=s: s.post("/decide", slow(D1, 0.5))) for s in (one, other) for _ in range(2)]
        for service in (one, other):
            wait_running(service)
        assert [job.result()[0] for job in running] == [200] * 4
        kill(one.scorer)
        assert unavailable(one.post("/decide", D1))
        assert other.post("/decide", D1)[0] == 200
        one.start_scorer()
        invariants(one)
        invariants(other)
