"""Reading a body (web/body.py): contract § Limits; trouble.md ranks 1, 9, 19; architecture.md §1.8, §1.9;
wire/systemone.md §2.1, §12 E14."""

from __future__ import annotations

import gzip
import io
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import wait_for
from web import body
from web.body import BodyReader
from web.errors import ApiError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMIT = 1000
READER = BodyReader(LIMIT, 30.0)


class Stream:
    """A ``wsgi.input`` that gives at most ``step`` bytes a read, then ends or raises; counts what was taken."""

    def __init__(self, data: bytes, step: int = 1 << 20, then: Exception | None = None) -> None:
        self._data, self._step, self._then = io.BytesIO(data), step, then
        self.taken, self.reads = 0, 0

    def read(self, size: int) -> bytes:
        assert 0 < size <= 64 * 1024, "an unbounded read"
        self.reads += 1
        data = self._data.read(min(size, self._step))
        self.taken += len(data)
        if not data and self._then is not None:
            raise self._then
        return data


class Endless:
    """A ``wsgi.input`` without an end."""

    def __init__(self) -> None:
        self.taken = 0

    def read(self, size: int) -> bytes:
        self.taken += size
        return b" " * size


class Socket:
    """What BodyReader and a test's stream share of a connection."""

    def __init__(self, broken: bool = False) -> None:
        self.sent = b""
        self.shut: list[int] = []
        self.closed_for_reading = threading.Event()
        self._broken = broken

    def sendall(self, data: bytes) -> None:
        if self._broken:
            raise BrokenPipeError(32, "Broken pipe")
        self.sent += data

    def settimeout(self, seconds: float | None) -> None:
        self.timeout = seconds

    def shutdown(self, how: int) -> None:
        self.shut.append(how)
        self.closed_for_reading.set()
        if self._broken:
            raise OSError(107, "not connected")


def environ(stream: Any, declared: str | None = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"wsgi.input": stream, **more}
    if declared is not None:
        found["CONTENT_LENGTH"] = declared
    return found


def read(data: bytes, encoding: str | None = None, declared: str | None = None, reader: BodyReader = READER) -> bytes:
    more = {} if encoding is None else {"HTTP_CONTENT_ENCODING": encoding}
    return reader.read(environ(Stream(data), declared, **more))


def refused(kind: str, call: Callable[..., Any], *args: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(*args)
    assert caught.value.kind == kind
    return caught.value


# -- plain bodies ---


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT])
def test_a_body_up_to_the_limit_is_read_whole_whatever_its_pieces(size: int, step: int, declared: bool) -> None:
    data = bytes(i % 251 for i in range(size))
    assert READER.read(environ(Stream(data, step), str(size) if declared else None)) == data


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("size", [LIMIT + 1, 3 * LIMIT])
def test_an_undeclared_body_over_the_limit_is_413_and_reading_stops_one_byte_past_it(size: int, step: int) -> None:
    stream = Stream(b"x" * size, step)
    message = refused("request_too_large", READER.read, environ(stream)).message
    assert str(LIMIT) in message
    assert stream.taken == LIMIT + 1


def test_good_json_followed_by_padding_over_the_limit_is_413() -> None:
    refused("request_too_large", read, b"{}" + b" " * (3 * LIMIT))


def test_an_endless_body_is_413_near_the_limit() -> None:
    stream = Endless()
    refused("request_too_large", READER.read, environ(stream))
    assert stream.taken == LIMIT + 1


@pytest.mark.parametrize("declared", [str(LIMIT + 1), "2097152", "9" * 18, "1" * 5000, "0" * 30 + "9999"])
def test_a_declared_length_over_the_limit_is_413_without_reading_a_byte(declared: str) -> None:
    stream = Stream(b"{}")
    refused("request_too_large", READER.read, environ(stream, declared))
    assert stream.reads == 0


@pytest.mark.parametrize("declared", ["²", "٣", "abc", "+2", "-2", " 2", "2 ", "0x2", "1e9", "9_9", ""])
def test_a_declared_length_that_is_not_ascii_digits_is_not_trusted_and_the_body_is_measured(declared: str) -> None:
    assert read(b"{}", declared=declared) == b"{}"
    refused("request_too_large", read, b"x" * (LIMIT + 1), None, declared)


def test_a_body_shorter_than_declared_is_422() -> None:
    refused("invalid_request", read, b'{"a":', None, "6")
    refused("invalid_request", read, b"", None, "1")
    assert read(b"", declared="0") == b""


