"""Bodies and connections over real sockets (trouble.md ranks 1 and 9; architecture.md §4, tests 19 to 21, 26 to 28)."""

from __future__ import annotations

import json
import random
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from tests.harness import D1, TOKEN, Pair, pair, wait_for
from tests.process.support import (
    NOISE,
    Background,
    Wire,
    at_once,
    chunked,
    head,
    health,
    invariants,
    is_own,
    own_decision,
    padded,
    records,
    slow,
    starts,
    timed_post,
    wait_running,
    wait_slots,
    whole,
)

pytestmark = pytest.mark.timeout(90)

LIMIT = 1 << 20
QUEUE = 4
DATA = json.dumps(D1).encode()


@pytest.fixture(scope="module")
def pool() -> Iterator[Pair]:
    with pair(MAX_QUEUE=str(QUEUE), BODY_DEADLINE_S="1") as running:
        yield running


@pytest.fixture
def service(pool: Pair) -> Iterator[Pair]:
    yield pool
    invariants(pool)


# -- early answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 10_000, 60_000])
def test_a_connection_is_usable_after_an_early_answer_to_a_small_body(service: Pair, size: int) -> None:
    with Wire(service) as wire:
        for _ in range(3):
            wire.send(head("/decide", size, token="x" * 40) + b"{" * size)
            assert wire.json()[0] == 401
            body = own_decision()
            status, answer = wire.send(whole(body)).json()
            assert status == 200
            assert is_own(body, answer)


@pytest.mark.parametrize(
    "lines", [["SCRIPT_NAME: /elsewhere"], ["PATH_INFO: /health"], ["X-Forwarded-Proto: https", "X-Forwarded-Ssl: off"]]
)
def test_a_proxys_headers_move_nothing_whoever_sends_them(service: Pair, lines: list[str]) -> None:
    # Gunicorn believes them from the loopback address: the first one moved every route, which was a 500.
    with Wire(service) as wire:
        for _ in range(2):
            body = own_decision()
            data = json.dumps(body).encode()
            status, answer = wire.send(head("/decide", len(data), *lines) + data).json()
            assert status == 200
            assert is_own(body, answer)


def test_an_answer_comes_in_one_piece(service: Pair) -> None:
    with Wire(service) as wire:
        for _ in range(5):
            # The first packet to arrive is all that there is: a caller that waits wakes up once.
            received = wire.send(whole(own_decision())).socket.recv(1 << 20)
            answer_head, _, body = received.partition(b"\r\n\r\n")
            assert f"content-length: {len(body)}".encode() in answer_head.lower()


def test_a_pipelined_second_request_is_not_read_as_part_of_a_refused_one(service: Pair) -> None:
    body = own_decision()
    with Wire(service) as wire:
        wire.send(head("/decide", len(DATA), token=None) + DATA + whole(body))
        assert wire.json()[0] == 401
        status, answer = wire.json()
        assert status == 200
        assert is_own(body, answer)
    with Wire(service) as wire:
        wire.send(head("/nope", None, "Transfer-Encoding: chunked") + chunked([DATA]) + whole(body))
        assert wire.json()[0] == 404
        assert wire.json()[0] == 200


def test_a_body_that_looks_like_a_request_is_not_served(service: Pair) -> None:
    calls = service.record_calls()
    before = len(starts(calls()))
    smuggled = whole(D1)
    with Wire(service) as wire:
        wire.send(head("/decide", len(smuggled), token=None) + smuggled)
        assert wire.json()[0] == 401
        assert wire.send(head("/health", method="GET")).json()[0] == 200
    assert len(starts(calls())) == before


# -- Expect ----------------------------------------------------------------------------------------

EXPECT = "Expect: 100-continue"


@pytest.mark.parametrize(
    ("path", "token", "expected"),
    [("/decide", None, 401), ("/decide", "x" * 40, 401), ("/v1/systemone", None, 401), ("/nope", TOKEN, 404)],
)
def test_a_refused_caller_is_not_told_to_continue(service: Pair, path: str, token: str | None, expected: int) -> None:
    with Wire(service) as wire:
        assert wire.send(head(path, len(DATA), EXPECT, token=token)).response()[0] == expected


def test_a_caller_over_the_queue_or_the_limit_is_not_told_to_continue(service: Pair) -> None:
    with Wire(service) as wire:
        assert wire.send(head("/decide", LIMIT + 1, EXPECT)).response()[0] == 413
    running = Background(lambda: service.post("/decide", slow(D1, 0.8)))
    wait_running(service)
    others = [Background(lambda: service.post("/decide", D1)) for _ in range(QUEUE - 1)]
    wait_slots(service, QUEUE)
    with Wire(service) as wire:
        assert wire.send(head("/decide", len(DATA), EXPECT)).response()[0] == 429
    assert [job.result()[0] for job in [running, *others]] == [200] * QUEUE


