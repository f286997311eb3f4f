"""What the real processes tell a service manager, here a datagram socket of the test's: systemd's readiness and
watchdog (architecture.md §1.5, §1.7, §1.14; trouble.md rank 6; failure tests 6, 7, 12)."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import D1, ROOT, Pair, wait_for
from tests.process.support import NOISE, Background, frozen, kill, slow, wait_running

pytestmark = pytest.mark.timeout(90)

SCORER = (sys.executable, "-m", "scorer", "serve")
PATIENCE_S = 0.9  # so the scorer pings three times a second, but not more often than its loop turns


def unavailable(answer: Any) -> bool:
    return answer[0] == 503 and answer[1]["error"]["code"] == "scorer_unavailable"


class Managed(Pair):
    """A pair whose processes have a service manager with a watchdog, and every notice of theirs with its time."""

    def __init__(self, **settings: str) -> None:
        super().__init__(start=False, **settings)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.dir / "notify"))
        self.socket.setblocking(False)
        self.env |= {"NOTIFY_SOCKET": str(self.dir / "notify"), "WATCHDOG_USEC": str(int(PATIENCE_S * 1e6))}
        self.told: list[tuple[float, list[str]]] = []

    def notices(self) -> list[list[str]]:
        """All notices so far, oldest first."""
        try:
            while True:
                self.told.append((time.monotonic(), self.socket.recv(4096).decode().split("\n")))
        except BlockingIOError:
            return [lines for _, lines in self.told]

    def seen(self, line: str) -> int:
        return sum(line in lines for lines in self.notices())

    def forget(self) -> None:
        self.notices()
        self.told.clear()

    def close(self) -> None:
        super().close()
        self.socket.close()


@pytest.fixture
def start() -> Iterator[Any]:
    made: list[Managed] = []

    def make(**settings: str) -> Managed:
        made.append(Managed(**settings))
        return made[-1]

    yield make
    for service in made:
        service.close()


def test_the_scorer_is_ready_only_after_its_load_and_puts_the_start_timeout_off_meanwhile(start: Any) -> None:
    service = start()
    service.script(load_sleep_s=1.5)
    service.start_scorer()
    wait_for(lambda: service.seen("READY=1"), NOISE, "READY=1")
    before = [lines for lines in service.notices() if "READY=1" not in lines]
    assert len(before) >= 2, "one at the start of the load, and again while it went on"
    assert all("EXTEND_TIMEOUT_USEC=60000000" in lines and "WATCHDOG=1" not in lines for lines in before)
    assert any(line.startswith("STATUS=loading") for line in before[0])
    assert "WATCHDOG=1" in service.notices()[-1]
    assert "HANG_S" not in service.log("scorer"), "the defaults are not warned about"


def test_a_scorer_pings_while_it_is_idle_and_while_a_long_job_runs(start: Any) -> None:
    service = start()
    service.start_scorer()
    service.start_web()
    service.wait_ready()
    job = Background(lambda: service.post("/decide", slow(D1, 3.0)))
    wait_running(service)
    service.forget()
    wait_for(lambda: service.seen("WATCHDOG=1") >= 3, NOISE, "three pings")
    assert not job.done(), "they came while the job ran"
    assert job.result()[0] == 200
    service.forget()
    wait_for(lambda: service.seen("WATCHDOG=1") >= 2, NOISE, "pings of an idle scorer")
    assert service.seen("READY=1") == 0


def test_a_frozen_scorer_sends_nothing_and_goes_on_when_it_is_woken(start: Any) -> None:
    service = start()
    service.start_scorer()
    wait_for(lambda: service.seen("READY=1"), NOISE, "READY=1")
    with frozen(service.scorer):
        service.forget()
        time.sleep(3 * PATIENCE_S)
        assert service.notices() == [], "systemd's WatchdogSec= ends it now"
    wait_for(lambda: service.seen("WATCHDOG=1"), NOISE, "pings again")


def test_the_watchdogs_signal_ends_a_frozen_scorer_with_every_stack_in_the_log(start: Any) -> None:
    """systemd sends SIGABRT and then SIGCONT (kill_and_sigcont); what replaces the process is Restart=on-failure."""
    service = start()
    service.start_scorer()
    wait_for(lambda: service.seen("READY=1"), NOISE, "READY=1")
    assert service.scorer is not None
    service.scorer.send_signal(signal.SIGSTOP)
    service.scorer.send_signal(signal.SIGABRT)
    service.scorer.send_signal(signal.SIGCONT)
    assert service.scorer.wait(NOISE) == -signal.SIGABRT
    log = service.log("scorer")
    assert "Fatal Python error: Aborted" in log
    assert "broker.py" in log
    assert "worker.py" in log
    service.start_scorer()
    service.forget()
    wait_for(lambda: service.seen("READY=1"), NOISE, "the next one, on what the first left behind")


def test_a_hung_job_ends_the_process_with_70_and_no_ping_comes_after_hang_s(start: Any) -> None:
    service = start(HANG_S="2")
    service.start_scorer()
    service.start_web()
    service.wait_ready()
    job = Background(lambda: service.post("/decide", slow(D1, 60)))
    wait_running(service)
    assert service.scorer is not None
    assert service.scorer.wait(2 * NOISE) == 70
    assert unavailable(job.result())
    service.forget()
    time.sleep(2 * PATIENCE_S)
    assert service.notices() == []
    assert "HANG_S is not above REQUEST_BUDGET_S" in service.log("scorer"), "2 s are warned about"


def test_a_scorer_whose_log_cannot_be_written_is_not_alive_to_the_watchdog(start: Any) -> None:
    """A hung job is found, but the stack dump blocks on a full pipe that nobody reads: only the watchdog is left."""
    service = start(HANG_S="1", LOG_LEVEL="ERROR")
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    try:
        while True:
            writer.send(b"x" * 4096)
    except BlockingIOError:
        writer.setblocking(True)
    service.scorer = subprocess.Popen(
        [*SCORER], cwd=ROOT, env=service.env, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer
    )
    writer.close()
    service.start_web()
    service.wait_ready()
    job = Background(lambda: service.post("/decide", slow(D1, 60), timeout=120))
    wait_running(service)
    time.sleep(2.0)
    service.forget()
    time.sleep(2 * PATIENCE_S)
    assert service.notices() == []
    assert service.scorer.poll() is None, "it cannot end itself"
    kill(service.scorer)
    assert unavailable(job.result())
    reader.close()


def test_a_load_that_hangs_ends_with_70_and_leaves_no_process(start: Any) -> None:
    """Failure test 12. LOAD_S bounds the load, since every notice puts systemd's own timeout off."""
    service = start(LOAD_S="1")
    service.script(load_sleep_s=60)
    scorer = service.start_scorer()
    assert scorer.wait(2 * NOISE) == 70
    log = service.log("scorer")
    assert "the load has run too long" in log
    assert "fake.py" in log, "the stack dump names where"
    assert service.seen("READY=1") == 0
    service.script()
    service.start_scorer()
    wait_for(lambda: service.seen("READY=1"), NOISE, "the next start")


