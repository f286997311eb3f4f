"""The shipped conf/nginx.conf under a real nginx, in front of the real pair (architecture.md §1.8, §1.9, §1.13;
trouble.md ranks 9, 19, 52; failure tests 20, 21, 22, 26, 28)."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from shared.rundir import RunDir
from tests.harness import BEARER, D1, ROOT, TOKEN, Pair, pair, strict_json, wait_for
from tests.process.nginx import Front, front, needs_nginx
from tests.process.support import (
    MIXED,
    NOISE,
    Background,
    Load,
    Wire,
    at_once,
    chunked,
    head,
    health,
    invariants,
    kill,
    own_decision,
    padded,
    slow,
    starts,
    wait_queued,
    wait_running,
    whole,
)
from web import body as web_body
from web.errors import KINDS, render_refusal

pytestmark = [needs_nginx, pytest.mark.timeout(120)]

MIB = 1 << 20
LIMIT = MIB  # of a body, by default
QUEUE = 8


@pytest.fixture(scope="module")
def pool() -> Iterator[Pair]:
    with pair(MAX_QUEUE=str(QUEUE)) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(pool: Pair) -> Iterator[Front]:
    with front(pool) as running:
        yield running


@pytest.fixture
def service(proxy: Front) -> Iterator[Front]:
    """nginx before a pair; every test leaves the pair as it found it."""
    yield proxy
    proxy.script()
    if proxy.behind.web is None or proxy.behind.web.poll() is not None:
        proxy.behind.start_web()
    if proxy.behind.scorer is None or proxy.behind.scorer.poll() is not None:
        proxy.behind.start_scorer()
    proxy.behind.wait_ready()
    invariants(proxy.behind)


def error_of(answer: Any) -> str:
    return str(answer["error"]["code"])


# -- what passes -----------------------------------------------------------------------------------


def test_every_route_answers_as_it_does_without_nginx(service: Front) -> None:
    for path, body in MIXED:
        through, direct = service.post(path, body), service.behind.post(path, body)
        for answer in (through, direct):
            assert answer[0] == 200
        assert set(through[1]) == set(direct[1])
    for path in ("/health", "/ready"):
        assert service.request("GET", path)[0] == 200
    assert service.request("GET", "/ready")[2] == {"ready": True}


@pytest.mark.parametrize("given", ["my-id.1_A", None, "bad id", "x" * 65])
def test_a_request_id_is_passed_and_echoed_once(service: Front, given: str | None) -> None:
    """The rule is web/observe.py's: a safe one is kept, else nginx makes one, and the application keeps that."""
    for path, status in (("/ready", 200), ("/nothing", 404), ("/_decision_error", 404)):
        with Wire(service) as wire:
            wire.send(head(path, None, *([f"X-Request-ID: {given}"] if given else []), method="GET"))
            text = read_all(wire, status)
        ids = re.findall(rb"(?im)^x-request-id: (.*?)\r$", text)
        typesafe = re.findall(rb"(?im)^x-typesafe-request-id: (.*?)\r$", text)
        assert len(ids) == len(typesafe) == 1
        assert ids == typesafe
        if given == "my-id.1_A":
            assert ids == [b"my-id.1_A"]
        else:
            assert re.fullmatch(rb"[0-9a-f]{32}", ids[0])
        if path != "/_decision_error":
            wait_for(lambda found=ids[0]: found.decode() in service.log("web"), NOISE, "the id in the log")


def read_all(wire: Wire, status: int) -> bytes:
    """The head of the one response, byte by byte."""
    text = b""
    while not text.endswith(b"\r\n\r\n"):
        byte = wire._file.read(1)
        assert byte
        text += byte
    assert int(text.split()[1]) == status, text
    return text


def test_the_applications_own_errors_pass_untouched(service: Front) -> None:
    bad = {**D1, "options": []}
    for headers, path, body, status in (
        ({}, "/decide", D1, 401),
        (BEARER, "/nothing", D1, 404),
        (BEARER, "/v1/systemone", {}, 422),
        (BEARER, "/decide", bad, 422),
        ({**BEARER, "Content-Encoding": "br"}, "/decide", D1, 415),
    ):
        direct = service.behind.request("POST", path, body, headers)
        through = service.request("POST", path, body, headers)
        assert direct[0] == through[0] == status
        assert direct[2] == through[2]
        names = {"www-authenticate", "retry-after", "retry-after-ms", "allow", "accept-encoding", "cache-control"}
        assert {n: v for n, v in direct[1].items() if n in names} == {n: v for n, v in through[1].items() if n in names}
    status, headers, _ = service.request("GET", "/decide")
    assert (status, headers["allow"]) == (405, "POST")