def test_an_admitted_caller_is_told_to_continue_and_served(service: Pair) -> None:
    with Wire(service) as wire:
        for _ in range(2):
            body = own_decision()
            data = json.dumps(body).encode()
            assert wire.send(head("/decide", len(data), EXPECT)).response()[0] == 100
            status, answer = wire.send(data).json()
            assert status == 200
            assert is_own(body, answer)
        data = json.dumps(body).encode()
        assert wire.send(head("/decide", None, EXPECT, "Transfer-Encoding: chunked")).response()[0] == 100
        assert wire.send(chunked([data])).json()[0] == 200


def test_a_caller_who_expects_a_100_and_leaves_costs_nothing(service: Pair) -> None:
    for leave in ("close", "reset"):
        for token in (TOKEN, None):
            for _ in range(5):
                getattr(Wire(service).send(head("/decide", len(DATA), EXPECT, token=token)), leave)()
    wait_slots(service, 0, 2 * NOISE)
    assert not [record for record in records(service, "web") if record.get("code") == "internal_error"]


# -- time ------------------------------------------------------------------------------------------


def test_a_dripping_body_is_408_at_the_deadline(service: Pair) -> None:
    """A byte now and then keeps every single receive alive; the body as a whole is over its time."""
    for line, piece in [(f"Content-Length: {len(DATA) + 50}", b" "), ("Transfer-Encoding: chunked", b"1\r\n \r\n")]:
        with Wire(service) as wire:
            began = time.monotonic()
            wire.send(head("/decide", None, line))
            answer = Background(wire.json)
            while not answer.done() and time.monotonic() - began < 1 * NOISE:
                try:
                    wire.send(piece)
                except OSError:
                    break
                time.sleep(0.1)  # the dripping itself
            status, body = answer.result(5)
            assert (status, body["error"]["code"]) == (408, "request_timeout")
            assert 1 <= time.monotonic() - began < 1 * NOISE
            assert wire.at_end()
        wait_slots(service, 0, 2)


def test_a_body_that_never_comes_is_408_at_the_deadline_and_more_of_them_than_slots_free_every_thread(
    service: Pair,
) -> None:
    for _ in range(2):
        wires = [Wire(service).send(head("/decide", 1000)) for _ in range(QUEUE)]
        assert [wire.json()[0] for wire in wires] == [408] * QUEUE
        for wire in wires:
            wire.close()
    wait_slots(service, 0, 2)
    results = at_once([lambda: timed_post(service, "/decide", D1)] * QUEUE)
    assert [status for status, *_ in results] == [200] * QUEUE


def test_a_slow_body_within_the_deadline_is_served(service: Pair) -> None:
    data = whole(D1)
    with Wire(service) as wire:
        for start in range(0, len(data), 60):
            wire.send(data[start : start + 60])
            time.sleep(0.03)  # the slowness itself
        assert wire.json()[0] == 200


# -- size ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["declared", "one chunk", "many chunks"])
@pytest.mark.parametrize(("size", "expected"), [(LIMIT, 200), (LIMIT + 1, 413)])
def test_the_limit_to_the_byte(service: Pair, form: str, size: int, expected: int) -> None:
    data = padded(size)
    if form == "declared":
        request = head("/decide", size) + data
    else:
        step = size if form == "one chunk" else 8191
        pieces = [data[start : start + step] for start in range(0, size, step)]
        request = head("/decide", None, "Transfer-Encoding: chunked") + chunked(pieces)
    with Wire(service) as wire:
        status, body = wire.send(request).json()
        assert status == expected, body
        if status == 413:
            assert body["error"]["code"] == "request_too_large"


def test_a_small_json_with_megabytes_of_padding_in_chunks_is_413(service: Pair) -> None:
    """trouble.md rank 1 (b)."""
    pieces = [DATA] + [b" " * 65536] * 48
    with Wire(service) as wire:
        assert wire.send(head("/decide", None, "Transfer-Encoding: chunked") + chunked(pieces)).json()[0] == 413


def test_an_endless_chunked_body_is_413_near_the_limit_and_costs_little_memory(service: Pair) -> None:
    """trouble.md rank 1 (c)."""
    processes = [psutil.Process(pid) for pid in service.worker_pids()]
    before = [process.memory_info().rss for process in processes]
    peak = 0
    piece = b"10000\r\n" + b"y" * 65536 + b"\r\n"
    with Wire(service) as wire:
        wire.send(head("/decide", None, "Transfer-Encoding: chunked"))
        sent = 0
        try:
            while sent < 512:
                wire.send(piece)
                sent += 1
                peak = max(peak, *(now.memory_info().rss - then for now, then in zip(processes, before, strict=True)))
        except OSError:
            pass
        assert wire.json()[0] == 413
    # The limit, what the drain takes after the answer, and what two sockets buffer.
    assert sent * 65536 < LIMIT + (9 << 20) + (16 << 20)
    assert peak < 8 << 20