def test_a_drain_is_announced_and_goes_on_pinging(start: Any) -> None:
    service = start()
    service.start_scorer()
    service.start_web()
    service.wait_ready()
    job = Background(lambda: service.post("/decide", slow(D1, 2.5)))
    wait_running(service)
    service.forget()
    assert service.scorer is not None
    service.scorer.send_signal(signal.SIGTERM)
    wait_for(lambda: service.seen("STOPPING=1"), NOISE, "STOPPING=1")
    assert job.result()[0] == 200
    assert service.scorer.wait(NOISE) == 0
    assert service.seen("STOPPING=1") == 1
    assert sum("STOPPING=1" not in lines and "WATCHDOG=1" in lines for lines in service.notices()) >= 1


def test_a_refused_start_says_neither_ready_nor_alive(start: Any) -> None:
    service = start()
    service.script(load_error="the hash is another one")
    assert service.start_scorer().wait(2 * NOISE) == 78
    assert service.seen("READY=1") == service.seen("WATCHDOG=1") == 0


def test_gunicorn_says_ready_itself_with_the_projects_configuration_and_sends_no_pings(start: Any) -> None:
    """So the web tier's unit is Type=notify and has no WatchdogSec=; gunicorn's master watches its workers."""
    service = start()
    service.start_scorer()
    wait_for(lambda: service.seen("READY=1"), NOISE, "the scorer's READY=1")
    kill(service.scorer)
    service.forget()
    service.start_web()
    wait_for(lambda: service.seen("READY=1"), NOISE, "gunicorn's READY=1")
    time.sleep(2 * PATIENCE_S)
    assert service.seen("READY=1") == 1
    assert service.seen("WATCHDOG=1") == 0


def test_a_web_tier_with_a_refused_setting_never_says_ready(start: Any) -> None:
    service = start(MAX_QUEUE="0")
    assert service.start_web().wait(2 * NOISE) == 78
    assert service.notices() == []