def test_a_429_and_a_503_pass_with_their_retry_after(service: Front) -> None:
    with full(service):
        status, headers, body = service.request("POST", "/decide", D1)
        assert (status, error_of(body), headers["retry-after"]) == (429, "busy", "1")
    kill(service.behind.scorer)
    status, headers, body = service.request("POST", "/v1/systemone", MIXED[2][1])
    assert (status, error_of(body), headers["retry-after"]) == (503, "scorer_unavailable", "1")
    assert body["detail"]["error_type"] == "overloaded_error"
    assert service.request("GET", "/ready")[0] == 503


@contextlib.contextmanager
def full(service: Pair) -> Iterator[None]:
    """Every slot is taken, by this process."""
    from shared.slots import SlotTable

    table = SlotTable(RunDir(service.dir).slots)
    with contextlib.ExitStack() as stack:
        for _ in range(table.size):
            slot = table.acquire(b"x" * 16)
            assert slot is not None
            stack.enter_context(slot)
        yield
    table.close()


@pytest.mark.parametrize("path", ["/metrics", "/_decision_error"])
def test_what_is_not_for_callers_is_not_there(service: Front, path: str) -> None:
    status, _, body = service.request("GET", path)
    assert (status, body) == (404, strict_json(render_refusal(404, path)[1]))


# -- what nginx answers itself ---------------------------------------------------------------------

STATUSES = [400, 404, 405, 413, 414, 415, 421, 429, 500, 501, 502, 503, 504, 505, 507]


@pytest.fixture(scope="module")
def failing(pool: Pair) -> Iterator[Front]:
    """The shipped file, with a place in it where nginx answers whatever status the query asks for."""
    rules = "".join(f"if ($arg_status = {status}) {{ return {status}; }} " for status in [*STATUSES, 494, 497])
    with front(pool, {"location / {": f"location / {{ {rules}"}) as running:
        yield running


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("path", ["/decide", "/decide/shared", "/v1/systemone", "/v1/models", "/v2/nothing"])
def test_an_error_of_nginx_is_the_applications_word_for_word(failing: Front, path: str, status: int) -> None:
    found, headers, body = failing.request("POST", f"{path}?status={status}", D1, {})
    expected_headers, expected = render_refusal(status, path)
    assert (found, body) == (status, strict_json(expected))
    assert headers.get("retry-after") == dict(expected_headers).get("Retry-After")
    assert headers["cache-control"] == "no-store"
    assert headers["x-request-id"] == headers["x-typesafe-request-id"]


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("path", ["/v1/decisions", "/v1/decisions/x"])
def test_an_error_of_nginx_on_openais_route_is_in_openais_shape(failing: Front, path: str, status: int) -> None:
    found, headers, body = failing.request("POST", f"{path}?status={status}", D1, {})
    ours = strict_json(render_refusal(status, "/decide")[1])["error"]
    assert found == status
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["message"] == ours["message"]
    assert body["error"]["param"] is None
    kind = KINDS[ours["code"]].status
    type_ = "server_error" if kind >= 500 else "rate_limit_error" if kind == 429 else "invalid_request_error"
    assert body["error"]["type"] == type_
    own_headers, own = render_refusal(status, path)
    assert body == strict_json(own)
    assert headers.get("x-should-retry") == dict(own_headers).get("x-should-retry")
    # Its clients retry every 5xx unless told not to.
    assert ("retry-after" in headers) is (KINDS[ours["code"]].retry_after > 0)
    assert headers.get("x-should-retry") == (None if "retry-after" in headers else "false")


@pytest.mark.parametrize(("asked", "status"), [(494, 431), (497, 400)])
def test_nginxs_private_statuses_become_real_ones(failing: Front, asked: int, status: int) -> None:
    found, _, body = failing.request("POST", f"/decide?status={asked}", D1)
    assert (found, body) == (status, strict_json(render_refusal(status, "/decide")[1]))


