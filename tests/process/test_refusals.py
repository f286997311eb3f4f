"""What gunicorn answers in place of the application, over raw connections (architecture.md §1.8, trouble.md rank 19;
failure test 28): its statuses, our JSON, nothing quoted, and never a second request."""

from __future__ import annotations

import contextlib

import pytest

from tests.harness import D1, TOKEN, Pair, strict_json
from tests.process.support import Wire, chunked, head, whole

SECRET = "caller-text-4711"
SMUGGLED = whole(D1)

REFUSED: dict[str, tuple[int, bytes]] = {
    "no request line": (400, f"{SECRET}\r\n\r\n".encode()),
    "a method in lower case": (400, f"post /decide?{SECRET} HTTP/1.1\r\nHost: x\r\n\r\n".encode()),
    "a version that is none": (400, f"GET /{SECRET} HTTP/x\r\nHost: x\r\n\r\n".encode()),
    "a header name with a space": (400, head("/v1/systemone", 2, f"X {SECRET}: 1") + b"{}"),
    "a folded header": (400, head("/decide", 2, f"X-A: 1\r\n {SECRET}") + b"{}"),
    "a control character in a header": (400, head("/decide", 2, f"X-A: \x00{SECRET}") + b"{}"),
    "two lengths": (400, head("/decide", 2, "Content-Length: 3") + b"{}" + SMUGGLED),
    "a length with a plus": (400, head("/decide", "+2") + b"{}" + SMUGGLED),
    "a length in hexadecimal": (400, head("/decide", "0x2") + b"{}" + SMUGGLED),
    "a length and chunks": (400, head("/decide", 4, "Transfer-Encoding: chunked") + b"0\r\n\r\n" + SMUGGLED),
    "chunks twice": (400, head("/decide", None, "Transfer-Encoding: chunked, chunked") + b"0\r\n\r\n" + SMUGGLED),
    "an unknown transfer coding": (501, head("/decide", None, "Transfer-Encoding: xchunked") + SMUGGLED),
    "chunks hidden behind a coding": (501, head("/decide", None, f"Transfer-Encoding: {SECRET}, chunked") + SMUGGLED),
    "an unknown expectation": (417, head("/decide", 2, f"Expect: {SECRET}") + b"{}" + SMUGGLED),
    "a long request line": (414, head(f"/decide?{SECRET}{'x' * 9000}", 2) + b"{}"),
    "a long header": (431, head("/decide", 2, f"X-A: {SECRET}{'x' * 70_000}") + b"{}"),
    "many headers": (431, head("/decide", 2, *[f"X-A{n}: {SECRET}" for n in range(200)]) + b"{}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_gunicorn_refuses_is_answered_in_our_form_and_ends_the_connection(served: Pair, name: str) -> None:
    status, request = REFUSED[name]
    calls = served.record_calls()
    before = calls()
    with Wire(served) as wire:
        wire.send(request)
        found, headers, body = wire.response()
        assert (found, headers["content-type"]) == (status, "application/json"), body[:200]
        answer = strict_json(body)
        assert answer["error"]["code"] == "bad_request"
        assert answer["error"]["message"]
        assert headers["x-request-id"] == headers["x-typesafe-request-id"] != ""
        assert headers["connection"] == "close"
        assert SECRET.encode() not in body
        assert wire.at_end(), "what came after was taken for a request"
    assert calls() == before
    assert SECRET not in served.log("web")
    assert served.post("/decide", D1)[0] == 200


def test_a_refusal_whose_path_is_not_known_is_in_both_shapes(served: Pair) -> None:
    with Wire(served) as wire:
        _, _, body = wire.send(REFUSED["a version that is none"][1]).response()
    answer = strict_json(body)
    assert answer["detail"] == {"error_type": "api_usage_error", "message": answer["error"]["message"]}


def test_the_id_of_a_refusal_is_in_the_log(served: Pair) -> None:
    with Wire(served) as wire:
        _, headers, _ = wire.send(REFUSED["two lengths"][1]).response()
    assert headers["x-request-id"] in served.log("web")


@pytest.mark.parametrize("tail", [b"X-A: 1", b"Content-Length: 5", b"Transfer-Encoding: chunked"])
def test_trailers_are_no_headers_and_no_request(served: Pair, tail: bytes) -> None:
    """The next request on the connection is the next one that was sent, and nothing in between."""
    body = chunked([whole(D1).partition(b"\r\n\r\n")[2]])[:-2] + tail + b"\r\n\r\n"
    with Wire(served) as wire:
        wire.send(head("/decide", None, "Transfer-Encoding: chunked") + body)
        assert wire.json()[0] in (200, 400, 422)
        with contextlib.suppress(EOFError, OSError):  # a closed connection is as good
            assert wire.send(head("/health", method="GET")).json()[0] == 200
    assert TOKEN not in served.log("web")
