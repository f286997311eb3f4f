"""One thread, one request at a time, in order; and every answer to its own caller (INV-2; trouble.md ranks 2 and 4)."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import BEARER, D1, S1, Pair, pair, wait_for
from tests.process.support import (
    NOISE,
    Background,
    HealthWatch,
    at_once,
    health,
    invariants,
    is_own,
    own_decision,
    slow,
    starts,
    wait_running,
)

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pair]:
    with pair(MAX_QUEUE="16") as running:
        yield running


@pytest.fixture
def service(pool: Pair) -> Iterator[Pair]:
    yield pool
    pool.script()
    invariants(pool)


_marks = itertools.count()


def marked(kind: str, sleep_s: float) -> tuple[str, dict[str, Any], str]:
    """Path, body and the mark of a request of several calls."""
    mark = f"mark-{next(_marks)}"
    state = {"mark": mark, "fake": {"sleep_s": sleep_s}}
    if kind == "systemone":
        return "/v1/systemone", {**S1, "state": state}, mark
    decisions = [
        {
            "id": f"{mark}-{n}",
            "question": "Which?",
            "orderings": orderings,
            "options": [{"id": option, "description": option} for option in "abc"],
        }
        for n, orderings in enumerate(["none", "rotations", "all"])
    ]
    return "/decide/shared", {"state": state, "decisions": decisions}, mark


def test_requests_never_overlap_and_the_calls_of_one_are_never_interleaved(service: Pair) -> None:
    calls = service.record_calls()
    seen = len(calls())
    requests = [marked("systemone" if n % 2 else "shared", 0.01) for n in range(14)]
    results = at_once([lambda path=path, body=body: service.post(path, body) for path, body, _ in requests])
    assert [status for status, _ in results] == [200] * len(requests)
    log = calls()[seen:]
    # Start and end alternate: no two calls at once.
    assert len(log) % 2 == 0
    for first, second in zip(log[::2], log[1::2], strict=True):
        assert "start" in first
        assert "end" in second
        assert first["start"] <= second["end"]
    times = [line.get("start", line.get("end")) for line in log]
    assert times == sorted(times)
    # All calls of a request in one run: as many runs as requests.
    marks = [line["state"]["mark"] for line in starts(log)]
    runs = [mark for mark, _ in itertools.groupby(marks)]
    assert sorted(runs) == sorted(mark for _, _, mark in requests)
    for path, _, mark in requests:
        assert marks.count(mark) == (3 if path == "/v1/systemone" else 6)


def test_every_call_runs_on_the_thread_that_loaded_the_engine(service: Pair) -> None:
    calls = service.record_calls()
    at_once([lambda: service.post("/v1/systemone", S1)] * 8)
    service.post("/decide", {**D1, "state": {"fake": {"error": ["runtime", "odd"]}}})
    service.post("/decide", D1)
    lines = starts(calls())
    assert len(lines) >= 25
    assert len({line["thread"] for line in lines}) == 1
    assert all(line["thread"] == line["load_thread"] for line in lines)


def test_service_is_first_in_first_out_over_all_workers(service: Pair) -> None:
    calls = service.record_calls()
    running = Background(lambda: service.post("/decide", slow(D1, 1.5)))
    wait_running(service)
    asked, jobs = [], []
    for number in range(14):
        body = own_decision()
        asked.append(body)
        jobs.append(Background(lambda body=body: service.post("/decide", body)))
        wait_for(lambda number=number: health(service)["queue_length"] == number + 1, 10, "one more in the queue")
    assert not running.done(), "the queue was built while the first one ran"
    assert [job.result()[0] for job in [running, *jobs]] == [200] * 15
    order = [line["state"] for line in starts(calls())]
    assert order[-14:] == [body["state"] for body in asked]


def test_health_answers_while_a_call_is_blocked_and_every_slot_waits(service: Pair) -> None:
    """trouble.md rank 2: the poll is never behind a scoring request."""
    running = Background(lambda: service.post("/decide", slow(D1, 2.0)))
    wait_running(service)
    waiting = [Background(lambda: service.post("/decide", D1)) for _ in range(15)]
    wait_for(lambda: health(service)["queue_length"] == 15, 10, "a full queue")
    with HealthWatch(service) as watch:
        first = health(service)["busy_seconds"]
        wait_for(lambda: health(service)["busy_seconds"] > first + 0.5, 5, "busy_seconds growing")
    assert not watch.bad
    assert watch.polls >= 5
    assert watch.slowest < 0.2 * NOISE
    assert [job.result()[0] for job in [running, *waiting]] == [200] * 16
    assert health(service)["busy_seconds"] == 0


def test_concurrent_answers_are_everybodys_own(service: Pair) -> None:
    def many() -> list[bool]:
        out = []
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
        for _ in range(25):
            body = own_decision()
            connection.request("POST", "/decide", json.dumps(body), BEARER)
            response = connection.getresponse()
            answer = json.loads(response.read())
            out.append(response.status == 200 and is_own(body, answer))
        connection.close()
        return out

    results = at_once([many] * 8)
    assert all(all(result) for result in results), results


# -- late answers ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty() -> Iterator[Pair]:
    with pair(MAX_QUEUE="16", REQUEST_BUDGET_S="0.4") as running:
        yield running


class _Caller:
    """One keep-alive connection."""

    def __init__(self, service: Pair) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)

    def ask(self, body: dict[str, Any]) -> tuple[int, Any]:
        self._connection.request("POST", "/decide", json.dumps(body), BEARER)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def close(self) -> None:
        self._connection.close()


def test_a_late_answer_never_reaches_the_next_request_on_the_connection(hasty: Pair) -> None:
    """trouble.md rank 4: A's time is over before its answer is there, B follows at once."""
    caller = _Caller(hasty)
    served = 0
    for _ in range(8):
        late, prompt = own_decision(sleep_s=0.55), own_decision()
        status, answer = caller.ask(late)
        assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
        status, answer = caller.ask(prompt)
        assert status in (200, 504), answer
        if status == 200:
            served += 1
            assert is_own(prompt, answer)
    caller.close()
    assert served >= 4
    invariants(hasty)


def test_late_answers_reach_nobody_over_eight_parallel_connections(hasty: Pair) -> None:
    over = threading.Event()
    served = [0]

    def prompt_ones() -> list[Any]:
        caller, strangers = _Caller(hasty), []
        while not over.is_set():
            body = own_decision()
            status, answer = caller.ask(body)
            assert status in (200, 504), answer
            if status == 200:
                served[0] += 1
                if not is_own(body, answer):
                    strangers.append((body, answer))
        caller.close()
        return strangers

    def late_ones() -> list[Any]:
        caller, wrong = _Caller(hasty), []
        for _ in range(5):
            status, answer = caller.ask(own_decision(sleep_s=0.5))
            if status != 504:
                wrong.append((status, answer))
        caller.close()
        return wrong

    prompt = [Background(prompt_ones) for _ in range(7)]
    assert Background(late_ones).result() == []
    over.set()
    assert [job.result() for job in prompt] == [[]] * 7
    assert served[0] > 0
    wait_for(lambda: health(hasty)["counters"]["abandoned_replies"] > 0, 5, "late replies dropped and counted")
    invariants(hasty)