SMUGGLED = whole(D1)
REFUSED: dict[str, tuple[int, bytes]] = {
    "no request line": (400, b"hello\r\n\r\n"),
    "a version that is none": (400, b"GET /health HTTP/x\r\nHost: x\r\n\r\n"),
    "version 3": (505, b"GET /v1/models HTTP/3.0\r\nHost: x\r\n\r\n"),
    "no host": (400, b"POST /decide HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"),
    "two hosts": (400, head("/decide", 2, "Host: b") + b"{}"),
    "TRACE": (405, head("/decide", None, method="TRACE")),
    "CONNECT": (400, b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a long request line": (414, head(f"/v1/systemone?{'x' * 9000}", 2) + b"{}"),
    "a long header": (431, head("/v1/systemone", 2, f"X-A: {'x' * 9000}") + b"{}"),
    "long headers": (431, head("/decide", 2, *[f"X-{n}: {'x' * 7000}" for n in range(6)]) + b"{}"),
    "more headers than gunicorn takes": (431, head("/decide", 2, *[f"X-{n}: 1" for n in range(200)]) + b"{}"),
    "a control character in a header": (400, head("/decide", 2, "X-A: \x00b") + b"{}"),
    "two lengths": (400, head("/decide", 2, "Content-Length: 3") + b"{}" + SMUGGLED),
    "two equal lengths": (400, head("/decide", 2, "Content-Length: 2") + b"{}" + SMUGGLED),
    "a length with a plus": (400, head("/decide", "+2") + b"{}" + SMUGGLED),
    "a negative length": (400, head("/decide", "-2") + b"{}" + SMUGGLED),
    "a length and chunks": (400, head("/decide", 4, "Transfer-Encoding: chunked") + b"0\r\n\r\n" + SMUGGLED),
    "chunks twice": (400, head("/decide", None, *["Transfer-Encoding: chunked"] * 2) + b"0\r\n\r\n" + SMUGGLED),
    "an unknown transfer coding": (501, head("/decide", None, "Transfer-Encoding: xchunked") + b"0\r\n\r\n" + SMUGGLED),
    "chunks behind a coding": (501, head("/decide", None, "Transfer-Encoding: x, chunked") + b"0\r\n\r\n" + SMUGGLED),
    "a chunk size that is none": (400, head("/decide", None, "Transfer-Encoding: chunked") + b"+2\r\n{}\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_http_is_refused_in_our_form_and_never_becomes_a_second_request(service: Front, name: str) -> None:
    status, request = REFUSED[name]
    calls = service.record_calls()
    before = len(starts(calls()))
    with Wire(service) as wire:
        wire.send(request)
        found, headers, body = wire.response()
        assert (found, headers["content-type"]) == (status, "application/json"), (found, body[:200])
        assert strict_json(body)["error"]["code"] in {"bad_request", "method_not_allowed"}
        assert headers["x-request-id"]
        if name not in ("TRACE", "more headers than gunicorn takes"):  # good HTTP to nginx: it may go on
            with contextlib.suppress(ConnectionError):
                assert wire.at_end()
    assert service.post("/decide", D1)[0] == 200
    assert len(starts(calls())) == before + 1, "and only that one was scored"


@pytest.mark.parametrize(
    ("name", "lines", "body"),
    [
        ("a header name with a space before the colon", ["Transfer-Encoding : chunked"], b""),
        ("a name with an underscore", ["Content_Length: 5"], b""),
        ("a hidden coding", ["X: y\nTransfer-Encoding: chunked"], b""),
        ("a tab before chunked", ["Transfer-Encoding:\tchunked"], None),
    ],
)
def test_an_odd_header_never_lets_a_body_become_a_request(
    service: Front, name: str, lines: list[str], body: bytes | None
) -> None:
    calls = service.record_calls()
    before = len(starts(calls()))
    inner = whole(own_decision())
    data = chunked([inner]) if body is None else inner
    request = head("/decide", None if body is None else len(data), *lines) + data
    with Wire(service, timeout=3) as wire:
        wire.send(request)
        found = 0
        with contextlib.suppress(EOFError, OSError):
            while True:
                status, _ = wire.json()
                assert status in (400, 422, 501), name
                found += 1
    assert found == 1, "one answer to one request"
    assert len(starts(calls())) == before


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["plain", "chunked"])
@pytest.mark.parametrize(
    ("size", "status", "whose"),
    [
        (LIMIT, 200, ""),
        (LIMIT + 1, 413, "1048576 bytes"),
        (8 * MIB, 413, "1048576 bytes"),
        (9 * MIB, 413, "1048576 bytes"),
        (9 * MIB + 1, 413, "proxy"),
        (20 * MIB, 413, "proxy"),
    ],
)
def test_the_application_says_413_up_to_the_proxys_limit_and_the_proxy_above(
    service: Front, size: int, status: int, whose: str, form: str
) -> None:
    data = padded(size)
    with Wire(service) as wire:
        try:
            if form == "plain":
                wire.send(head("/decide", size)).send(data)
            else:
                wire.send(head("/decide", None, "Transfer-Encoding: chunked"))
                wire.send(chunked([data[at : at + 65536] for at in range(0, size, 65536)]))
        except OSError:
            assert whose == "proxy"
        found, body = wire.json()
    assert found == status
    if status == 413:
        assert error_of(body) == "request_too_large"
        assert whose in body["error"]["message"]


def test_the_proxys_limit_is_what_the_application_drains() -> None:
    """Else a body between the two would make a 502 of the application's 401, 413 and 429."""
    size = re.search(r"client_max_body_size (\d+)m;", (ROOT / "conf" / "nginx.conf").read_text())
    assert size is not None
    assert int(size[1]) * MIB == web_body._DRAIN_BYTES


def test_an_expectation_is_met_by_the_proxy(service: Front) -> None:
    data = json.dumps(D1).encode()
    with Wire(service) as wire:
        wire.send(head("/decide", len(data), "Expect: 100-continue"))
        assert wire.response()[0] == 100
        assert wire.send(data).json()[0] == 200
    with Wire(service) as wire:
        wire.send(head("/decide", 20 * MIB, "Expect: 100-continue"))
        assert wire.json()[0] == 413, "and not met where the body would be refused"


# -- callers and connections -----------------------------------------------------------------------


def test_connections_to_the_web_tier_are_kept_alive(service: Front) -> None:
    nginx = psutil.Process(service.process.pid).children()[0]

    def upstream() -> set[int]:
        return {c.laddr.port for c in nginx.net_connections("tcp") if c.raddr and c.raddr.port == service.behind.port}

    assert service.post("/decide", D1)[0] == 200
    before = upstream()
    for path, body in MIXED * 5:
        assert service.post(path, body)[0] == 200
    assert before
    assert upstream() == before, "no other connection was made"


@pytest.mark.parametrize("queued", [False, True])
def test_a_caller_that_leaves_frees_its_slot(service: Front, queued: bool) -> None:
    calls = service.record_calls()
    before = len(starts(calls()))
    first = Background(lambda: service.post("/decide", slow(D1, 3.0))) if queued else None
    if first is not None:
        wait_running(service)
    with Wire(service) as wire:
        wire.send(whole(slow(D1, 3.0)))
        if first is None:
            wait_running(service)
        else:
            wait_queued(service, 1)
        held = service.slots_in_use()
    if first is not None:
        wait_for(lambda: service.slots_in_use() < held, NOISE, "the slot of the one that left")
        assert not first.done()
        assert first.result()[0] == 200
        assert len(starts(calls())) == before + 1, "the queued one was never run"
    wait_for(lambda: service.slots_in_use() == 0, 2 * NOISE, "no slot held")


def test_slow_senders_hold_no_thread_and_no_slot(service: Front) -> None:
    """More of them than the web tier has threads (2 x 16)."""
    wires = [Wire(service).send(head("/decide", 1000)[:-2]) for _ in range(60)]
    wires += [Wire(service).send(head("/decide", 1000) + b'{"state"') for _ in range(60)]
    try:
        for round_ in range(3):
            for number, wire in enumerate(wires):
                wire.send(f"X-{round_}: 1\r\n".encode() if number < 60 else b" ")
            answers = at_once([lambda: service.request("GET", "/health")] * 8)
            assert [answer[0] for answer in answers] == [200] * 8
            assert all(answer[2]["slots_in_use"] == 0 for answer in answers)
            assert service.post("/decide", D1)[0] == 200
            assert len(psutil.Process(service.behind.worker_pids()[0]).net_connections("tcp")) < 20
            time.sleep(0.3)
    finally:
        for wire in wires:
            wire.close()


def test_a_slow_reader_holds_no_thread(service: Front) -> None:
    wires = []
    for _ in range(60):
        wire = Wire(service)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        wires.append(wire.send(whole(D1) * 5))
    try:
        assert wait_for(lambda: service.request("GET", "/health")[2]["slots_in_use"] == 0, 2 * NOISE, "no slot held")
        assert service.post("/decide", D1)[0] == 200
    finally:
        for wire in wires:
            wire.close()


# -- a tier dies -----------------------------------------------------------------------------------


def test_a_web_tier_that_is_down_is_a_502_in_our_form_and_back_at_once(service: Front) -> None:
    kill_web(service.behind)
    for path, body in MIXED:
        status, headers, answer = service.request("POST", path, body)
        assert (status, error_of(answer), headers["retry-after"]) == (502, "scorer_unavailable", "1")
        assert ("detail" in answer) is path.startswith("/v1/")
    service.behind.start_web()
    service.behind.wait_ready()
    assert service.post("/decide", D1)[0] == 200, "one failure takes nothing out of rotation"


def kill_web(behind: Pair) -> None:
    """SIGKILL the master and its workers."""
    assert behind.web is not None
    pids = behind.worker_pids()
    kill(behind.web)
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids), NOISE, "the workers gone")


