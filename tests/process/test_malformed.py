"""Requests that are not quite HTTP, or not quite ours, byte for byte at gunicorn's port: what each may get.

architecture.md §4, tests 26 to 30; trouble.md ranks 19, 20. Bodies that are odd are in test_body_http.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from tests.harness import D1, TOKEN, Pair, pair
from tests.process.support import Wire, health, invariants, starts

pytestmark = pytest.mark.timeout(60)

AUTH = f"Authorization: Bearer {TOKEN}\r\n".encode()
DATA = json.dumps(D1).encode()
BODY = b"Content-Length: %d\r\n\r\n%b" % (len(DATA), DATA)
HOST = b"Host: x\r\n"


def post(path: bytes = b"/decide", more: bytes = b"", auth: bytes = AUTH) -> bytes:
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + auth + more + BODY


def get(path: bytes = b"/health", version: bytes = b"HTTP/1.1", more: bytes = b"", method: bytes = b"GET") -> bytes:
    return method + b" " + path + b" " + version + b"\r\n" + HOST + more + b"\r\n"


#: What is sent, and the statuses that are right. 0: the connection may end without an answer.
TABLE: dict[str, tuple[bytes, set[int]]] = {
    # -- the request line
    "no target": (b"GET\r\n\r\n", {400}),
    "HTTP/0.9": (b"GET /health\r\n\r\n", {0, 400}),
    "a version that is none": (get(version=b"HTTP/1.x"), {400}),
    "a version of its own": (get(version=b"ICY/1.1"), {400}),
    "HTTP/3.0 in the clear": (get(version=b"HTTP/3.0"), {400, 505}),
    "four words": (get(b"/health /decide"), {400}),
    "a tab for a space": (b"GET\t/health\tHTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "a method in lower case": (get(method=b"get"), {400, 405}),
    "a method with a sign": (get(method=b"G@T"), {400, 405}),
    "a method of 3000 letters": (get(method=b"G" * 3000), {400, 405, 414, 501}),
    "an empty method": (b" /health HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "a method that no route has": (get(method=b"BREW"), {405}),
    "TRACE": (get(b"/decide", method=b"TRACE"), {405}),
    "CONNECT": (get(b"x:80", method=b"CONNECT"), {400, 404, 405}),
    "OPTIONS of the server": (get(b"*", method=b"OPTIONS"), {400, 404, 405}),
    "a target of another host": (get(b"http://other.example/health"), {200, 400, 404}),
    "a target without a slash": (get(b"health"), {400, 404}),
    "a target of 9000 letters": (get(b"/" + b"a" * 9000), {414}),
    "a NUL in the target": (get(b"/health\x00"), {400, 404}),
    "a high byte in the target": (get(b"/h\xe9alth\xff"), {400, 404}),
    "a control character in the target": (get(b"/health\x0b"), {400, 404}),
    "empty lines first": (b"\r\n\r\n" + get(), {200, 400}),
    "nothing but a line": (b"\r\n", {0, 400}),
    "TLS on the clear port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n", {400}),
    # -- headers
    "a header without a colon": (get(more=b"X-Odd\r\n"), {400}),
    "a space before the colon": (get(more=b"X-Odd : 1\r\n"), {400}),
    "a header without a name": (get(more=b": 1\r\n"), {400}),
    "a name with a space": (get(more=b"X Odd: 1\r\n"), {400}),
    "a name with a high byte": (get(more=b"X-\xe9: 1\r\n"), {400}),
    "a folded header": (get(more=b"X-Odd: 1\r\n  2\r\n"), {400}),
    "a NUL in a value": (get(more=b"X-Odd: a\x00b\r\n"), {400}),
    "a bare CR in a value": (get(more=b"X-Odd: a\rb\r\n"), {400}),
    "a bare LF for a line's end": (b"GET /health HTTP/1.1\nHost: x\n\n", {0, 400}),
    "a value of 9000 letters": (get(more=b"X-Odd: " + b"a" * 9000 + b"\r\n"), {400, 431}),
    "a megabyte of Authorization": (get(more=b"Authorization: Bearer " + b"a" * (1 << 20) + b"\r\n"), {400, 431}),
    "101 headers": (get(more=b"".join(b"X-%d: 1\r\n" % n for n in range(101))), {400, 431}),
    "no Host": (b"GET /health HTTP/1.1\r\n\r\n", {200, 400}),
    "two Hosts": (get(more=b"Host: y\r\n"), {200, 400}),
    **{
        f"Host: {host!r}": (b"GET /health HTTP/1.1\r\nHost: " + host + b"\r\n\r\n", {200, 400})
        for host in (b"", b"a b", b"[::1", b"x:99999", b"\xe9", b"..", b"a/b", b"a@b", b"xn--zzzzzz--", b"," * 300)
    },
    "an unknown expectation": (post(more=b"Expect: a-miracle\r\n"), {200, 417}),
    "an unknown transfer coding": (
        b"POST /decide HTTP/1.1\r\n" + HOST + AUTH + b"Transfer-Encoding: br\r\n\r\n",
        {400, 501},
    ),
    "a head that ends in the middle": (b"POST /decide HTTP/1.1\r\nHost: x\r\nAuthoriz", {0, 400}),
    # -- paths that are nearly ours
    "a slash more": (post(b"/decide/"), {404}),
    "a slash before": (post(b"//decide"), {200, 404}),
    "capitals": (post(b"/DECIDE"), {404}),
    "dots": (post(b"/x/../decide"), {404}),
    "an escaped slash": (post(b"/decide%2fshared"), {200, 404, 422}),
    "a NUL at the end": (post(b"/decide%00"), {404}),
    "a broken escape": (post(b"/decide%zz"), {404}),
    "an escaped letter": (post(b"/%64ecide"), {200}),
    "a query": (post(b"/decide?x=1&y"), {200}),
    # -- whose request is it
    "no Authorization": (post(auth=b""), {401}),
    "another scheme": (post(auth=b"Authorization: Basic eDp5\r\n"), {401}),
    "a high byte in the token": (post(auth=b"Authorization: Bearer caf\xe9\r\n"), {401}),
    "two tokens": (post(auth=AUTH + b"Authorization: Bearer other\r\n"), {400, 401}),
    "a name with an underscore": (post(auth=AUTH.replace(b"Authorization", b"Authoriz_ation")), {400, 401}),
    # -- what HTTP allows, and is served
    "GET by its absolute path": (get(), {200}),
    "HEAD": (get(method=b"HEAD", more=b"Connection: close\r\n"), {200}),
    "a scheme in lower case": (post(auth=AUTH.replace(b"Bearer", b"bearer")), {200}),
    "an unread Content-Type": (post(more=b"Content-Type: text/html; charset=utf-7\r\n"), {200}),
    "a request id that is none": (post(more=b"X-Request-ID: \xe9; drop\r\n"), {200}),
    "an upgrade to WebSocket": (get(more=b"Connection: Upgrade\r\nUpgrade: websocket\r\n"), {200}),
}


@pytest.fixture(scope="module")
def service() -> Iterator[Pair]:
    with pair() as running:
        yield running


@pytest.mark.parametrize("name", TABLE)
def test_an_odd_request_gets_what_it_should_and_is_never_scored_unless_it_is_served(service: Pair, name: str) -> None:
    sent, right = TABLE[name]
    calls = service.record_calls()
    before = len(starts(calls()))
    try:
        with Wire(service, 10) as wire:
            wire.send(sent)
            if 0 in right:
                wire.socket.shutdown(socket.SHUT_WR)
            status, headers, body = wire.response()
    except (EOFError, ConnectionResetError, BrokenPipeError):
        status, headers, body = 0, {}, b""
    assert status in right, (status, body[:200])
    if headers.get("content-type") == "application/json" and status >= 400:
        error = json.loads(body)["error"]
        assert error["code"]
        assert error["message"]
    # Nothing that came is repeated: not in gunicorn's own pages either.
    assert TOKEN.encode() not in body
    scored = len(starts(calls())) - before
    assert scored == (status == 200 and sent.startswith(b"POST"))


def test_after_all_of_them_the_service_is_whole(service: Pair) -> None:
    for sent, _ in TABLE.values():
        try:
            with Wire(service, 10) as wire:
                wire.send(sent)
        except OSError:
            continue
    assert health(service)["slots_in_use"] >= 0
    invariants(service)
