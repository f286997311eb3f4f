"""A secret planted in every place that a caller can reach, through every kind of failure, is found nowhere in what was
written: both logs, /metrics, the run directory (trouble.md rank 47; architecture.md §1.15)."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import BEARER, D1, TOKEN, Pair, pair, wait_for
from tests.process.support import (
    Background,
    Wire,
    chunked,
    head,
    health,
    invariants,
    kill,
    wait_queued,
    wait_running,
    wait_slots,
    whole,
)

pytestmark = pytest.mark.timeout(90)

QUEUE = 8
SECRET = f"sEcReT-{secrets.token_hex(8)}"
#: How it may come out: as it is, in another case, or as JSON or Basic credentials carry it.
FORMS = [
    SECRET.lower(),
    TOKEN.lower(),
    SECRET[7:],
    base64.b64encode(f"user:{SECRET}".encode()).decode().lower(),
]


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
    asked = {
        "type": "choice",
        "instructions": SECRET,
        "choices": [{"value": SECRET, "description": SECRET}, {"value": "b"}],
    }
    for body in (
        {"model": "fake", "input": SECRET, "questions": [asked]},
        {"model": SECRET, "input": SECRET, SECRET: 1},
    ):
        service.post("/v1/decisions", body)
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


ROUTES = (
    "/decide",
    "/decide/shared",
    "/v1/systemone",
    "/v1/decisions",
    "/v1/models",
    "/health",
    "/ready",
    "/metrics",
    "/openapi.json",
    f"/{SECRET}",
)
CREDENTIALS = (
    f"Bearer {SECRET}",
    f"Bearer {TOKEN}{SECRET}",
    f"Bearer  {TOKEN}",
    f"Basic {base64.b64encode(f'user:{SECRET}'.encode()).decode()}",
    f"{SECRET} {TOKEN}",
    TOKEN,
    f"Bearer {TOKEN}",
)
HEADERS = (
    "User-Agent",
    "Referer",
    "Cookie",
    "X-Forwarded-For",
    "X-Forwarded-Proto",
    "Forwarded",
    "Proxy-Authorization",
    "Content-Type",
    "Accept",
    "Accept-Encoding",
    "Traceparent",
    "X-Http-Method-Override",
    "Range",
    SECRET,
)


def knock(service: Pair) -> None:
    """Every route with every method and every credential, right and wrong, and the secret in every header."""
    for route in ROUTES:
        for method in ("GET", "POST", "PUT", "HEAD", "OPTIONS", SECRET.upper().replace("-", "")):
            for credentials in CREDENTIALS:
                lines = [f"Authorization: {credentials}", *(f"{name}: {SECRET}" for name in HEADERS)]
                request = head(f"{route}?{SECRET}={TOKEN}", 0, *lines, token=None, method=method)
                answer = service.raw(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                assert int(answer.split()[1]) in (200, 400, 401, 404, 405, 415, 422), (route, method)


#: Bodies that are refused, each with what says how it is sent.
BODIES: dict[str, tuple[bytes, ...]] = {
    "over the limit": (b'{"state":"' + SECRET.encode() * 80_000 + b'"}',),
    "no gzip": (SECRET.encode(), b"Content-Encoding: gzip"),
    "half a gzip": (gzip.compress(json.dumps({**D1, "state": SECRET}).encode())[:-9], b"Content-Encoding: gzip"),
    "no zstd": (SECRET.encode(), b"Content-Encoding: zstd"),
    "too deep": (b'{"state":' + b"[" * 80 + SECRET.encode() + b"]" * 80 + b"}",),
    "a long number": (b'{"state":1' + b"1" * 5000 + b',"' + SECRET.encode() + b'":1}',),
    "no UTF-8": (b'{"state":"' + SECRET.encode() + b'\xff"}',),
    "not an object": (json.dumps([SECRET]).encode(),),
    "multipart": (SECRET.encode(), b"Content-Type: multipart/form-data; boundary=" + SECRET.encode()),
    "no number": (b'{"state":NaN,"' + SECRET.encode() + b'":' + SECRET.encode() + b"}",),
}


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
    """Where the secret or the token is: lines of the logs, other files of the run directory, /metrics, /health."""
    found = []
    for file in service.dir.rglob("*"):
        if not file.is_file() or file.name in OURS:
            continue
        for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
            found += [f"{file.name}:{number}: {line[:300]!r}" for form in FORMS if form.encode() in line.lower()]
    return found + shown(service)


#: The test's own means of telling the engine what to do.
OURS = ("fake.json", "fake_calls.jsonl")


def shown(service: Pair) -> list[str]:
    """What the open pages tell of it."""
    found = []
    for path in ("/metrics", "/health"):
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
        connection.request("GET", path, headers=BEARER)
        answer = connection.getresponse()
        text = answer.read().decode().lower()
        connection.close()
        assert answer.status == 200
        found += [f"{path}: {form}" for form in FORMS if form in text]
    return found


def test_a_planted_secret_would_be_found(talking: Pair) -> None:
    """The search itself."""
    for name in ("a", "metrics/b"):
        file = talking.dir / name
        file.write_bytes(b"x\0" + SECRET.upper().encode() + b"\0y")
        assert any(file.name in line for line in told(talking))
        file.unlink()
    assert told(talking) == []
    assert {"web.log", "scorer.log", "slots"} <= {file.name for file in talking.dir.rglob("*")}


@pytest.mark.parametrize("place", REFUSED)
def test_a_request_that_gunicorn_refuses_leaves_no_text_of_the_callers_in_the_log(talking: Pair, place: str) -> None:
    with Wire(talking) as wire:
        wire.send(REFUSED[place].encode("latin-1"))
        wire.socket.shutdown(1)
        try:
            status = wire.response()[0]
            assert status < 500 or status == 501
        except (EOFError, ConnectionResetError):
            pass
    assert talking.post("/decide", D1)[0] == 200
    assert told(talking) == []


def test_no_text_of_a_caller_and_no_engine_message_reaches_any_log(talking: Pair) -> None:
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
    assert told(talking) == []
    invariants(talking)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("way", ["plain", "chunked"])
def test_a_body_that_is_refused_leaves_no_text_behind(talking: Pair, name: str, way: str) -> None:
    body, *lines = BODIES[name]
    more = [line.decode("latin-1") for line in lines]
    for path in ("/decide", "/v1/systemone", "/v1/decisions"):
        with Wire(talking) as wire:
            if way == "plain":
                wire.send(whole(body, path, *more))
            else:
                pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]
                sent = chunked(pieces)[:-2] + f"X-Trailer: {SECRET}\r\n\r\n".encode()
                wire.send(head(path, None, "Transfer-Encoding: chunked", *more) + sent)
            status, answer = wire.json()
            assert status in (400, 413, 415, 422)
            assert SECRET not in json.dumps(answer)
    assert told(talking) == []


def test_no_route_method_credential_or_header_leaves_text_behind(talking: Pair) -> None:
    knock(talking)
    assert told(talking) == []
    invariants(talking)


def test_a_dying_scorer_tells_no_text_either(talking: Pair) -> None:
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
    assert told(talking) == []
    invariants(talking)


def test_a_scorer_that_is_killed_or_hangs_with_secrets_in_hand_tells_none() -> None:
    body = {**D1, "id": SECRET, "state": {"text": SECRET, "fake": {"sleep_s": 30}}}
    with pair(LOG_LEVEL="DEBUG", HANG_S="1") as service:
        waiting = [Background(lambda: service.post("/decide", body)) for _ in range(3)]
        wait_queued(service, 2)
        kill(service.scorer)
        assert [one.result()[0] for one in waiting] == [503] * 3
        service.start_scorer()
        service.wait_ready()
        assert service.post("/decide", body)[0] == 503
        assert service.scorer is not None
        assert service.scorer.wait(10) == 70
        assert "one job has run too long" in service.log("scorer")
        service.start_scorer()
        service.wait_ready()
        assert told(service) == []


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
