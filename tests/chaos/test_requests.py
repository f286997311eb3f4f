"""Callers by the hundred: bursts, early refusals, departures, spent budgets, late answers (architecture.md §4, tests 19
to 23 and 34; trouble.md ranks 4, 9, 11, 12)."""

from __future__ import annotations

import http.client
import json
import math
import random
import struct
from collections import Counter
from typing import Any

import pytest

from tests.chaos.conftest import QUEUE, Record
from tests.harness import BEARER, D1, Pair, pair, wait_for
from tests.process.support import (
    MIXED,
    NOISE,
    Background,
    HealthWatch,
    Load,
    Wire,
    at_once,
    health,
    is_own,
    own_decision,
    slow,
    starts,
    timed_post,
    wait_queued,
    wait_running,
    wait_slots,
    whole,
)

pytestmark = [pytest.mark.timeout(300), pytest.mark.chaos]


def test_50_bursts_of_max_queue_plus_8(service: Pair, record: Record) -> None:
    with record(service, "8 callers more than slots, at once") as seen, HealthWatch(service) as watch:
        for _ in range(50):
            running = Background(lambda: service.post("/decide", slow(D1, 0.25)))
            wait_running(service)
            seen.hit()
            requests = [MIXED[number % 3] for number in range(QUEUE + 7)]
            results = at_once([lambda path=path, body=body: timed_post(service, path, body) for path, body in requests])
            counted = Counter(status for status, *_ in results)
            counted[running.result()[0]] += 1
            # A slot may come free before the last of them asks; more than the slots never run at once.
            assert set(counted) <= {200, 429}, counted
            assert counted[200] >= QUEUE
            for status, number in counted.items():
                seen.fault.answers[str(status)] += number
            seen.recovered()
        assert watch.most_slots <= QUEUE
        assert not watch.bad


def test_20_times_every_waiting_caller_leaves(service: Pair, record: Record) -> None:
    dice = random.Random(22)
    with record(service, "every waiting caller leaves") as seen:
        for _ in range(20):
            service.dir.joinpath("fake_calls.jsonl").write_text("")
            calls = service.record_calls()
            running = Background(lambda: service.post("/decide", slow(D1, 1.0)))
            wait_running(service)
            bodies = [own_decision() for _ in range(QUEUE - 1)]
            wires = [Wire(service).send(whole(body)) for body in bodies]
            wait_queued(service, QUEUE - 1)
            seen.hit()
            for wire in wires:
                getattr(wire, dice.choice(["close", "reset"]))()
            wait_slots(service, 1, 0.5 * NOISE)
            seen.recovered()
            assert running.result()[0] == 200
            states = [line["state"] for line in starts(calls())]
            assert not any(body["state"] in states for body in bodies)


def test_20_times_every_budget_ends_in_the_queue(record: Record) -> None:
    with pair(MAX_QUEUE=str(QUEUE), REQUEST_BUDGET_S="0.5") as service:
        calls = service.record_calls()
        with record(service, "every budget ends in the queue") as seen:
            for number in range(20):
                running = Background(lambda: service.post("/decide", slow(D1, 0.9)))
                wait_running(service)
                seen.hit()
                late = [own_decision() for _ in range(QUEUE - 1)]
                results = at_once([lambda body=body: service.post("/decide", body) for body in late])
                assert [(status, body["error"]["code"]) for status, body in results] == [
                    (504, "deadline_exceeded")
                ] * len(late)
                seen.fault.answers["504"] += len(late)
                running.result()
                wait_slots(service, 0)
                seen.recovered()
                expected = (number + 1) * len(late)
                wait_for(
                    lambda expected=expected: health(service)["counters"]["expired"] == expected, 10, "all expired"
                )
                states = [line["state"] for line in starts(calls())]
                assert not any(body["state"] in states for body in late)


def test_late_answers_reach_nobody_50_times_on_one_connection_and_on_8_at_once(record: Record) -> None:
    """trouble.md rank 4, its own numbers."""
    with pair(MAX_QUEUE=str(QUEUE), REQUEST_BUDGET_S="0.5") as service:

        def rounds(seen: Any, count: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
            for _ in range(count):
                for body in (own_decision(sleep_s=0.6), own_decision()):
                    connection.request("POST", "/decide", json.dumps(body), BEARER)
                    response = connection.getresponse()
                    answer = json.loads(response.read())
                    assert response.status in (200, 504), answer
                    seen.fault.answers[str(response.status)] += 1
                    assert response.status == 504 or is_own(body, answer)
                seen.hit()
            connection.close()

        with record(service, "an answer that comes after its caller's time") as seen:
            rounds(seen, 50)
            at_once([lambda: rounds(seen, 6)] * 8)
            assert seen.fault.answers["504"] >= 50
            assert seen.fault.answers["200"] >= 25
            wait_slots(service, 0)


def test_200_000_random_doubles_pass_both_ways_bit_for_bit(service: Pair, record: Record) -> None:
    """From the caller to the engine within the state, and from the engine to the caller within its answer."""
    dice = random.Random(34)

    def double() -> float:
        while not math.isfinite(value := struct.unpack("<d", dice.randbytes(8))[0]):
            pass
        return float(value)

    with record(service, "random doubles through both tiers") as seen:
        for _ in range(10):
            numbers = [double() for _ in range(20_000)] + [0.0, -0.0, 5e-324, 1.7976931348623157e308]
            status, body = service.post("/decide", {**D1, "state": {"fake": {"set": {"numbers": numbers}}}})
            assert status == 200, body
            found = body["native"]["numbers"]
            assert [struct.pack("<d", value) for value in found] == [struct.pack("<d", value) for value in numbers]
            seen.hit()


def test_every_error_path_by_turns_200_times_under_load_leaves_every_slot_free(service: Pair, record: Record) -> None:
    kinds: list[tuple[Any, int]] = [
        (b"{", 422),
        (b" " * ((1 << 20) + 1), 413),
        ({**D1, "options": 7}, 422),
        (own_decision(error=["value", "x"]), 422),
        (own_decision(error=["oom", "x"]), 503),
        (own_decision(error=["runtime", "x"]), 500),
        (own_decision(nan=True), 500),
        (own_decision(drop_answer=True), 500),
    ]
    with record(service, "every error path, by turns") as seen:
        with Load(service, threads=3) as load:
            for number in range(200):
                body, expected = kinds[number % len(kinds)]
                status, _ = service.post("/decide", body)
                assert status in (expected, 429)
                seen.fault.answers[str(status)] += 1
                seen.hit()
        seen.load(load)
        wait_slots(service, 0)
        results = at_once([lambda: service.post("/decide", slow(D1, 0.02))] * QUEUE)
        assert [status for status, _ in results] == [200] * QUEUE