def test_a_post_whose_worker_dies_is_never_sent_again(service: Front) -> None:
    """Not even over a kept connection, where nginx is most inclined to, and with a listener that would take it."""
    calls = service.record_calls()
    for answer in at_once([lambda: service.post("/decide", slow(D1, 0.2))] * 4):
        assert answer[0] == 200
    asked = [own_decision(sleep_s=1.5), *[own_decision() for _ in range(3)]]
    jobs = [Background(lambda body=body: service.request("POST", "/decide", body)) for body in asked[:1]]
    wait_running(service)
    jobs += [Background(lambda body=body: service.request("POST", "/decide", body)) for body in asked[1:]]
    wait_queued(service, 3)
    before = len(calls())
    for pid in service.behind.worker_pids():
        psutil.Process(pid).kill()
    for job in jobs:
        status, _, body = job.result()
        assert (status, error_of(body)) == (502, "scorer_unavailable")
    wait_for(lambda: health(service)["queue_length"] == 0 and service.slots_in_use() == 0, 2 * NOISE, "all settled")
    assert starts(calls()[before:]) == [], "the one had begun; the others were never run, and it not twice"


def test_a_web_tier_that_answers_too_late_is_a_504_in_our_form(pool: Pair) -> None:
    with front(pool, {"proxy_read_timeout 75s;": "proxy_read_timeout 1s;"}) as service:
        status, headers, body = service.request("POST", "/decide", slow(D1, 2.5))
        assert (status, error_of(body), headers["retry-after"]) == (504, "deadline_exceeded", "2")
        assert "web tier" in body["error"]["message"]
    wait_for(lambda: pool.slots_in_use() == 0, NOISE, "no slot held")