@pytest.mark.parametrize("error", [OSError("reset"), ValueError("bad chunk"), RuntimeError("x"), KeyError("x")])
def test_whatever_the_server_raises_on_a_garbled_body_is_422(error: Exception) -> None:
    stream = Stream(b'{"a":1}', then=error)
    refused("invalid_request", READER.read, environ(stream))


def test_whether_the_body_was_read_is_noted_for_the_drain_after_the_answer() -> None:
    good = environ(Stream(b"{}"))
    READER.read(good)
    assert good["decision.body_read"]
    for bad in (environ(Stream(b"x" * 2000)), environ(Stream(b"x"), "2000"), environ(Stream(b"x", then=OSError()))):
        with pytest.raises(ApiError):
            READER.read(bad)
        assert "decision.body_read" not in bad


@given(st.binary(max_size=60), st.integers(1, 9), st.integers(1, 40), st.booleans())
def test_a_body_is_returned_exactly_or_refused_exactly_by_its_size(
    data: bytes, step: int, limit: int, declared: bool
) -> None:
    reader = BodyReader(limit, 30.0)
    request = environ(Stream(data, step), str(len(data)) if declared else None)
    if len(data) <= limit:
        assert reader.read(request) == data
    else:
        refused("request_too_large", reader.read, request)


# -- media types and encodings ---


@pytest.mark.parametrize(
    "media", [None, "", "application/json", "text/plain", "application/json; charset=utf-8", "application/octet-stream"]
)
def test_the_content_type_is_not_looked_at(media: str | None) -> None:
    more = {} if media is None else {"CONTENT_TYPE": media}
    assert READER.read(environ(Stream(b"{}"), **more)) == b"{}"


@pytest.mark.parametrize("media", ["multipart/form-data; boundary=x", "Multipart/Form-Data", "multipart/mixed"])
def test_multipart_is_415_without_reading(media: str) -> None:
    stream = Stream(b"--x")
    refused("unsupported_media_type", READER.read, environ(stream, CONTENT_TYPE=media))
    assert stream.reads == 0


@pytest.mark.parametrize("encoding", ["br", "deflate", "compress", "gzip, zstd", "gzip,gzip", "zip", "*", "gzip;q=1"])
def test_an_encoding_that_is_neither_gzip_nor_zstd_is_415_and_tells_what_is_accepted(encoding: str) -> None:
    stream = Stream(b"{}")
    error = refused("unsupported_media_type", READER.read, environ(stream, HTTP_CONTENT_ENCODING=encoding))
    assert ("Accept-Encoding", "gzip, zstd") in error.headers
    assert stream.reads == 0


@pytest.mark.parametrize("encoding", ["", "identity", "Identity", " identity "])
def test_identity_is_no_encoding(encoding: str) -> None:
    assert read(b"{}", encoding) == b"{}"


def compressed(encoding: str, data: bytes) -> bytes:
    return zstd.compress(data) if encoding == "zstd" else gzip.compress(data, mtime=0)


ENCODINGS = ["gzip", "zstd"]


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", " gzip ", "x-gzip"])
def test_the_encodings_name_is_read_as_http_does(encoding: str) -> None:
    assert read(gzip.compress(b"{}"), encoding) == b"{}"


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT])
def test_a_compressed_body_up_to_the_limit_is_decoded(encoding: str, size: int) -> None:
    assert read(compressed(encoding, b"x" * size), encoding) == b"x" * size


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [LIMIT + 1, 100 * LIMIT])
def test_a_compressed_body_over_the_limit_when_decoded_is_413(encoding: str, size: int) -> None:
    data = compressed(encoding, b"x" * size)
    assert len(data) < LIMIT
    assert str(LIMIT) in refused("request_too_large", read, data, encoding).message


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("over", [0, 1])
def test_the_limit_also_counts_the_compressed_bytes(encoding: str, over: int) -> None:
    plain = bytes(range(256))  # it does not compress, so the decoded size is within either limit
    data = compressed(encoding, plain)
    assert len(data) > len(plain) + 1
    reader = BodyReader(len(data) - over, 30.0)
    if over:
        refused("request_too_large", read, data, encoding, None, reader)
    else:
        assert read(data, encoding, reader=reader) == plain


def stream_zstd(data: bytes, **options: int) -> bytes:
    """A frame that does not name its size."""
    parameters = {zstd.CompressionParameter.content_size_flag: 0} | {
        getattr(zstd.CompressionParameter, name): value for name, value in options.items()
    }
    compressor = zstd.ZstdCompressor(options=parameters)
    return compressor.compress(data) + compressor.flush()


