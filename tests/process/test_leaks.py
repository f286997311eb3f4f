"""What must not grow, and what must not be told (architecture.md §4's invariants; trouble.md rank 47)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.harness import D1, S1, SHARED1, TOKEN, Pair, pair, wait_for
from tests.process.support import (
    Background,
    Wire,
    at_once,
    baseline,
    chunked,
    head,
    health,
    invariants,
    kill,
    own_decision,
    settle,
    wait_running,
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


# -- what the logs tell ----------------------------------------------------------------------------

SECRET = "sEcReT-7f3a9c"


def plant(service: Pair) -> None:
    """Requests with the secret in every place a caller can put text, through every kind of failure."""
    secret_decision: dict[str, Any] = {
        "id": f"id-{SECRET}",
        "state": f'state {SECRET}\n{{"forged": "line"}}',
        "question": f"q {SECRET}?",
        "options": [{"id": f"a-{SECRET}", "description": f"A {SECRET}"}, {"id": "b", "description": SECRET}],
    }
    assert service.post("/decide", secret_decision)[0] == 200
    questions = {f"q-{SECRET}": {"type": "choice", "instructions": SECRET, "criteria": {SECRET: SECRET, "b": SECRET}}}
    assert service.post("/v1/systemone", {"model": SECRET, "state": SECRET, "questions": questions})[0] == 200
    for where in ("error", "prepare_error"):
        for kind in ("value", "oom", "runtime", "non_finite"):
            body = {
                **secret_decision,
                "state": {"text": SECRET, "fake": {where: [kind, f"boom /srv/x {SECRET}\n{SECRET}"]}},
            }
            status, answer = service.post("/decide", body)
            assert status == {"value": 422, "oom": 503}.get(kind, 500)
            if status != 422:
                assert SECRET not in json.dumps(answer)
                assert "/srv/x" not in json.dumps(answer)
    for broken in (
        {"nan": True},
        {"drop_option": True},
        {"drop_answer": True},
        {"set": {"type": SECRET}},
        {"set": {"choice": SECRET}},
        {"set": {"confidence": SECRET}},
        {"probabilities": [0.9, 0.9]},
    ):
        status, answer = service.post("/decide", {**secret_decision, "state": {"text": SECRET, "fake": broken}})
        assert status == 500
        assert SECRET not in json.dumps(answer)
    # Refused before the engine.
    service.post("/decide", {**secret_decision, "options": [{"id": SECRET, "description": SECRET}] * 2})
    service.post("/decide", {**secret_decision, "orderings": SECRET})
    service.post("/decide", {SECRET: SECRET})
    service.post("/decide", f'{{"{SECRET}":1,"{SECRET}":2}}'.encode())
    service.post("/decide", f'{{"state":"{SECRET}\\ud800"}}'.encode())
    service.post("/decide", SECRET.encode())
    service.post("/decide", D1, {"Authorization": f"Bearer {SECRET}"})
    service.post("/decide", D1, {"Authorization": f"Bearer {TOKEN}", "X-Request-ID": f"{SECRET} x"})
    service.post("/decide", D1, {"Authorization": f"Bearer {TOKEN}", "Content-Encoding": SECRET})
    service.request("GET", f"/{SECRET}?token={SECRET}")
    service.request("POST", f"/decide?{SECRET}={TOKEN}", D1)


#: Heads that gunicorn itself refuses, with the secret where it may quote what it refuses.
REFUSED = {
    "method": f"{SECRET} /decide HTTP/1.1\r\nHost: t\r\n\r\n",
    "request_line": f"POST /{SECRET}\r\n\r\n",
    "target": f"POST {SECRET} HTTP/1.1\r\nHost: t\r\n\r\n",
    "version": f"POST /decide {SECRET}/1.1\r\nHost: t\r\n\r\n",
    "space_before_colon": f"POST /decide HTTP/1.1\r\nHost: t\r\nAuthorization : Bearer {TOKEN}\r\n\r\n",
    "header_without_colon": f"POST /decide HTTP/1.1\r\nHost: t\r\nBearer {TOKEN}\r\n\r\n",
    "folded": f"POST /decide HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer\r\n {TOKEN}\r\n\r\n",
    "nul": f"POST /decide HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {TOKEN}\0\r\n\r\n",
    "length": f"POST /decide HTTP/1.1\r\nHost: t\r\nContent-Length: {SECRET}\r\n\r\n",
    "coding": f"POST /decide HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: {SECRET}\r\n\r\n",
    "long_header": f"POST /decide HTTP/1.1\r\nHost: t\r\nX: {SECRET * 1000}\r\n\r\n",
    "long_line": f"POST /{SECRET * 1000} HTTP/1.1\r\nHost: t\r\n\r\n",
    "expect": f"POST /decide HTTP/1.1\r\nHost: t\r\nExpect: {SECRET}\r\nContent-Length: 2\r\n\r\n{{}}",
    "host": f"POST /decide HTTP/1.1\r\nHost: {SECRET} {SECRET}\r\n\r\n",
    "chunk": f"POST /decide HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {TOKEN}\r\n"
    f"Transfer-Encoding: chunked\r\n\r\n{SECRET}\r\n",
    "body_as_head": f'{{"state":"{SECRET}"}}\r\n\r\n',
}


@pytest.fixture(scope="module", params=["json", "text"])
def talking(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pair(LOG_FORMAT=request.param, LOG_LEVEL="DEBUG", MAX_QUEUE=str(QUEUE)) as running:
        yield running


def told(service: Pair) -> list[str]:
    """Lines of either log with the secret or the token."""
    return [
        line[:300]
        for name in ("scorer", "web")
        for line in service.log(name).splitlines()
        if SECRET in line or TOKEN in line or SECRET.lower() in line.lower()
    ]


@pytest.mark.parametrize("place", REFUSED)
def test_a_request_that_gunicorn_refuses_leaves_no_text_of_the_callers_in_the_log(talking: Pair, place: str) -> None:
    before = len(told(talking))
    with Wire(talking) as wire:
        wire.send(REFUSED[place].encode("latin-1"))
        wire.socket.shutdown(1)
        try:
            status = wire.response()[0]
            assert status < 500 or status == 501
        except (EOFError, ConnectionResetError):
            pass
    assert talking.post("/decide", D1)[0] == 200
    assert told(talking)[before:] == []


def test_no_text_of_a_caller_and_no_engine_message_reaches_any_log(talking: Pair) -> None:
    before = len(told(talking))
    plant(talking)
    with Wire(talking) as wire:
        wire.send(whole({**D1, "state": SECRET})[:-30])
    running = Background(lambda: talking.post("/decide", {**D1, "state": {"text": SECRET, "fake": {"sleep_s": 0.4}}}))
    wait_running(talking)
    with Wire(talking) as wire:
        wire.send(whole({**D1, "state": {"text": SECRET, "fake": {}}}))
        wait_for(lambda: health(talking)["queue_length"] == 1, 5)
    assert running.result()[0] == 200
    wait_slots(talking, 0)
    assert told(talking)[before:] == []
    invariants(talking)


def test_a_dying_scorer_tells_no_text_either(talking: Pair) -> None:
    before = len(told(talking))
    talking.script(canary=f"changed {SECRET}")
    body = {**D1, "state": {"text": SECRET, "fake": {"error": ["runtime", f"boom {SECRET}"]}}}
    assert talking.post("/decide", body)[0] == 500
    assert talking.scorer is not None
    assert talking.scorer.wait(10) == 70
    talking.script()
    talking.start_scorer()
    talking.wait_ready()
    body = {**D1, "state": {"text": SECRET, "fake": {"error": ["fatal", f"boom {SECRET}"]}}}
    assert talking.post("/decide", body)[0] == 500
    assert talking.scorer.wait(10) == 70
    talking.start_scorer()
    talking.wait_ready()
    assert told(talking)[before:] == []
    invariants(talking)


def test_a_failure_of_the_engine_is_one_record_with_its_frames(talking: Pair) -> None:
    seen = len(talking.log("scorer"))
    talking.post("/decide", {**D1, "state": {"fake": {"error": ["runtime", f"line one {SECRET}\nline two"]}}})
    wait_for(lambda: "the engine failed" in talking.log("scorer")[seen:], 5)
    lines = [line for line in talking.log("scorer")[seen:].splitlines() if line]
    failed = [line for line in lines if "the engine failed" in line]
    assert len(failed) == 1
    assert "RuntimeError" in failed[0]
    assert "fake.py" in failed[0]
    assert not any("line two" in line for line in lines)


def test_a_failure_is_found_in_both_logs_by_the_callers_request_id(talking: Pair) -> None:
    """architecture.md §1.15: the request id goes into the job header and both logs."""
    talking.post(
        "/decide",
        {**D1, "state": {"fake": {"error": ["runtime", "odd"]}}},
        {"Authorization": f"Bearer {TOKEN}", "X-Request-ID": "find-me-4711"},
    )
    wait_for(lambda: "find-me-4711" in talking.log("web"), 5)
    assert "find-me-4711" in talking.log("scorer")


def test_a_long_message_of_the_engine_about_the_input_is_still_422(service: Pair) -> None:
    """A ValueError is 422 with its message, however long."""
    body = {**D1, "state": {"fake": {"prepare_error": ["value", "too long: " + "x" * 6000]}}}
    status, answer = service.post("/decide", body)
    assert (status, answer["error"]["code"]) == (422, "invalid_request"), answer
    invariants(service)