def test_a_compression_bomb_is_413_and_costs_little_memory(service: Pair) -> None:
    bomb = zlib.compressobj(9, wbits=31)
    data = b"".join(bomb.compress(b" " * (1 << 20)) for _ in range(256)) + bomb.flush()
    processes = [psutil.Process(pid) for pid in service.worker_pids()]
    before = [process.memory_info().rss for process in processes]
    with Wire(service) as wire:
        assert wire.send(head("/decide", len(data), "Content-Encoding: gzip") + data).json()[0] == 413
    assert all(now.memory_info().rss - then < 8 << 20 for now, then in zip(processes, before, strict=True))


# -- broken bodies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n{}\r\n0\r\n\r\n",
        b"-1\r\n{}\r\n0\r\n\r\n",
        b"2\r\n{}XX0\r\n\r\n",
        b"2;x=\r\n\r\n",
        b"\r\n\r\n",
        b"0x2\r\n{}\r\n0\r\n\r\n",
        b"ffffffffffffffffffff\r\n{}",
    ],
)
def test_a_malformed_chunk_is_422_and_ends_the_connection(service: Pair, body: bytes) -> None:
    with Wire(service) as wire:
        wire.send(head("/decide", None, "Transfer-Encoding: chunked") + body)
        wire.socket.shutdown(socket.SHUT_WR)
        status, answer = wire.json()
        assert (status, answer["error"]["code"]) in [(422, "invalid_request"), (413, "request_too_large")]


def test_chunk_extensions_and_trailers_are_passed_over(service: Pair) -> None:
    coded = b"%x;name=value\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(DATA), DATA)
    with Wire(service) as wire:
        for _ in range(2):
            assert wire.send(head("/decide", None, "Transfer-Encoding: chunked") + coded).json()[0] == 200


@pytest.mark.parametrize("line", [f"Content-Length: {len(DATA) + 10}", "Transfer-Encoding: chunked"])
def test_a_truncated_body_is_422_and_never_scored(service: Pair, line: str) -> None:
    calls = service.record_calls()
    before = len(starts(calls()))
    data = DATA if "Length" in line else b"%x\r\n%b\r\n" % (len(DATA), DATA)
    with Wire(service) as wire:
        wire.send(head("/decide", None, line) + data)
        wire.socket.shutdown(socket.SHUT_WR)
        status, answer = wire.json()
        assert (status, answer["error"]["code"]) == (422, "invalid_request")
        assert wire.at_end()
    assert len(starts(calls())) == before


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: +5"],
        ["Content-Length: -5"],
        ["Content-Length: 5 5"],
        ["Content-Length: 5, 5"],
        ["Content-Length: "],
        ["Content-Length: 0x10"],
        ["Content-Length: \xb2"],
        ["Content-Length: " + "9" * 5000],
        ["Content-Length: 99999999999999999999"],
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5", "Content-Length: 5"],
        ["Content-Length: 1_0"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 5"],
        ["Transfer-Encoding: chunked, chunked"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding:\x0bchunked"],
        ["Transfer-Encoding: gzip, chunked"],
    ],
)
def test_an_odd_length_is_refused_and_what_follows_is_not_a_request_of_its_own(service: Pair, lines: list[str]) -> None:
    calls = service.record_calls()
    before = len(starts(calls()))
    with Wire(service) as wire:
        wire.send(head("/decide", None, *lines) + b"0\r\n\r\n" + whole(D1))
        status, _, _ = wire.response()
        assert status in (400, 413, 415, 422, 501), status
        rest = []
        while True:
            try:
                rest.append(wire.response()[0])
            except (EOFError, ConnectionResetError):
                break
        assert 200 not in rest
    assert len(starts(calls())) == before


def test_an_upgrade_to_h2c_with_a_body_is_served_as_http_1(service: Pair) -> None:
    body = own_decision()
    data = json.dumps(body).encode()
    lines = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"]
    with Wire(service) as wire:
        status, answer = wire.send(head("/decide", len(data), *lines) + data).json()
        assert status == 200
        assert is_own(body, answer)


def test_a_prior_knowledge_http_2_preface_harms_nobody(service: Pair) -> None:
    with Wire(service) as wire:
        wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        with suppress(EOFError, ConnectionResetError):
            assert wire.response()[0] in (400, 505)


def test_http_1_0_is_served(service: Pair) -> None:
    with Wire(service) as wire:
        wire.send(head("/decide", len(DATA)).replace(b"HTTP/1.1", b"HTTP/1.0") + DATA)
        assert wire.json()[0] == 200
        assert wire.at_end()


def test_random_bytes_never_cost_the_service(service: Pair) -> None:
    rng = random.Random(20261130)
    for _ in range(60):
        noise = rng.randbytes(rng.randrange(1, 400))
        prefix = rng.choice([b"", head("/decide", 50), head("/decide", None, "Transfer-Encoding: chunked"), b"POST "])
        with Wire(service) as wire:
            try:
                wire.send(prefix + noise)
                wire.socket.shutdown(socket.SHUT_WR)
                status = wire.response()[0]
                assert status < 500 or status in (501, 505), (status, prefix, noise)
            except (EOFError, OSError):
                pass
    wait_for(lambda: health(service)["slots_in_use"] == 0, 5)
