"""What must not grow (architecture.md §4's invariants)."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from tests.harness import D1, S1, SHARED1, Pair, pair
from tests.process.support import (
    Wire,
    at_once,
    baseline,
    chunked,
    head,
    invariants,
    kill,
    own_decision,
    settle,
    wait_slots,
    warm,
    whole,
)

pytestmark = pytest.mark.timeout(90)

QUEUE = 8

# -- descriptors and threads -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def service() -> Iterator[Pair]:
    with pair(MAX_QUEUE=str(QUEUE), BODY_DEADLINE_S="1") as running:
        yield running


def mixed(service: Pair, number: int) -> None:
    """One request of many kinds, good and bad."""
    kind = number % 12
    if kind == 0:
        service.post("/decide", D1)
    elif kind == 1:
        service.post("/v1/systemone", S1)
    elif kind == 2:
        service.post("/decide/shared", SHARED1)
    elif kind == 3:
        service.post("/decide", b"{")
    elif kind == 4:
        service.post("/decide", D1, {"Authorization": "Bearer no"})
    elif kind == 5:
        service.post("/decide", {**D1, "state": {"fake": {"error": ["runtime", "odd"]}}})
    elif kind == 6:
        service.post("/decide", b" " * ((1 << 20) + 1))
    elif kind == 7:
        service.request("GET", "/nope")
    elif kind == 8:
        wire = Wire(service).send(head("/decide", 5000) + b"{" * 10)
        wire.reset()
    elif kind == 9:
        with Wire(service) as wire:
            wire.send(head("/decide", None, "Transfer-Encoding: chunked") + chunked([b"[", b"]"]))
            wire.response()
    elif kind == 10:
        wire = Wire(service).send(whole(own_decision(sleep_s=0.002)))
        wire.close()
    else:
        service.post("/decide", {**D1, "state": {"fake": {"prepare_error": ["value", "no"]}}})


def warm_with_errors(service: Pair) -> None:
    """As :func:`warm`, with every kind of request."""
    warm(service, QUEUE)
    at_once([lambda n=n: mixed(service, n) for n in range(24)])
    wait_slots(service, 0)


def test_descriptors_and_threads_stay_after_hundreds_of_mixed_requests(service: Pair) -> None:
    warm_with_errors(service)
    pids = [*service.worker_pids(), service.scorer.pid]
    for number in range(48):
        mixed(service, number)
    wait_slots(service, 0)
    before = baseline(service)
    for number in range(360):
        mixed(service, number)
    for _ in range(4):
        at_once([lambda n=n: mixed(service, n) for n in range(QUEUE)])
    wait_slots(service, 0)
    # Per connection that may now be kept where none was: a socket, its signaller, its monitor's two ends.
    settle(service, before)
    assert service.worker_pids() == pids[:2]
    invariants(service)


def test_descriptors_and_threads_of_the_web_tier_stay_over_20_restarts_of_the_scorer(service: Pair) -> None:
    warm_with_errors(service)
    pids = service.worker_pids()
    before: dict[str, tuple[int, int]] = {}
    for number in range(20):
        kill(service.scorer)
        if number % 5 == 0:
            at_once([lambda: service.post("/decide", D1)] * 3)
        service.start_scorer()
        service.wait_ready()
        results = at_once([lambda: service.post("/decide", own_decision())] * QUEUE)
        assert [result[0] for result in results] == [200] * QUEUE
        if number == 2:
            before = {"web": baseline(service)["web"]}
    settle(service, before)
    assert service.worker_pids() == pids
    invariants(service)


def test_memory_stays_over_thousands_of_requests(service: Pair) -> None:
    """Within a few MiB, once warm."""
    pids = [*service.worker_pids(), service.scorer.pid]

    def many() -> None:
        for _ in range(150):
            service.post("/decide", D1)

    at_once([many] * 4)
    before = {pid: psutil.Process(pid).memory_info().rss for pid in pids}
    at_once([many] * 8)
    grown = {pid: psutil.Process(pid).memory_info().rss - then for pid, then in before.items()}
    assert max(grown.values()) < 6 << 20, grown
    invariants(service)


def test_a_long_message_of_the_engine_about_the_input_is_still_422(service: Pair) -> None:
    """A ValueError is 422 with its message, however long."""
    body = {**D1, "state": {"fake": {"prepare_error": ["value", "too long: " + "x" * 6000]}}}
    status, answer = service.post("/decide", body)
    assert (status, answer["error"]["code"]) == (422, "invalid_request"), answer
    invariants(service)
