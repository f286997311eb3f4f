"""Polite stops and reloads under load (architecture.md §4, tests 14 to 16; trouble.md rank 29)."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import D1, Pair, free_port, pair, wait_for
from tests.process.support import (
    GONE,
    NOISE,
    Background,
    Load,
    alive,
    at_once,
    end,
    health,
    invariants,
    is_own,
    own_decision,
    slow,
    spawn_web,
    starts,
    timed_post,
    wait_running,
    wait_slots,
    wrapped_config,
)

pytestmark = pytest.mark.timeout(90)

QUEUE = 16


@pytest.fixture(scope="module")
def pool() -> Iterator[Pair]:
    with pair(MAX_QUEUE=str(QUEUE)) as running:
        yield running


@pytest.fixture
def service(pool: Pair) -> Iterator[Pair]:
    yield pool
    pool.script()
    if pool.scorer is None or pool.scorer.poll() is not None:
        pool.start_scorer()
    if pool.web is None or pool.web.poll() is not None:
        pool.start_web()
    invariants(pool)


def in_flight(service: Pair, count: int, seconds: float) -> tuple[list[dict[str, Any]], list[Background]]:
    """``count`` requests: the first one runs ``seconds``, the others wait behind it."""
    asked = [own_decision(sleep_s=seconds)] + [own_decision() for _ in range(count - 1)]
    jobs = [Background(lambda: timed_post(service, "/decide", asked[0]))]
    wait_running(service)
    jobs += [Background(lambda body=body: timed_post(service, "/decide", body)) for body in asked[1:]]
    wait_for(lambda: health(service)["queue_length"] == count - 1, 10, "the others in the scorer's queue")
    return asked, jobs


def check_served(asked: list[dict[str, Any]], jobs: list[Background]) -> None:
    for body, job in zip(asked, jobs, strict=True):
        status, answer, _ = job.result()
        assert status == 200, answer
        assert is_own(body, answer)


# -- the scorer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_scorer_finishes_what_is_queued_refuses_what_comes_and_leaves_with_0(
    service: Pair, number: int
) -> None:
    workers, scorer = service.worker_pids(), service.scorer
    assert scorer is not None
    asked, jobs = in_flight(service, 6, 1.0)
    scorer.send_signal(number)
    wait_for(lambda: service.request("GET", "/health")[0] == 503, 5, "draining")
    status, headers, body = service.request("POST", "/decide", D1)
    assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
    assert "retry-after" in headers
    check_served(asked, jobs)
    assert scorer.wait(10) == 0
    assert not (service.dir / "scorer.sock").exists()
    # The web tier goes on answering.
    status, body = service.post("/decide", D1)
    assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
    service.start_scorer()
    service.wait_ready()
    assert service.worker_pids() == workers


def test_a_scorer_stopped_under_load_leaves_with_0_and_nobody_gets_anything_but_200_or_503(service: Pair) -> None:
    for _ in range(3):
        scorer = service.scorer
        assert scorer is not None
        with Load(service, threads=6) as load:
            load.answered(5)
            scorer.terminate()
            assert scorer.wait(10) == 0
            assert not (service.dir / "scorer.sock").exists()
            service.start_scorer()
            service.wait_ready()
            load.answered(5)
        assert not load.strangers
        assert set(load.outcomes) <= {"200", "503 scorer_unavailable"}, load.outcomes
    wait_slots(service, 0, 1 * NOISE)


def test_drain_s_ends_a_drain_that_takes_too_long_and_every_caller_is_told() -> None:
    with pair(DRAIN_S="1", MAX_QUEUE="8") as service:
        calls = service.record_calls()
        asked, jobs = in_flight(service, 4, 30)
        assert service.scorer is not None
        began = time.monotonic()
        service.scorer.terminate()
        assert service.scorer.wait(1 * NOISE + 3) == 0
        assert time.monotonic() - began >= 1
        for job in jobs:
            status, body, _ = job.result(1 * NOISE)
            assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
        assert not (service.dir / "scorer.sock").exists()
        assert len(starts(calls())) == 1
        service.start_scorer()
        service.wait_ready()
        states = [line["state"] for line in starts(calls())]
        assert not any(body["state"] in states for body in asked[1:])
        invariants(service)


def test_an_idle_scorer_leaves_at_once(service: Pair) -> None:
    assert service.scorer is not None
    began = time.monotonic()
    service.scorer.terminate()
    assert service.scorer.wait(10) == 0
    assert time.monotonic() - began < 1 * NOISE


# -- the web tier ----------------------------------------------------------------------------------


def test_a_stopped_web_tier_answers_what_is_in_flight_and_leaves_with_0(service: Pair) -> None:
    web, workers = service.web, service.worker_pids()
    assert web is not None
    asked, jobs = in_flight(service, 8, 1.0)
    web.terminate()
    check_served(asked, jobs)
    assert web.wait(15) == 0
    assert not any(map(alive, workers))
    with pytest.raises(OSError, match="refused"):
        service.request("GET", "/health")
    assert service.scorer is not None
    assert service.scorer.poll() is None
    service.start_web()
    service.wait_ready()


def test_a_web_tier_stopped_under_load_truncates_no_answer(service: Pair) -> None:
    web = service.web
    assert web is not None
    with Load(service, threads=6, sleep_s=0.02) as load:
        load.answered(10)
        web.terminate()
        assert web.wait(15) == 0
    assert not load.strangers
    # A connection that no worker had taken up is refused or reset; none may be cut within an answer.
    assert set(load.outcomes) <= {"200", "lost"}, load.outcomes
    assert not any("IncompleteRead" in repr(error) for error in load.errors), load.errors
    service.start_web()
    service.wait_ready()


def test_a_web_tier_stopped_after_its_scorer_was_killed_answers_503_and_leaves_with_0(service: Pair) -> None:
    web, scorer = service.web, service.scorer
    assert web is not None
    assert scorer is not None
    _, jobs = in_flight(service, 4, 20)
    scorer.kill()
    scorer.wait(10)
    web.terminate()
    for job in jobs:
        status, body, _ = job.result(5)
        assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
    assert web.wait(15) == 0


# -- reload ----------------------------------------------------------------------------------------


def hup(service: Pair) -> None:
    """Reload and wait until every worker is a new one."""
    before = set(service.worker_pids())
    assert service.web is not None
    service.web.send_signal(signal.SIGHUP)
    wait_for(
        lambda: len(service.worker_pids()) == 2 and not before & set(service.worker_pids()), 30, "new workers only"
    )


def test_a_reload_with_the_same_limit_loses_no_request(service: Pair) -> None:
    with Load(service, threads=6) as load:
        for _ in range(3):
            hup(service)
            load.answered(10)
    assert not load.strangers
    assert set(load.outcomes) == {"200"}, (load.outcomes, load.errors[:3])


def test_a_reload_keeps_the_limit_over_old_and_new_workers(service: Pair) -> None:
    """Old workers that still finish requests and new ones that take some count together."""
    assert service.web is not None
    asked, jobs = in_flight(service, 10, 3.0)
    old = set(service.worker_pids())
    service.web.send_signal(signal.SIGHUP)
    wait_for(
        lambda: len(set(service.worker_pids()) - old) == 2 and health(service)["slots_in_use"] == 10, 20, "new workers"
    )
    results = at_once([lambda: timed_post(service, "/decide", D1)] * QUEUE)
    assert Counter(status for status, *_ in results) == {200: QUEUE - 10, 429: 10}
    check_served(asked, jobs)
    wait_for(lambda: len(service.worker_pids()) == 2, 20, "the old workers gone")


@pytest.mark.parametrize(("before", "after"), [(8, 4), (4, 8)])
def test_a_reload_with_another_limit_keeps_the_old_one_or_is_refused(before: int, after: int) -> None:
    """While requests are in progress under the old limit: never the two of them at once (§4, test 16)."""
    with pair(start=False) as service:
        service.start_scorer()
        size = service.dir / "size"
        size.write_text(str(before))
        config = wrapped_config(service, f"os.environ['INTERN_DECISION_MAX_QUEUE'] = open({str(size)!r}).read()")
        web = spawn_web(service, config)
        service.wait_ready()
        asked, jobs = in_flight(service, before, 3.0)
        old = service.worker_pids()
        size.write_text(str(after))
        web.send_signal(signal.SIGHUP)
        wait_for(lambda: "MAX_QUEUE" in service.log("web"), 20, "the refusal told")
        statuses: Counter[Any] = Counter()
        for _ in range(10):
            try:
                statuses[timed_post(service, "/decide", D1)[0]] += 1
            except GONE:
                statuses["refused"] += 1
        assert set(statuses) <= {429, "refused"}, statuses
        check_served(asked, jobs)
        try:
            web.wait(20)
            wait_for(lambda: not any(map(alive, old)), 20, "the old workers gone")
        finally:
            end(old)
        # Its supervisor starts it again, now with the new limit.
        spawn_web(service, config)
        service.wait_ready()
        assert health(service)["max_queue"] == after
        invariants(service, clean_logs=False)  # gunicorn prints a traceback of its own when new workers refuse to boot


def test_a_second_web_tier_with_another_limit_is_refused_while_the_first_has_requests(service: Pair) -> None:
    asked, jobs = in_flight(service, 3, 2.0)
    other = Pair.__new__(Pair)
    other.__dict__.update(service.__dict__)
    other.env = {**service.env, "INTERN_DECISION_MAX_QUEUE": "4", "INTERN_DECISION_BIND": f"127.0.0.1:{free_port()}"}
    other.logs = {"web": service.dir / "other.log"}
    second = other.start_web()
    try:
        assert second.wait(15) != 0
    finally:
        if second.poll() is None:
            os.kill(second.pid, signal.SIGTERM)
            second.wait(10)
    assert "MAX_QUEUE" in other.log("web")
    check_served(asked, jobs)
    assert health(service)["max_queue"] == QUEUE


def test_a_long_request_survives_a_reload(service: Pair) -> None:
    job = Background(lambda: service.post("/decide", slow(D1, 2.0)))
    wait_running(service)
    hup(service)
    assert job.result()[0] == 200