def test_a_zstd_frame_that_does_not_name_its_size_is_decoded_and_bounded() -> None:
    assert zstd.get_frame_info(stream_zstd(b"x" * 5)).decompressed_size is None
    assert read(stream_zstd(b"x" * LIMIT), "zstd") == b"x" * LIMIT
    refused("request_too_large", read, stream_zstd(b"x" * (LIMIT + 1)), "zstd")


BOMBS = {
    "gzip": lambda: gzip.compress(bytes(32 << 20)),
    "zstd that names its size": lambda: zstd.compress(bytes(200 << 20)),
    "zstd that does not": lambda: stream_zstd(bytes(200 << 20)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_413_and_never_unpacked_beyond_the_limit(name: str) -> None:
    reader = BodyReader(64 << 10, 30.0)
    data = BOMBS[name]()
    assert len(data) < 64 << 10
    stream = Stream(data)
    tracemalloc.start()
    try:
        refused("request_too_large", reader.read, environ(stream, HTTP_CONTENT_ENCODING=name.split()[0]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * (64 << 10)


def test_a_zstd_frame_that_asks_for_a_large_window_is_refused_before_memory_is_given() -> None:
    data = stream_zstd(b'{"a":1}', window_log=27)
    with pytest.raises(ApiError) as caught:
        read(data, "zstd")
    assert caught.value.kind in ("invalid_request", "request_too_large")


def test_a_zstd_frame_that_names_a_size_over_the_limit_is_413_even_where_its_window_would_be_too_large() -> None:
    data = zstd.compress(bytes(32 << 20), options={zstd.CompressionParameter.window_log: 27})
    with pytest.raises(zstd.ZstdError, match="memory"):  # what a decoder with our bound says to it
        zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 23}).decompress(data, 10)
    refused("request_too_large", BodyReader(64 << 10, 30.0).read, environ(Stream(data), HTTP_CONTENT_ENCODING="zstd"))


def test_a_zstd_frame_of_the_window_that_every_decoder_must_offer_is_decoded() -> None:
    assert read(stream_zstd(b'{"a":1}', window_log=23), "zstd") == b'{"a":1}'


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_compressed_body_cut_short_anywhere_is_422(encoding: str) -> None:
    data = compressed(encoding, b'{"a":[1,2,3],"b":"some text that is not too short"}')
    for length in range(len(data)):
        refused("invalid_request", read, data[:length], encoding)


def test_an_undeclared_zstd_frame_cut_short_anywhere_is_422() -> None:
    data = stream_zstd(b'{"a":[1,2,3]}' * 20)
    for length in range(len(data)):
        refused("invalid_request", read, data[:length], "zstd")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("tail", [b"x", b"\x00", b"{}", b" "])
def test_bytes_after_the_compressed_body_are_422(encoding: str, tail: bytes) -> None:
    refused("invalid_request", read, compressed(encoding, b"{}") + tail, encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_second_compressed_body_behind_the_first_is_not_served_and_not_dropped_in_silence(encoding: str) -> None:
    refused("invalid_request", read, compressed(encoding, b'{"a":1}') * 2, encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("data", [b"", b"{}", b"\x00" * 40, b"\x1f\x8b", b"\x28\xb5\x2f\xfd", zlib.compress(b"{}")])
def test_what_is_not_of_the_named_encoding_is_422(encoding: str, data: bytes) -> None:
    refused("invalid_request", read, data, encoding)


def test_a_wrong_checksum_is_422() -> None:
    data = bytearray(gzip.compress(b'{"a":1}'))
    data[-5] ^= 1
    refused("invalid_request", read, bytes(data), "gzip")
    frame = bytearray(stream_zstd(b'{"a":1}', checksum_flag=1))
    frame[-1] ^= 1
    refused("invalid_request", read, bytes(frame), "zstd")


def test_a_zstd_frame_that_names_more_or_less_than_it_holds_is_refused() -> None:
    frame = bytearray(zstd.compress(b"x" * 100))
    assert frame[5] == 100  # single segment: one byte of size
    for declared in (99, 101, 0, 255):
        frame[5] = declared
        with pytest.raises(ApiError):
            read(bytes(frame), "zstd")


DECODED_OR_REFUSED = ("decoded", "invalid_request", "request_too_large")


def decoded_or(data: bytes, encoding: str) -> str:
    """``decoded``, or the kind of the refusal."""
    try:
        assert len(read(data, encoding)) <= LIMIT
    except ApiError as error:
        return error.kind
    return "decoded"


@given(st.sampled_from(["gzip", "zstd"]), st.binary(max_size=60), st.integers(0, 80), st.integers(0, 255))
def test_a_damaged_compressed_body_is_decoded_or_refused_and_nothing_else(
    encoding: str, data: bytes, place: int, value: int
) -> None:
    damaged = bytearray(compressed(encoding, data))
    damaged[place % len(damaged)] = value
    assert decoded_or(bytes(damaged), encoding) in DECODED_OR_REFUSED


@given(st.sampled_from(["gzip", "zstd"]), st.binary(max_size=80))
def test_arbitrary_bytes_under_an_encoding_are_decoded_or_refused(encoding: str, data: bytes) -> None:
    assert decoded_or(data, encoding) in DECODED_OR_REFUSED


# -- time and Expect ---


class Slow:
    """A stream whose client stops after ``first``; it ends when the connection is shut for reading."""

    def __init__(self, sock: Socket, first: bytes) -> None:
        self._sock, self._left = sock, [first] if first else []

    def read(self, _size: int) -> bytes:
        if self._left:
            return self._left.pop()
        assert self._sock.closed_for_reading.wait(30), "nobody ended the wait"
        return b""


@pytest.mark.parametrize("first", [b"", b"{}", b'{"a":'])
@pytest.mark.parametrize("declared", [None, "100"])
def test_a_body_that_does_not_arrive_in_time_is_408_and_its_connection_is_shut_for_reading_only(
    first: bytes, declared: str | None
) -> None:
    sock = Socket()
    request = environ(Slow(sock, first), declared, **{"gunicorn.socket": sock})
    refused("request_timeout", BodyReader(LIMIT, 0.05).read, request)
    assert sock.shut == [0]  # SHUT_RD: the answer can still be written
    assert "decision.body_read" not in request


def test_one_slow_client_does_not_end_another_connections_body() -> None:
    reader = BodyReader(LIMIT, 0.05)
    fast, slow = Socket(), Socket()
    assert reader.read(environ(Stream(b"{}"), **{"gunicorn.socket": fast})) == b"{}"
    refused("request_timeout", reader.read, environ(Slow(slow, b""), **{"gunicorn.socket": slow}))
    # Both were armed in this order, so the first one's time is over too.
    assert fast.shut == []
    assert slow.shut == [0]


def test_bodies_that_have_arrived_leave_nothing_behind_long_before_their_time_is_over() -> None:
    reader = BodyReader(LIMIT, 3600)
    for _ in range(100):
        reader.read(environ(Stream(b"{}"), **{"gunicorn.socket": Socket()}))
    wait_for(lambda: not reader._reading._due, 30, "the finished entries to go")


def test_a_slow_client_is_ended_in_time_after_a_busy_while_and_after_a_quiet_one() -> None:
    reader = BodyReader(LIMIT, 0.4)
    for pause in (0.0, 0.1, 0.6, 1.0):
        for _ in range(20):
            reader.read(environ(Stream(b"{}"), **{"gunicorn.socket": Socket()}))
        time.sleep(pause)
        sock = Socket()
        began = time.monotonic()
        refused("request_timeout", reader.read, environ(Slow(sock, b""), **{"gunicorn.socket": sock}))
        assert time.monotonic() - began >= 0.4


def test_several_slow_clients_at_once_are_all_ended() -> None:
    reader = BodyReader(LIMIT, 0.05)
    kinds = []

    def one() -> None:
        sock = Socket()
        try:
            reader.read(environ(Slow(sock, b"x"), **{"gunicorn.socket": sock}))
        except ApiError as error:
            kinds.append(error.kind)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert kinds == ["request_timeout"] * 8


def test_a_connection_that_is_gone_when_its_time_is_over_ends_no_other_wait() -> None:
    reader = BodyReader(LIMIT, 0.05)
    for broken in (True, False):
        sock = Socket(broken)
        refused("request_timeout", reader.read, environ(Slow(sock, b""), **{"gunicorn.socket": sock}))


def test_the_invitation_to_send_goes_out_only_when_the_body_is_wanted() -> None:
    sock = Socket()
    expecting = {"gunicorn.socket": sock, "HTTP_EXPECT": "100-Continue"}
    refused("request_too_large", READER.read, environ(Stream(b"x"), str(LIMIT + 1), **expecting))
    refused("unsupported_media_type", READER.read, environ(Stream(b"x"), HTTP_CONTENT_ENCODING="br", **expecting))
    assert sock.sent == b""
    assert READER.read(environ(Stream(b"{}"), "2", **expecting)) == b"{}"
    assert sock.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    READER.read(environ(Stream(b"{}"), **{"gunicorn.socket": sock}))
    assert sock.sent.count(b"100") == 1


def test_a_caller_that_left_before_the_invitation_is_not_a_mistake_of_ours() -> None:
    request = environ(Stream(b""), "2", **{"gunicorn.socket": Socket(broken=True), "HTTP_EXPECT": "100-continue"})
    with pytest.raises(ApiError):  # an OSError would be logged as an unexpected error
        READER.read(request)


# -- the drain ---


def test_the_drain_reads_the_rest_and_throws_it_away() -> None:
    stream = Stream(b"x" * (5 << 20))
    READER.drain(environ(stream, **{"gunicorn.socket": Socket()}))
    assert stream.taken == 5 << 20


def test_the_drain_is_bounded_in_bytes() -> None:
    stream = Endless()
    READER.drain(environ(stream, **{"gunicorn.socket": Socket()}))
    assert 8 << 20 <= stream.taken <= 10 << 20


def test_only_so_many_connections_are_drained_at_once_and_an_ended_drain_makes_room() -> None:
    reader = BodyReader(LIMIT, 30.0, max_drains=1)
    inner = Stream(b"y" * 10)

    class Outer(Stream):
        def read(self, size: int) -> bytes:
            if self.reads == 0:  # while this one is drained, the other one's turn comes
                reader.drain(environ(inner, **{"gunicorn.socket": Socket()}))
            return super().read(size)

    for error in (None, OSError("reset")):
        outer = Outer(b"x" * 10, then=error)
        reader.drain(environ(outer, **{"gunicorn.socket": Socket()}))
        assert outer.taken == 10
        assert inner.reads == 0
    reader.drain(environ(inner, **{"gunicorn.socket": Socket()}))
    assert inner.taken == 10


def test_a_drain_waits_a_moment_for_another_one_to_end() -> None:
    """One caller may be ahead of several drains: it goes on when the kernel has its whole body."""
    reader = BodyReader(LIMIT, 30.0, max_drains=1)
    begun = threading.Event()

    class Outer(Stream):
        def read(self, size: int) -> bytes:
            begun.set()
            time.sleep(0.05)  # a drain at work
            return super().read(size)

    outer, waiting = Outer(b"x" * 10), Stream(b"y" * 10)
    first = threading.Thread(target=reader.drain, args=(environ(outer, **{"gunicorn.socket": Socket()}),))
    first.start()
    assert begun.wait(10)
    reader.drain(environ(waiting, **{"gunicorn.socket": Socket()}))
    first.join(10)
    assert (outer.taken, waiting.taken) == (10, 10)


def test_a_connection_that_is_closed_already_costs_no_later_one_its_drain() -> None:
    class Closed(Socket):
        def settimeout(self, seconds: float | None) -> None:
            raise OSError(9, "Bad file descriptor")

    reader = BodyReader(LIMIT, 30.0, max_drains=1)
    reader.drain(environ(Stream(b"x"), **{"gunicorn.socket": Closed()}))
    stream = Stream(b"y" * 10)
    reader.drain(environ(stream, **{"gunicorn.socket": Socket()}))
    assert stream.taken == 10


def test_the_drain_never_raises() -> None:
    for error in (OSError("reset"), ValueError("bad chunk"), RuntimeError()):
        READER.drain(environ(Stream(b"x", then=error), **{"gunicorn.socket": Socket(broken=True)}))


def test_the_drain_of_a_silent_client_is_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1.0 <= body._DRAIN_SECONDS <= 2.0  # trouble.md rank 9
    monkeypatch.setattr(body, "_DRAIN_SECONDS", 0.05)
    sock = Socket()
    BodyReader(LIMIT, 30.0).drain(environ(Slow(sock, b"x"), **{"gunicorn.socket": sock}))
    assert sock.shut == [0]


def test_without_a_connection_of_its_own_nothing_is_drained() -> None:
    stream = Stream(b"x")
    READER.drain(environ(stream))
    assert stream.reads == 0


def test_a_caller_that_still_waits_for_its_invitation_is_not_drained_and_its_connection_ends() -> None:
    for broken in (False, True):
        sock, stream = Socket(broken), Stream(b"POST /next HTTP/1.1\r\n")
        READER.drain(environ(stream, **{"gunicorn.socket": sock, "HTTP_EXPECT": "100-continue"}))
        assert stream.reads == 0
        assert sock.shut == [0]


def test_a_caller_that_had_its_invitation_is_drained() -> None:
    sock, stream = Socket(), Stream(b"x" * 3000)
    request = environ(stream, **{"gunicorn.socket": sock, "HTTP_EXPECT": "100-continue"})
    refused("request_too_large", READER.read, request)
    READER.drain(request)
    assert stream.taken == 3000
