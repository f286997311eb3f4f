"""The body reader gives back exactly the body, decoded, or refuses it with a kind of its own; never more than the
limit, never a read beyond it; and it never takes what decoding at one stroke does not."""

from __future__ import annotations

import gzip
import sys
import zlib
from typing import Any

from tests.fuzz.program import Program
from web.body import BodyReader
from web.errors import ApiError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMITS = (1, 20, 64, 300)
_readers = {limit: BodyReader(limit, 30.0) for limit in LIMITS}
PLAIN = ("", "identity", " Identity ")
GZIP = ("gzip", "x-gzip", " GZIP")
ENCODINGS = (*PLAIN, *GZIP, "zstd", "zstd", "br", "gzip, gzip", "deflate", "\xe9")

#: Limit, encoding, announced length, step, failure at the end, form of the body; then the body.
SEEDS = [
    bytes([limit, encoding, declared, 9, 0, form]) + b'{"a":1}' * 3
    for limit in (1, 3)
    for encoding in (0, 3, 6, 8)
    for declared in (0, 1, 2)
    for form in range(4)
] + [
    bytes([3, encoding, 0, 0, failure, form, 0]) + bytes(250)
    for encoding in (0, 3, 6)
    for failure, form in ((0, 0), (2, 1))
]


class Stream:
    """A ``wsgi.input``: the bytes in small steps, then the end or a failure."""

    def __init__(self, data: bytes, step: int, failure: Exception | None) -> None:
        self._data, self._step, self._failure = data, step, failure
        self.taken = 0

    def read(self, size: int) -> bytes:
        assert 0 < size <= 64 * 1024, "an unbounded read"
        found = self._data[self.taken : self.taken + min(size, self._step)]
        self.taken += len(found)
        if not found and self._failure is not None:
            raise self._failure
        return found


def check(data: bytes) -> None:
    program = Program(data)
    limit, encoding = program.pick(LIMITS), program.pick(ENCODINGS)
    announced, step = program.byte() % 6, 1 + program.byte() % 40
    failure = program.pick((None, None, OSError("gone"), ValueError("a chunk"), None))
    form = program.byte() % 4
    if form == 0:
        body = program.rest()
    else:
        damage, place = program.byte(), program.byte()
        packed = bytearray(_packed(encoding, program.rest() * (1, 1, 40, 4000)[form]))
        if form == 1 and packed:
            packed[place % len(packed)] ^= damage
        body = bytes(packed[: len(packed) - damage % 3]) if form == 2 else bytes(packed)
    declared = (None, str(len(body)), str(len(body) + 1), "9" * 30, "\u0665", "0x10")[announced]
    stream = Stream(body, step, failure)
    environ: dict[str, Any] = {"wsgi.input": stream, "HTTP_CONTENT_ENCODING": encoding}
    if declared is not None:
        environ["CONTENT_LENGTH"] = declared
    try:
        found: bytes | str = _readers[limit].read(environ)
    except ApiError as error:
        found = error.kind
    assert stream.taken <= limit + 1
    expected = _expected(limit, encoding, declared, body, failure is not None)
    assert found in expected, (limit, encoding, declared, body, found, expected)


def _expected(limit: int, encoding: str, declared: str | None, body: bytes, fails: bool) -> tuple[bytes | str, ...]:
    name = encoding.strip().lower()
    if name not in ("", "identity", "gzip", "x-gzip", "zstd"):
        return ("unsupported_media_type",)
    length = int(declared) if declared and declared.isascii() and declared.isdigit() else None
    if len(body) > limit or (length or 0) > limit:
        return ("request_too_large",)
    if fails or (length is not None and len(body) < length):
        return ("invalid_request",)
    if name in ("", "identity"):
        return (body,)
    decoder: Any
    if name == "zstd":
        decoder = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 23})
    else:
        decoder = zlib.decompressobj(wbits=31)
    try:
        whole = decoder.decompress(body)
    except (zlib.error, zstd.ZstdError):
        # What comes first may already be too much.
        return ("invalid_request", "request_too_large")
    if len(whole) > limit:
        return ("request_too_large",)
    if not decoder.eof or decoder.unused_data:
        # A frame may name more than it holds.
        return ("invalid_request", "request_too_large")
    return (whole,)


def _packed(encoding: str, data: bytes) -> bytes:
    name = encoding.strip().lower()
    if name == "zstd":
        return zstd.compress(data)
    return gzip.compress(data, mtime=0) if "gzip" in name else data
