"""Processes that are killed, frozen, late, doubled or hung.

architecture.md §4, tests 1 to 13; trouble.md ranks 6, 30, 32, 33, 35.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.settings import PREFIX
from tests.harness import D1, S1, TOKEN, Pair, free_port, pair, short_dir, wait_for
from tests.process.support import (
    GONE,
    NOISE,
    Background,
    HealthWatch,
    Load,
    Wire,
    alive,
    at_once,
    end,
    frozen,
    head,
    health,
    invariants,
    is_own,
    kill,
    own_decision,
    records,
    revive,
    run_scorer,
    run_web,
    slow,
    spread,
    starts,
    timed_post,
    unavailable,
    wait_queued,
    wait_running,
    wait_slots,
    whole,
)

pytestmark = pytest.mark.timeout(90)

QUEUE = 16
#: architecture.md §6: seconds that a request waits for a scorer to connect to.
CONNECT_S = 0.5


@pytest.fixture(scope="module")
def pool() -> Iterator[Pair]:
    with pair(MAX_QUEUE=str(QUEUE)) as running:
        yield running


@pytest.fixture
def service(pool: Pair) -> Iterator[Pair]:
    """Both tiers running, before and after; a test may kill the scorer and must start it again itself."""
    yield pool
    pool.script()
    revive(pool)
    invariants(pool)


def all_admitted(service: Pair) -> None:
    """MAX_QUEUE requests at once, on whichever threads: all answered, each with its own answer."""
    asked = [own_decision() for _ in range(QUEUE)]
    results = at_once([lambda body=body: service.post("/decide", body) for body in asked])
    assert [result[0] if isinstance(result, tuple) else result for result in results] == [200] * QUEUE
    assert all(is_own(body, answer) for body, (_, answer) in zip(asked, results, strict=True))


def test_a_worker_gives_way_to_the_scorer(service: Pair) -> None:
    assert service.web is not None
    own = os.getpriority(os.PRIO_PROCESS, service.web.pid)
    for pid in service.worker_pids():
        # The class is the last that it sets.
        wait_for(lambda pid=pid: os.sched_getscheduler(pid) == os.SCHED_BATCH, NOISE, "its class")
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + 8, 19)
        # Of every thread: those that serve are started later, and take after their worker.
        for thread in Path(f"/proc/{pid}/task").iterdir():
            assert os.sched_getscheduler(int(thread.name)) == os.SCHED_BATCH


# -- kill ------------------------------------------------------------------------------------------


def test_20_times_sigkill_of_a_web_worker_under_load(service: Pair) -> None:
    scorer = service.scorer
    assert scorer is not None
    with Load(service, threads=6) as load, HealthWatch(service, 0.1) as watch:
        for _ in range(20):
            before = service.worker_pids()
            victim = random.choice(before)
            os.kill(victim, signal.SIGKILL)
            wait_for(
                lambda victim=victim: victim not in service.worker_pids() and len(service.worker_pids()) == 2,
                20,
                "a new worker",
            )
            load.answered(3)
    assert not load.strangers
    assert set(load.outcomes) <= {"200", "lost"}, load.outcomes
    assert not any(isinstance(error, ConnectionRefusedError) for error in load.errors)
    assert watch.most_slots <= QUEUE
    assert scorer.poll() is None
    wait_slots(service, 0, 1 * NOISE)
    all_admitted(service)


def test_sigkill_of_a_worker_with_jobs_in_flight_skips_its_queued_jobs_and_spares_the_other_worker(
    service: Pair,
) -> None:
    calls = service.record_calls()
    before = health(service)["counters"].get("expired", 0)
    victim, other = service.worker_pids()
    with spread(service, 4) as wires:
        running = Background(lambda: service.post("/decide", slow(D1, 1.5)))
        wait_running(service)
        asked = {pid: [own_decision() for _ in wires[pid]] for pid in (victim, other)}
        for pid in (victim, other):
            for wire, body in zip(wires[pid], asked[pid], strict=True):
                wire.send(whole(body))
        wait_slots(service, 9)
        wait_queued(service, 8)
        os.kill(victim, signal.SIGKILL)
        for wire in wires[victim]:
            assert wire.at_end()
        for wire, body in zip(wires[other], asked[other], strict=True):
            status, answer = wire.json()
            assert status == 200
            assert is_own(body, answer)
    with contextlib.suppress(GONE):  # it may have been the victim's
        running.result()
    wait_slots(service, 0, 1 * NOISE)
    wait_for(lambda: health(service)["counters"].get("expired", 0) - before >= 4, 10, "the victim's jobs skipped")
    states = [line["state"] for line in starts(calls())]
    assert not any(body["state"] in states for body in asked[victim])
    assert all(body["state"] in states for body in asked[other])
    all_admitted(service)


def test_sigkill_of_all_workers_frees_the_slots_of_queued_requests_within_a_second(service: Pair) -> None:
    wires = [Wire(service).send(whole(slow(D1, 1.5)))]
    wait_running(service)
    wires += [Wire(service).send(whole(own_decision())) for _ in range(5)]
    wait_slots(service, 6)
    for pid in service.worker_pids():
        os.kill(pid, signal.SIGKILL)
    # The running job keeps its own slot: the engine is still at work for it.
    wait_slots(service, 1, 1 * NOISE)
    wait_slots(service, 0, 10)
    for wire in wires:
        wire.close()
    all_admitted(service)


def test_20_times_sigkill_of_the_scorer_under_load(service: Pair) -> None:
    workers = service.worker_pids()
    boots = set()
    with Load(service, threads=6) as load:
        for _ in range(20):
            load.answered(random.choice((1, 3, 7)))
            boots.add(health(service)["boot_id"])
            kill(service.scorer)
            service.start_scorer()
            service.wait_ready()
    assert not load.strangers
    assert set(load.outcomes) <= {"200", "503 scorer_unavailable"}, load.outcomes
    assert len(boots) == 20
    assert service.worker_pids() == workers
    wait_slots(service, 0, 1 * NOISE)
    all_admitted(service)


def test_a_scorer_that_dies_within_a_call_ends_every_waiting_request_with_503_at_once(service: Pair) -> None:
    workers = service.worker_pids()
    boot = health(service)["boot_id"]
    victim = service.scorer
    assert victim is not None
    running = Background(lambda: service.post("/decide", slow(D1, 0.7, exit=9)))
    wait_running(service)
    waiting = [Background(lambda: service.post("/v1/systemone", S1)) for _ in range(5)]
    wait_slots(service, 6)
    victim.wait(10)
    died = time.monotonic()
    assert all(unavailable(job.result()) for job in [running, *waiting])
    assert time.monotonic() - died < 0.5 * NOISE
    assert victim.returncode == -signal.SIGKILL
    # While it is down: quick 503s on everything, never a 429, and no slot stays taken.
    for status, body, seconds in at_once([lambda: timed_post(service, "/decide", D1)] * QUEUE):
        assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
        assert seconds < CONNECT_S * NOISE
    status, headers, body = service.request("GET", "/health")
    assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
    assert "retry-after" in headers
    assert service.worker_pids() == workers
    service.start_scorer()
    service.wait_ready()
    assert health(service)["boot_id"] != boot
    all_admitted(service)
    assert service.worker_pids() == workers


def test_a_scorer_killed_between_taking_a_job_and_answering_it_mixes_up_nothing(service: Pair) -> None:
    for _ in range(8):
        victims = [own_decision(exit=9)] + [own_decision() for _ in range(4)]
        results = at_once([lambda body=body: service.post("/decide", body) for body in victims])
        for asked, result in zip(victims, results, strict=True):
            assert unavailable(result) or (result[0] == 200 and is_own(asked, result[1])), result
        assert service.scorer is not None
        service.scorer.wait(10)
        service.start_scorer()
        service.wait_ready()
        body = own_decision()
        status, answer = service.post("/decide", body)
        assert status == 200
        assert is_own(body, answer)


# -- freeze ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient_pool() -> Iterator[Pair]:
    with pair(MAX_QUEUE=str(QUEUE), REQUEST_BUDGET_S="2") as running:
        yield running


@pytest.fixture
def impatient(impatient_pool: Pair) -> Iterator[Pair]:
    yield impatient_pool
    invariants(impatient_pool)


def test_a_frozen_scorer_lets_jobs_in_flight_end_at_their_budget_and_never_runs_or_answers_them_late(
    impatient: Pair,
) -> None:
    service = impatient
    calls = service.record_calls()
    service.post("/decide", D1)
    workers = service.worker_pids()
    running = Background(lambda: timed_post(service, "/decide", slow(D1, 1.5)))
    wait_running(service)
    stale = [own_decision() for _ in range(3)]
    queued = [Background(lambda body=body: timed_post(service, "/decide", body)) for body in stale]
    wait_queued(service, 3)
    with frozen(service.scorer):
        for status, body, seconds in [job.result() for job in [running, *queued]]:
            assert (status, body["error"]["code"]) == (504, "deadline_exceeded")
            assert seconds < 2 * NOISE
    fresh = [own_decision() for _ in range(8)]
    results = at_once([lambda body=body: service.post("/decide", body) for body in fresh])
    assert all(status == 200 and is_own(body, answer) for body, (status, answer) in zip(fresh, results, strict=True))
    states = [line["state"] for line in starts(calls())]
    assert not any(body["state"] in states for body in stale)
    assert service.worker_pids() == workers


def test_a_frozen_scorer_is_503_for_new_requests_soon_and_not_only_at_their_budget() -> None:
    """Also on workers that have spoken with it before (architecture.md §4, test 6)."""
    with pair(MAX_QUEUE=str(QUEUE), REQUEST_BUDGET_S="30") as service:
        at_once([lambda: service.post("/decide", D1)] * 8)
        with frozen(service.scorer):
            for status, body, seconds in at_once([lambda: timed_post(service, "/decide", D1)] * 8):
                assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
                assert seconds < 15, "well before the budget"
            # It is known by now.
            for status, body, seconds in at_once([lambda: timed_post(service, "/decide", D1)] * 8):
                assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
                assert seconds < CONNECT_S * NOISE
            assert service.request("GET", "/health")[0] == 503
        invariants(service)


def test_a_frozen_scorer_is_a_503_on_health(impatient: Pair) -> None:
    service = impatient
    at_once([lambda: service.request("GET", "/health")] * 8)
    with frozen(service.scorer):
        for _ in range(3):
            started = time.monotonic()
            status, _, body = service.request("GET", "/health")
            assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
            assert time.monotonic() - started < 1.0 * NOISE


# -- start and restart -----------------------------------------------------------------------------


def test_a_killed_arbiter_takes_its_workers_with_it_and_leaves_the_scorer(service: Pair) -> None:
    """trouble.md rank 30: within 10 s, and a restart right after works and re-uses the scorer."""
    scorer, web = service.scorer, service.web
    assert scorer is not None
    assert web is not None
    boot, workers = health(service)["boot_id"], service.worker_pids()
    # Some requests in flight, on connections that their clients keep open, as a proxy does.
    wires = [Wire(service).send(whole(slow(D1, 0.5)))]
    wait_running(service)
    wires += [Wire(service).send(whole(own_decision())) for _ in range(3)]
    wait_slots(service, 4)
    kill(web)
    try:
        wait_for(lambda: not any(map(alive, workers)), 10, "the workers gone")
    finally:
        end(workers)
        for wire in wires:
            wire.close()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", service.port))
    assert scorer.poll() is None
    service.start_web()
    service.wait_ready()
    assert health(service)["boot_id"] == boot
    assert health(service)["slots_in_use"] <= 1
    wait_slots(service, 0)
    all_admitted(service)


def test_the_web_tier_may_start_first() -> None:
    with pair(start=False, MAX_QUEUE=str(QUEUE)) as service:
        service.start_web()
        wait_for(lambda: service.request("GET", "/health")[0] == 503, 15, "a 503")
        for status, body, seconds in at_once([lambda: timed_post(service, "/decide", D1)] * QUEUE):
            assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
            assert seconds < CONNECT_S * NOISE
        workers = service.worker_pids()
        service.script(load_sleep_s=1.5)
        service.start_scorer()
        wait_for(lambda: "loading" in str(service.request("GET", "/health")[2]), 10, "loading told")
        status, body = service.post("/decide", D1)
        assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
        service.wait_ready()
        all_admitted(service)
        assert service.worker_pids() == workers
        invariants(service)


def test_the_scorer_may_start_first() -> None:
    with pair(start=False, MAX_QUEUE=str(QUEUE)) as service:
        service.start_scorer()
        wait_for(lambda: '"ready"' in service.log("scorer"), 15, "a ready scorer")
        service.start_web()
        service.wait_ready()
        all_admitted(service)
        invariants(service)


def test_three_rounds_without_a_scorer_and_with_it_again(service: Pair) -> None:
    """trouble.md rank 32: 200 on the first try, on whichever worker thread, without a restart of the web tier."""
    for _ in range(3):
        kill(service.scorer)
        assert unavailable(service.post("/decide", D1))
        service.start_scorer()
        service.wait_ready()
        all_admitted(service)


def test_a_scorer_restarted_since_a_worker_last_asked_is_asked_anew_by_every_worker(service: Pair) -> None:
    for _ in range(3):
        all_admitted(service)
        before = health(service)["boot_id"]
        kill(service.scorer)
        service.start_scorer()
        # /health asks the scorer each time; what a worker knows for its POSTs is still the earlier start.
        service.wait_ready()
        seen = len(records(service, "web"))
        all_admitted(service)
        after = health(service)["boot_id"]
        assert after != before

        def served(seen: int = seen) -> list[Any]:
            return [record["boot_id"] for record in records(service, "web")[seen:] if record.get("route") == "/decide"]

        # A line is written after its answer.
        wait_for(lambda served=served: len(served()) == QUEUE, 5, "every access line")
        assert set(served()) == {after}


def test_a_scorer_restarted_while_a_body_is_on_its_way_serves_it(service: Pair) -> None:
    body = own_decision()
    data = whole(body)
    with Wire(service) as wire:
        wire.send(data[:-10])
        wait_slots(service, 1)
        kill(service.scorer)
        service.start_scorer()
        service.wait_ready()
        status, answer = wire.send(data[-10:]).json()
    assert status == 200
    assert is_own(body, answer)


def test_a_second_scorer_on_the_run_directory_leaves_with_73_before_it_loads(service: Pair) -> None:
    service.script(load_sleep_s=60)
    first, boot = service.scorer, health(service)["boot_id"]
    with Load(service, threads=2) as load:
        for _ in range(2):
            second = run_scorer(service.env, 15)
            assert second.returncode == 73
            assert str(service.dir) in second.stderr
            assert "Traceback" not in second.stderr
            load.answered(5)
    assert set(load.outcomes) == {"200"}
    assert first is not None
    assert first.poll() is None
    assert health(service)["boot_id"] == boot


def test_sigterm_while_loading_stops_the_scorer() -> None:
    with pair(start=False) as service:
        service.script(load_sleep_s=60)
        scorer = service.start_scorer()
        wait_for(lambda: (service.dir / "scorer.sock").exists(), 10, "a socket")
        scorer.terminate()
        assert scorer.wait(10) == 0
        assert not (service.dir / "scorer.sock").exists()
        service.script()
        service.start_scorer()
        service.start_web()
        service.wait_ready()
        invariants(service)


# -- refusals to start -----------------------------------------------------------------------------

LONG = "/tmp/" + "r" * 150


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENGINE", "bogus"),
        ("MAX_TOKENS", "0"),
        ("MAX_TOKENS", "1.5"),
        ("MAX_TOKENS", "1_000"),
        ("HANG_S", "nan"),
        ("DRAIN_S", "-1"),
        ("DRAIN_S", "inf"),
        ("VRAM_CAP_GIB", "16GB"),
        ("VRAM_CAP_GIB", "0"),
        ("RELEASE_SLACK_MIB", "-1"),
        ("KEEP_VISION", "yes"),
        ("DEVICE", "tpu"),
        ("LOG_FORMAT", "xml"),
        ("RUN_DIR", ""),
        ("RUN_DIR", LONG),
        ("RUN_DIR", "/proc/none"),
    ],
)
def test_a_bad_setting_stops_the_scorer_with_78_and_names_the_variable(service: Pair, name: str, value: str) -> None:
    result = run_scorer({**service.env, f"{PREFIX}RUN_DIR": str(short_dir()), f"{PREFIX}{name}": value})
    assert result.returncode == 78
    assert f"{PREFIX}{name}" in result.stderr
    assert "Traceback" not in result.stderr
    if value == LONG:
        assert "107" in result.stderr
        Path(LONG).rmdir()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_QUEUE", "0"),
        ("MAX_QUEUE", "x"),
        ("THREADS", "3"),
        ("WORKERS", "0"),
        ("API_TOKEN", "short"),
        ("API_TOKEN", "sp ace" * 8),
        ("API_TOKEN_FILE", "/nonexistent"),
        ("MAX_BODY_BYTES", "1e6"),
        ("REQUEST_BUDGET_S", "nan"),
        ("BODY_DEADLINE_S", "0"),
        ("MAX_DECISIONS", "-1"),
        ("SYSTEMONE_PROFILE", "both"),
        ("STRICT_MODEL", "true"),
        ("LOG_LEVEL", "loud"),
        ("BIND", ""),
        ("RUN_DIR", LONG),
    ],
)
def test_a_bad_setting_stops_the_web_tier_and_names_the_variable(service: Pair, name: str, value: str) -> None:
    result = run_web({**service.env, f"{PREFIX}BIND": f"127.0.0.1:{free_port()}", f"{PREFIX}{name}": value})
    assert result.returncode == 78
    assert f"{PREFIX}{name}" in result.stderr
    assert "Traceback" not in result.stderr
    assert TOKEN not in result.stderr
    if name == "API_TOKEN":
        assert value not in result.stderr
    if value == LONG:
        Path(LONG).rmdir()


def test_a_web_tier_without_any_token_does_not_start(service: Pair) -> None:
    env = {name: value for name, value in service.env.items() if name != f"{PREFIX}API_TOKEN"}
    result = run_web({**env, f"{PREFIX}BIND": f"127.0.0.1:{free_port()}"})
    assert result.returncode == 78
    assert f"{PREFIX}API_TOKEN" in result.stderr


@pytest.mark.parametrize("tier", [run_scorer, run_web])
def test_a_run_directory_that_others_may_enter_is_refused(service: Pair, tier: Any) -> None:
    open_dir = short_dir()
    open_dir.chmod(0o755)
    result = tier({**service.env, f"{PREFIX}RUN_DIR": str(open_dir), f"{PREFIX}BIND": f"127.0.0.1:{free_port()}"})
    assert result.returncode == 78
    assert f"{PREFIX}RUN_DIR" in result.stderr
    assert str(open_dir) in result.stderr


def test_an_engine_that_refuses_to_start_is_78_with_its_reason_and_the_web_tier_stays_at_503() -> None:
    with pair(start=False) as service:
        service.script(load_error="INTERN_DECISION_CHECKPOINT: sha256 aaaa is not bbbb")
        scorer = service.start_scorer()
        service.start_web()
        assert scorer.wait(15) == 78
        assert "INTERN_DECISION_CHECKPOINT: sha256 aaaa is not bbbb" in service.log("scorer")
        wait_for(lambda: service.request("GET", "/health")[0] == 503, 15, "a 503")
        assert unavailable(service.post("/decide", D1))
        service.script()
        service.start_scorer()
        service.wait_ready()
        invariants(service)


def test_a_load_that_breaks_is_70() -> None:
    with pair(start=False) as service:
        service.script(load_sleep_s="not a number")
        scorer = service.start_scorer()
        assert scorer.wait(15) == 70
        assert not (service.dir / "scorer.sock").exists()


# -- broken at run time ----------------------------------------------------------------------------


def replaced(service: Pair, code: int = 70) -> None:
    """The scorer leaves with this code, its successor serves."""
    assert service.scorer is not None
    assert service.scorer.wait(10) == code
    service.script()
    service.start_scorer()
    service.wait_ready()
    all_admitted(service)


def test_an_unknown_failure_keeps_the_process_when_the_canary_answers_as_at_start(service: Pair) -> None:
    boot = health(service)["boot_id"]
    for _ in range(3):
        status, body = service.post("/decide", {**D1, "state": {"fake": {"error": ["runtime", "odd"]}}})
        assert (status, body["error"]["code"]) == (500, "scoring_failed")
    all_admitted(service)
    assert health(service)["boot_id"] == boot


def test_a_canary_that_answers_otherwise_replies_first_and_exits_70(service: Pair) -> None:
    service.script(canary="something else")
    status, body = service.post("/decide", {**D1, "state": {"fake": {"error": ["runtime", "odd"]}}})
    assert (status, body["error"]["code"]) == (500, "scoring_failed")
    replaced(service)


@pytest.mark.parametrize(
    "error",
    [
        ["fatal", "poisoned"],
        ["runtime", "CUDA error: an illegal memory access was encountered"],
        ["runtime", "CUDA error: device-side assert triggered"],
    ],
)
def test_a_fatal_error_replies_first_and_exits_70_with_every_waiting_caller_told(
    service: Pair, error: list[str]
) -> None:
    running = Background(lambda: service.post("/decide", slow(D1, 0.5, error=error)))
    wait_running(service)
    waiting = [Background(lambda: service.post("/decide", D1)) for _ in range(4)]
    wait_slots(service, 5)
    status, body = running.result()
    assert (status, body["error"]["code"]) == (500, "scoring_failed")
    assert all(unavailable(job.result(10)) for job in waiting)
    replaced(service)


def test_out_of_memory_keeps_the_process(service: Pair) -> None:
    boot = health(service)["boot_id"]
    for error in (["oom", "no room"], ["runtime", "CUDA out of memory. Tried to allocate 20 GiB"]):
        status, headers, body = service.request("POST", "/decide", {**D1, "state": {"fake": {"error": error}}})
        assert (status, body["error"]["code"]) == (503, "out_of_memory")
        assert "retry-after" in headers
    all_admitted(service)
    assert health(service)["boot_id"] == boot


def test_a_hung_job_dumps_all_stacks_and_exits_70_after_hang_s() -> None:
    with pair(HANG_S="2") as service:
        began = time.monotonic()
        running = Background(lambda: service.post("/decide", slow(D1, 60)))
        wait_running(service)
        queued = Background(lambda: service.post("/decide", D1))
        first = health(service)["busy_seconds"]
        wait_for(lambda: health(service)["busy_seconds"] > first, 5, "growing busy_seconds")
        assert service.scorer is not None
        assert service.scorer.wait(2 * NOISE) == 70
        assert time.monotonic() - began >= 2
        assert unavailable(running.result(0.5 * NOISE))
        assert unavailable(queued.result(0.5 * NOISE))
        log = service.log("scorer")
        assert "most recent call first" in log
        assert "fake.py" in log  # where the inference thread hung
        assert "broker.py" in log
        service.start_scorer()
        service.wait_ready()
        invariants(service)


def test_a_long_legal_job_below_hang_s_is_left_alone() -> None:
    with pair(HANG_S="2", MAX_QUEUE="4") as service:
        with HealthWatch(service) as watch:
            status, _ = service.post("/decide", slow(D1, 1.0))
        assert status == 200
        assert not watch.bad
        # Several that together are longer than HANG_S.
        assert [r[0] for r in at_once([lambda: service.post("/decide", slow(D1, 0.7))] * 4)] == [200] * 4
        assert service.scorer is not None
        assert service.scorer.poll() is None
        invariants(service)


# -- preloading ------------------------------------------------------------------------------------


def test_a_preloaded_web_tier_serves_50_requests_on_two_workers() -> None:
    """trouble.md rank 35: nothing that must not be shared is made before the fork."""
    with pair(start=False, MAX_QUEUE=str(QUEUE)) as service:
        service.start_scorer()
        service.web = service._spawn(
            "web", [sys.executable, "-m", "gunicorn", "-c", "conf/gunicorn.conf.py", "--preload", "web.wsgi:app"]
        )
        service.wait_ready()
        wait_for(lambda: len(service.worker_pids()) == 2, what="two workers")
        for _ in range(4):
            all_admitted(service)
        invariants(service)


def test_a_request_head_without_its_body_survives_a_killed_neighbour(service: Pair) -> None:
    """A slot of a worker that lives is not freed by another worker's death."""
    wires = [Wire(service).send(head("/decide", 1000)) for _ in range(8)]
    wait_slots(service, 8)
    os.kill(service.worker_pids()[0], signal.SIGKILL)
    wait_for(lambda: len(service.worker_pids()) == 2 and health(service), 10, "two workers")
    lost = 0
    for wire in wires:
        wire.socket.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            lost += wire.at_end()
    wait_slots(service, 8 - lost, 1 * NOISE)
    for wire in wires:
        wire.close()
    wait_slots(service, 0, 1 * NOISE)
