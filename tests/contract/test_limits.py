"""Contract § Limits and errors: MAX_TOKENS, MAX_DECISIONS, MAX_BODY_BYTES, MAX_QUEUE."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.helpers import (
    ROUTES,
    assert_error,
    assert_refused,
    changed,
    gated,
    hooked,
    in_background,
    shared,
    wait_until_in_use,
)
from tests.harness import BEARER, D1, TOKEN, Local, Pair, decision, pair, strict_json, wait_for

MIB = 1 << 20


@pytest.fixture(scope="module")
def small() -> Iterator[Local]:
    """Low limits in one service."""
    with hooked(MAX_TOKENS="50", MAX_DECISIONS="2", MAX_QUEUE="2", MAX_BODY_BYTES="2000") as service:
        yield service


@pytest.fixture(scope="module")
def busy() -> Iterator[Pair]:
    """Real processes, two slots; a state that sleeps keeps one busy."""
    with pair(MAX_QUEUE="2", MAX_BODY_BYTES="100000") as service:
        yield service


# -- MAX_DECISIONS ------------------------------------------------------------------------------------------------


def rows(*modes: tuple[int, str]) -> dict[str, Any]:
    """A shared body with a decision of so many options and such orderings each."""
    return shared(
        *(
            decision(f"d{number}", [f"o{i}" for i in range(size)], orderings=mode)
            for number, (size, mode) in enumerate(modes)
        )
    )


TAKEN = {
    "64 plain": [(2, "none")] * 64,
    "4 x 16 rotations": [(16, "rotations")] * 4,
    "10 x 3! and 4 plain": [(3, "all")] * 10 + [(2, "none")] * 4,
    "2 x 4! and 16 rotations": [(4, "all")] * 2 + [(16, "rotations")],
}
TOO_MANY = {
    "65 plain": [(2, "none")] * 65,
    "4 x 16 rotations and 1 plain": [(16, "rotations")] * 4 + [(2, "none")],
    "11 x 3!": [(3, "all")] * 11,
    "3 x 4!": [(4, "all")] * 3,
}


@pytest.mark.parametrize("modes", TAKEN.values(), ids=TAKEN)
def test_max_decisions_orderings_are_scored(service: Local, modes: list[tuple[int, str]]) -> None:
    status, answer = service.post("/decide/shared", rows(*modes))
    assert (status, answer["timing"]["batch_size"]) == (200, 64)


@pytest.mark.parametrize("modes", TOO_MANY.values(), ids=TOO_MANY)
def test_max_decisions_counts_orderings_after_expansion_and_one_more_is_422(
    service: Local, modes: list[tuple[int, str]]
) -> None:
    assert "64" in assert_refused(service, "/decide/shared", rows(*modes))


def test_max_decisions_holds_on_decide_too(small: Local) -> None:
    small.engine.reset()
    assert small.post("/decide", decision("d", "ab", state="s", orderings="rotations"))[0] == 200
    assert_refused(small, "/decide", decision("d", "abc", state="s", orderings="rotations"))


# -- MAX_TOKENS ---------------------------------------------------------------------------------------------------


def words(count: int) -> dict[str, Any]:
    """A /decide body for which the fake engine, which counts words, finds so many more tokens than for none."""
    return {
        "id": "d",
        "question": "q",
        "options": [{"id": "a", "description": "a"}, {"id": "b", "description": "b"}],
        "state": " ".join(["w"] * count),
    }


def test_a_call_of_max_tokens_is_scored_and_one_token_more_is_422_naming_both_numbers(small: Local) -> None:
    small.engine.reset()
    base = small.post("/decide", words(1))[1]["input_tokens"]
    status, result = small.post("/decide", words(51 - base))
    assert (status, result["input_tokens"]) == (200, 50)
    message = assert_refused(small, "/decide", words(52 - base))
    assert "51" in message
    assert "50" in message


def test_max_tokens_applies_to_a_whole_call_the_state_plus_all_its_questions(small: Local) -> None:
    small.engine.reset()
    long = [{**decision(name, "ab"), "question": "w " * 25} for name in "xy"]
    assert small.post("/decide/shared", shared(long[0]))[0] == 200
    assert small.post("/decide/shared", shared(long[1]))[0] == 200
    assert_refused(small, "/decide/shared", shared(*long))


def test_a_shared_request_is_422_as_a_whole_when_only_a_later_call_is_too_long(service: Local) -> None:
    decisions = [decision(f"d{i}", "ab") for i in range(16)] + [{**decision("last", "ab"), "question": "w " * 8200}]
    assert_refused(service, "/decide/shared", shared(*decisions))


def test_what_is_served_is_never_cut(service: Local) -> None:
    state = " ".join(str(i) for i in range(8000))
    assert service.post("/decide", changed(D1, state=state))[0] == 200
    assert service.engine.calls[0]["state"] == state


@pytest.mark.parametrize("path", ROUTES)
def test_over_max_tokens_is_422_on_every_route(small: Local, path: str) -> None:
    small.engine.reset()
    assert_refused(small, path, changed(ROUTES[path], state="w " * 60))


# -- MAX_BODY_BYTES -----------------------------------------------------------------------------------------------


def sized(size: int) -> bytes:
    """A good /decide body of so many bytes, padded after its end."""
    body = json.dumps(D1).encode()
    return body + b" " * (size - len(body))


@pytest.mark.parametrize("path", ROUTES)
def test_a_body_over_the_limit_is_413_and_one_at_the_limit_is_read(small: Local, path: str) -> None:
    small.engine.reset()
    body = json.dumps(ROUTES[path]).encode()
    assert small.post(path, body + b" " * (2000 - len(body)))[0] in (200, 422)
    prepared = small.engine.prepared
    assert_error(small.post(path, body + b" " * (2001 - len(body))), 413, "request_too_large")
    assert small.engine.prepared == prepared


def test_the_default_limit_is_1_mib(service: Local) -> None:
    assert service.post("/decide", sized(MIB))[0] == 200
    assert_error(service.post("/decide", sized(MIB + 1)), 413, "request_too_large")


def test_bytes_are_counted_and_not_characters(small: Local) -> None:
    small.engine.reset()
    body = json.dumps(changed(D1, state="\u00e9" * 1000), ensure_ascii=False)
    assert len(body) < 2000 < len(body.encode())
    assert_error(small.post("/decide", body.encode()), 413, "request_too_large")


def test_a_compressed_body_is_measured_after_decompression_too(small: Local) -> None:
    small.engine.reset()
    for size, status in ((2000, 200), (2001, 413)):
        packed = gzip.compress(sized(size))
        assert len(packed) < 2000
        assert small.post("/decide", packed, {**BEARER, "Content-Encoding": "gzip"})[0] == status


def chunked(
    port: int, chunks: Iterator[bytes] | list[bytes], finish: bool = True, path: str = "/decide"
) -> tuple[int, Any]:
    """POST with ``Transfer-Encoding: chunked`` on a bare socket, one chunk at a time, until the server answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        try:
            for chunk in chunks:
                connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            if finish:
                connection.sendall(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        return read_response(connection)


def read_response(connection: socket.socket) -> tuple[int, Any]:
    """Status and strictly parsed JSON body of the response on a bare socket."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    text = response.read()
    assert response.getheader("Content-Type") == "application/json", text[:200]
    return response.status, strict_json(text)


def test_a_chunked_body_is_read_and_over_the_limit_refused_rather_than_cut(busy: Pair) -> None:
    good = json.dumps(D1).encode()
    assert chunked(busy.port, [good[:50], good[50:]])[0] == 200
    big = json.dumps(changed(D1, state="x" * 120_000)).encode()
    assert_error(chunked(busy.port, [big[i : i + 8000] for i in range(0, len(big), 8000)]), 413, "request_too_large")
    # Cut at the limit it would be a good request followed by white space.
    assert_error(chunked(busy.port, [good] + [b" " * 8000] * 40), 413, "request_too_large")


@pytest.mark.parametrize("declared", ["999999999", "9" * 30])
def test_a_declared_length_over_the_limit_is_413_without_reading_the_body(busy: Pair, declared: str) -> None:
    with socket.create_connection(("127.0.0.1", busy.port), timeout=5) as connection:
        connection.sendall(
            f"POST /decide HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Length: {declared}\r\n\r\n".encode()
        )
        # Not a byte of the body is sent, so an answer proves that none was waited for.
        assert_error(read_response(connection), 413, "request_too_large")


@pytest.mark.parametrize(
    "declared", ["\u00b2".encode(), b"\xb2", b"+5", b"abc", b"-1", "\u0661".encode(), b"0x10", b"1_0"]
)
def test_a_content_length_that_is_not_ascii_digits_is_not_trusted_and_crashes_nothing(
    busy: Pair, declared: bytes
) -> None:
    reply = busy.raw(
        b"POST /decide HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
        + TOKEN.encode()
        + b"\r\nConnection: close\r\nContent-Length: "
        + declared
        + b"\r\n\r\n",
        timeout=3,
    )
    assert reply.split(b" ", 2)[1] in (b"400", b"422"), reply[:200]
    assert busy.post("/decide", D1)[0] == 200


@pytest.mark.parametrize("declared", ["\u00b2", "+5", "abc", "-1", "\u0661", "1_0", " 5"])
def test_the_application_itself_trusts_only_ascii_digits(service: Local, declared: str) -> None:
    # Behind gunicorn such a header never gets here (the test above).
    response = service.client.post(
        "/decide", data=b"{}", headers=BEARER, environ_overrides={"CONTENT_LENGTH": declared}
    )
    assert response.status_code in (413, 422)
    assert response.json["error"]["code"]


# -- MAX_QUEUE ----------------------------------------------------------------------------------------------------


def test_max_queue_posts_may_be_in_progress_and_the_next_is_429_over_all_routes_together(small: Local) -> None:
    small.engine.reset()
    with in_background(small) as post, gated(small) as gate:
        waiting = [post("/decide", D1), post("/v1/systemone", ROUTES["/v1/systemone"])]
        wait_until_in_use(small, 2)
        for path, body in ROUTES.items():
            answer = small.post(path, body)
            assert_error(answer, 429, "busy")
        assert small.client.get("/health").status_code == 200
        gate.open()
        assert [one.result()[0] for one in waiting] == [200, 200]
    assert small.post("/decide", D1)[0] == 200


def test_a_429_asks_to_come_back_in_1_to_5_whole_seconds(small: Local) -> None:
    small.engine.reset()
    with in_background(small) as post, gated(small) as gate:
        waiting = [post("/decide", D1) for _ in range(2)]
        wait_until_in_use(small, 2)
        response = small.client.post("/decide", json=D1, headers=BEARER)
        gate.open()
        assert [one.result()[0] for one in waiting] == [200, 200]
    assert response.status_code == 429
    assert response.headers["Retry-After"] in "12345"
    assert int(response.headers["Retry-After-Ms"]) == 1000 * int(response.headers["Retry-After"])


@pytest.mark.parametrize("body", [b"{not json", b"x" * 3000], ids=["bad JSON", "too large"])
def test_429_comes_before_413_and_422(small: Local, body: bytes) -> None:
    small.engine.reset()
    with in_background(small) as post, gated(small) as gate:
        waiting = [post("/decide", D1) for _ in range(2)]
        wait_until_in_use(small, 2)
        assert_error(small.post("/decide", body), 429, "busy")
        gate.open()
        assert [one.result()[0] for one in waiting] == [200, 200]


def test_429_is_answered_before_the_body_is_read(busy: Pair) -> None:
    body = json.dumps(D1).encode()
    head = f"POST /decide HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    connections = [socket.create_connection(("127.0.0.1", busy.port), timeout=10) for _ in range(3)]
    try:
        for connection in connections[:2]:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-1])
        wait_for(lambda: busy.slots_in_use() == 2, what="both slots in use")
        # A body is announced and never sent.
        connections[2].sendall(f"{head}Content-Length: 500\r\n\r\n".encode())
        assert_error(read_response(connections[2]), 429, "busy")
        for connection in connections[:2]:
            connection.sendall(body[-1:])
        assert [read_response(connection)[0] for connection in connections[:2]] == [200, 200]
    finally:
        for connection in connections:
            connection.close()


def test_a_slow_upload_holds_a_slot_and_its_end_frees_it(busy: Pair) -> None:
    with socket.create_connection(("127.0.0.1", busy.port), timeout=10) as connection:
        connection.sendall(
            f"POST /decide HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Length: 500\r\n\r\n{".encode()
        )
        wait_for(lambda: busy.slots_in_use() == 1, what="the upload's slot")
    wait_for(lambda: busy.slots_in_use() == 0, what="its release")


def test_a_body_that_does_not_arrive_within_body_deadline_s_is_408() -> None:
    with pair(BODY_DEADLINE_S="0.5") as service:
        head = (
            f"POST /decide HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 500\r\n\r\n".encode()
        )
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
            connection.sendall(head)
            assert_error(read_response(connection), 408, "request_timeout")
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
            connection.sendall(head)
            try:
                for _ in range(40):  # it drips, so that no single read ever waits long
                    connection.sendall(b" ")
                    time.sleep(0.05)
            except (BrokenPipeError, ConnectionResetError):
                pass
            assert_error(read_response(connection), 408, "request_timeout")
        assert service.post("/decide", D1)[0] == 200
        assert service.slots_in_use() == 0
