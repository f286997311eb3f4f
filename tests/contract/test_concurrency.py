"""INV-2: one model, one inference thread; the calls of a request run back to back; /health answers meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.contract.helpers import gated, in_background, shared, wait_until_in_use
from tests.harness import D1, S1, SHARED1, Local, decision


def test_two_requests_never_overlap_inside_the_engine(service: Local) -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    def enter(_call: Any) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)

    def leave(_answer: Any) -> None:
        nonlocal inside
        time.sleep(0.002)  # long enough for another one to come in, if it could
        with lock:
            inside -= 1

    service.engine.before, service.engine.edit = enter, leave
    with in_background(service) as post:
        found = [
            post(path, body)
            for _ in range(8)
            for path, body in (("/decide", D1), ("/decide/shared", SHARED1), ("/v1/systemone", S1))
        ]
        assert {one.result()[0] for one in found} == {200}
    assert most == 1
    assert inside == 0


def test_the_calls_of_one_request_are_not_interleaved_with_anothers(service: Local) -> None:
    def body(name: str) -> dict[str, Any]:
        return shared(*(decision(f"{name}{i}", "ab", orderings="rotations") for i in range(20)), state=name)

    service.engine.edit = lambda _answer: time.sleep(0.001)
    with in_background(service) as post:
        found = [post("/decide/shared", body(f"state {number}")) for number in range(10)]
        found += [post("/v1/systemone", {**S1, "state": f"jev {number}"}) for number in range(6)]
        assert {one.result()[0] for one in found} == {200}
    states = [call["state"] for call in service.engine.calls]
    runs = [state for index, state in enumerate(states) if index == 0 or states[index - 1] != state]
    assert len(runs) == len(set(runs)) == 16, runs
    assert len(states) == 10 * 4 + 6 * 3


def test_health_answers_while_a_call_is_blocked(service: Local) -> None:
    with in_background(service) as post, gated(service) as gate:
        waiting = [post("/decide", D1) for _ in range(5)]
        gate.wait_entered()
        wait_until_in_use(service, 5)
        for _ in range(3):
            response = service.client.get("/health")
            assert response.status_code == 200
            assert response.json["status"] == "ok"
        assert response.json["queue_length"] == 4
        assert response.json["busy_seconds"] > 0
        gate.open()
        assert [one.result()[0] for one in waiting] == [200] * 5


def test_every_call_runs_on_the_thread_that_loaded_the_engine(service: Local) -> None:
    with in_background(service) as post:
        found = [post("/decide", D1) for _ in range(20)]
        assert {one.result()[0] for one in found} == {200}
    assert len(service.engine.threads) == 1, "load and the calls ran on different threads"
    assert threading.get_ident() not in service.engine.threads


def test_every_caller_gets_the_answer_to_its_own_request(service: Local) -> None:
    with in_background(service) as post:
        found = {
            number: post("/decide", decision(f"d{number}", [f"a{number}", f"b{number}"], state=f"s{number}"))
            for number in range(32)
        }
        for number, one in found.items():
            status, result = one.result()
            assert (status, result["id"], result["option_ids"]) == (200, f"d{number}", [f"a{number}", f"b{number}"])


def test_requests_are_scored_in_the_order_they_came(service: Local) -> None:
    with in_background(service) as post, gated(service) as gate:
        first = post("/decide", {**D1, "state": "0"})
        gate.wait_entered()
        others = []
        for number in range(1, 8):
            others.append(post("/decide", {**D1, "state": str(number)}))
            # The next is sent once this one is in the queue.
            while service.client.get("/health").json["queue_length"] < number:
                time.sleep(0.002)
        gate.open()
        assert {one.result()[0] for one in [first, *others]} == {200}
    assert [call["state"] for call in service.engine.calls] == [str(number) for number in range(8)]
