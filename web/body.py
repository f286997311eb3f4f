"""Reading a request's body ourselves: bounded, with a deadline, plain or compressed; and draining one after an early
answer.

Werkzeug cuts an over-long chunked body at the limit and says nothing (trouble.md rank 1), so nothing here goes through
``request.data`` and its kin.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
import zlib
from collections import deque
from typing import Any, Protocol

from web.errors import ApiError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["BodyReader"]

_STEP = 64 * 1024
#: After an early answer at most this much is read and thrown away, so that a client that writes its whole body before
#: it reads gets to see the answer (trouble.md rank 9: bodies up to about 8 MiB, one or two seconds).
_DRAIN_BYTES = 9 << 20
_DRAIN_SECONDS = 2.0
#: A caller that is still sending pauses no longer than this.
_DRAIN_IDLE_SECONDS = 0.3
#: How often the entries of bodies that have arrived are cleared away.
_CUTOFF_TICK_SECONDS = 0.25
#: Memory that a zstd frame may ask of the decoder, as a power of two: 8 MiB, the least a decoder has to offer (RFC
#: 8878).
_ZSTD_WINDOW_LOG = 23

Environ = dict[str, Any]


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Cutoffs:
    """Ends the reading side of sockets whose time is over.

    A socket timeout bounds one ``recv`` only, and the server's reader loops over many, so a client that drips bytes
    would never meet it. One daemon thread a process instead shuts such a socket for reading, which the reader sees as
    the end of the body; the answer can still be written. All entries live equally long, so they fall due in the order
    they came.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: deque[tuple[float, list[Any]]] = deque()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def arm(self, sock: Any) -> list[Any]:
        """Start a socket's time; pop the returned list to stop it. IndexError there: the time was over."""
        entry = [sock]
        self._due.append((time.monotonic() + self._seconds, entry))
        if self._thread is None:
            with self._guard:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="cutoffs", daemon=True)
                    self._thread.start()
        if not self._wake.is_set():
            self._wake.set()
        return entry

    def _run(self) -> None:
        while True:
            if not self._due:
                self._wake.clear()
                if not self._due:
                    self._wake.wait()
                continue
            when, entry = self._due[0]
            wait = when - time.monotonic()
            if wait > 0:
                # By time alone, whether the entry is still wanted or not: to be woken by each request, and to fight it
                # for the interpreter lock, was 3 % of a busy worker's CPU.
                time.sleep(min(wait, _CUTOFF_TICK_SECONDS))
                while self._due and not self._due[0][1]:
                    self._due.popleft()
                continue
            self._due.popleft()
            try:
                sock = entry.pop()
            except IndexError:
                continue
            with contextlib.suppress(OSError):  # already gone
                sock.shutdown(socket.SHUT_RD)