def test_the_applications_own_504_comes_first() -> None:
    with pair(REQUEST_BUDGET_S="1") as behind, front(behind) as service:
        status, _, body = service.request("POST", "/decide", slow(D1, 2.5))
        assert (status, error_of(body)) == (504, "deadline_exceeded")
        assert "web tier" not in body["error"]["message"]


def test_a_reload_of_the_web_tier_under_load_loses_nothing(service: Front) -> None:
    assert service.behind.web is not None
    with Load(service, threads=4) as load:
        for _ in range(2):
            old = set(service.behind.worker_pids())
            service.behind.web.send_signal(signal.SIGHUP)
            wait_for(lambda old=old: not old & set(service.behind.worker_pids()), 4 * NOISE, "new workers")
            load.answered(8)
    assert set(load.outcomes) == {"200"}, load.outcomes
    assert load.strangers == []


def test_a_restart_of_the_web_tier_under_load_ends_what_has_begun(service: Front) -> None:
    """SIGTERM: what has begun is answered; what comes meanwhile is a 502 that says to try again (failure test 14)."""
    assert service.behind.web is not None
    job = Background(lambda: service.post("/decide", slow(D1, 1.5)))
    wait_running(service)
    with Load(service, threads=3) as load:
        service.behind.web.send_signal(signal.SIGTERM)
        assert service.behind.web.wait(4 * NOISE) == 0
        assert job.result()[0] == 200
        service.behind.start_web()
        load.answered(4)
    assert set(load.outcomes) <= {"200", "502 scorer_unavailable"}, load.outcomes
    assert load.strangers == []


def test_a_body_that_does_not_come_ends_its_connection_and_reaches_nobody(pool: Pair) -> None:
    calls = pool.record_calls()
    before = len(calls())
    with front(pool, {"client_body_timeout 10s;": "client_body_timeout 1s;"}) as service, Wire(service) as wire:
        wire.send(head("/decide", 1000) + b'{"state"')
        assert wire.at_end()
        assert pool.slots_in_use() == 0
    assert len(calls()) == before


def test_a_stopped_scorer_under_load_is_503_and_nothing_else(service: Front) -> None:
    assert service.behind.scorer is not None
    with Load(service, threads=4) as load:
        service.behind.scorer.send_signal(signal.SIGTERM)
        assert service.behind.scorer.wait(2 * NOISE) == 0
        service.behind.start_scorer()
        service.behind.wait_ready()
        load.answered(4)
    assert set(load.outcomes) <= {"200", "503 scorer_unavailable"}, load.outcomes


def test_nginx_warns_of_nothing_and_logs_no_token(proxy: Front) -> None:
    lines = proxy.nginx_log().splitlines()
    assert [line for line in lines if re.search(r"\[(emerg|alert|crit)\]", line)] == []
    assert [line for line in lines if "[warn]" in line and "buffered to a temporary file" not in line] == []
    assert TOKEN not in proxy.nginx_log()