class BodyReader:
    """Reads bodies of at most ``max_bytes``, compressed and decompressed, that arrive within ``deadline_s`` seconds,
    and drains at most ``max_drains`` at a time."""

    def __init__(self, max_bytes: int, deadline_s: float, max_drains: int = 16) -> None:
        self._drains = threading.BoundedSemaphore(max_drains)
        self._queued = threading.BoundedSemaphore(max(1, max_drains // 2))
        self._max_bytes = max_bytes
        self._reading = _Cutoffs(deadline_s)
        self._draining = _Cutoffs(_DRAIN_SECONDS)
        self._deadline_s = deadline_s

    def read(self, environ: Environ, json_only: bool = False) -> bytes:
        """The decoded body. Raises ApiError: ``request_too_large``, ``request_timeout``, ``unsupported_media_type`` for
        an encoding other than gzip and zstd, a multipart body or, with ``json_only``, a media type that is named and
        is not JSON's, ``invalid_request`` for a body cut short or garbled."""
        media_type = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
        if media_type.startswith("multipart/"):
            raise ApiError("unsupported_media_type", "multipart bodies are not supported; send JSON")
        if json_only and media_type not in ("", "application/json"):
            raise ApiError("unsupported_media_type", "Content-Type must be application/json")
        encoding = environ.get("HTTP_CONTENT_ENCODING", "").strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "zstd"):
            raise ApiError(
                "unsupported_media_type",
                "Content-Encoding must be gzip, zstd or absent",
                [("Accept-Encoding", "gzip, zstd")],
            )
        raw = self._receive(environ)
        environ["decision.body_read"] = True
        if encoding in ("", "identity"):
            return raw
        return self._decode_zstd(raw) if encoding == "zstd" else self._decode(zlib.decompressobj(wbits=31), raw, "gzip")

    def drain(self, environ: Environ) -> None:
        """Throw the rest of an unread body away, within bounds, after the answer is out. Never raises."""
        sock = environ.get("gunicorn.socket")
        if sock is None:
            return
        if _awaits_continue(environ):
            # This caller holds its body back and may now send a next request in its place; the server would take that
            # for the body. Ending the connection is the only reading of it that cannot go wrong.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RD)
            return
        if not self._permit():
            return
        entry = self._draining.arm(sock)
        stream, left = environ["wsgi.input"], _DRAIN_BYTES
        try:
            sock.settimeout(_DRAIN_IDLE_SECONDS)
            while left > 0 and (data := stream.read(min(_STEP, left))):
                left -= len(data)
        except Exception:  # whatever the server raises on a broken body: the answer is out, there is nobody to tell
            pass
        finally:
            entry.clear()
            self._drains.release()
            with contextlib.suppress(OSError):
                sock.settimeout(None)

    def _permit(self) -> bool:
        """Whether one more body may be drained now: callers that announce bodies and never send them must not keep
        every thread.

        A caller goes on as soon as the kernel has its whole body, so on a busy machine one caller alone may be ahead of
        several drains. These end soon, and so do silent ones; a few threads wait for that.
        """
        if self._drains.acquire(blocking=False):
            return True
        if not self._queued.acquire(blocking=False):
            return False
        try:
            return self._drains.acquire(timeout=2 * _DRAIN_IDLE_SECONDS)
        finally:
            self._queued.release()

    def _receive(self, environ: Environ) -> bytes:
        declared = environ.get("CONTENT_LENGTH", "")
        # Only ASCII digits count (contract, Limits); anything else is measured by reading.
        length = None
        if declared.isascii() and declared.isdigit():
            if len(declared) > 18 or int(declared) > self._max_bytes:
                raise self._too_large()
            length = int(declared)
        sock = environ.get("gunicorn.socket")
        if sock is not None and _awaits_continue(environ):
            # conf/gunicorn.conf.py keeps the server from inviting a body before auth and admission have passed.
            try:
                sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            except OSError:
                raise ApiError("client_closed_request", "the caller has left") from None
            environ["decision.continued"] = True
        entry = self._reading.arm(sock) if sock is not None else [None]
        try:
            raw, broken = self._read_stream(environ["wsgi.input"])
        finally:
            try:
                entry.pop()
                in_time = True
            except IndexError:
                in_time = False
        if not in_time:
            raise ApiError("request_timeout", f"the body did not arrive within {self._deadline_s:g} seconds")
        if broken or (length is not None and len(raw) < length):
            raise ApiError("invalid_request", "the body was cut short or its chunks are malformed")
        return raw

    def _read_stream(self, stream: Any) -> tuple[bytes, bool]:
        """The body, and whether reading it failed. Stops one byte past the limit."""
        chunks: list[bytes] = []
        size = 0
        try:
            while size <= self._max_bytes:
                data = stream.read(min(_STEP, self._max_bytes + 1 - size))
                if not data:
                    return b"".join(chunks), False
                chunks.append(data)
                size += len(data)
        except Exception:
            # The server's parser raises exceptions of its own on a malformed chunk, and none of them is an OSError.
            return b"", True
        raise self._too_large()

    def _decode_zstd(self, raw: bytes) -> bytes:
        try:
            declared = zstd.get_frame_info(raw).decompressed_size
        except zstd.ZstdError:
            raise _garbled("zstd") from None
        # A frame that names its size may also ask for a window of that size: refuse it before a decoder is made.
        if declared is not None and declared > self._max_bytes:
            raise self._too_large()
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
        return self._decode(zstd.ZstdDecompressor(options=options), raw, "zstd")

    def _decode(self, decoder: _Decoder, raw: bytes, name: str) -> bytes:
        try:
            data = decoder.decompress(raw, self._max_bytes + 1)
        except (zlib.error, zstd.ZstdError):
            raise _garbled(name) from None
        if len(data) > self._max_bytes:
            raise self._too_large()
        if not decoder.eof:
            # With room left in the output, a decoder stops short of its end only for want of input.
            raise _garbled(name)
        if decoder.unused_data:
            raise ApiError("invalid_request", f"bytes follow the {name} body")
        return data

    def _too_large(self) -> ApiError:
        return ApiError("request_too_large", f"the body is over {self._max_bytes} bytes")


def _awaits_continue(environ: Environ) -> bool:
    return environ.get("HTTP_EXPECT", "").lower() == "100-continue" and not environ.get("decision.continued")


def _garbled(name: str) -> ApiError:
    return ApiError("invalid_request", f"the body is not valid {name}, or was cut short")
