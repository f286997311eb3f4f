"""One HTTP client for the offline tools: JSON in and out, kept-alive connections, bounded retries.

What a retry can help is tried again, at most :data:`ATTEMPTS` times in all: 429 and 503, after the seconds that
``Retry-After`` asks for, and a connection that failed before an answer. Anything else is the answer.
"""

from __future__ import annotations

import http.client
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from shared import jsonio
from shared.settings import SettingsError, WebSettings

__all__ = ["ATTEMPTS", "Client", "Reply", "TokenError", "Unreachable", "read_token"]

ATTEMPTS = 6
#: A server that asks for a longer wait is not waited for so long.
_LONGEST_WAIT_S = 30.0
_RETRIED = (429, 503)
_MAX_BODY_BYTES = 64 << 20


class Unreachable(OSError):
    """No HTTP answer after every attempt; the message names the place and the last failure."""


class TokenError(ValueError):
    """There is no usable bearer token; the message names the file or variable and the rule, never the value."""


class Reply(NamedTuple):
    """An answer: ``body`` is the parsed JSON, or None where it is none; ``headers`` have lower-case names; ``seconds``
    is the round trip of the last attempt; ``attempts`` counts them."""

    status: int
    body: Any
    headers: Mapping[str, str]
    seconds: float
    attempts: int

    @property
    def code(self) -> str:
        """The ``error.code`` of an error of ours, or ""."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        return code if isinstance(code, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", code) else ""


class Client:
    """Talks to one origin, ``http://`` or ``https://``; ``token`` is sent as the bearer. Every thread that asks has a
    connection of its own. ``sleep`` is replaced in tests.

    Raises ValueError for an address that is no such URL, or holds a user name or a query.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 180.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.username
            or parts.query
            or parts.fragment
        ):
            raise ValueError("the URL must be http://HOST[:PORT][/PATH] or https://..., without a user name or a query")
        self.path = parts.path.rstrip("/")
        self._host, self._port = parts.hostname, parts.port
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._place = f"{parts.hostname}:{parts.port or (443 if self._tls else 80)}"
        self._token = token
        self._timeout = timeout_s
        self._sleep = sleep
        self._own = threading.local()
        self._all: list[http.client.HTTPConnection] = []

    def request(
        self, method: str, path: str, body: Any = None, *, retries: bool = True, token: bool | str = True
    ) -> Reply:
        """Send one request; ``token`` false leaves the bearer out, a string is sent instead of it. Raises
        :class:`Unreachable`."""
        data = None if body is None else jsonio.dumps(body)
        headers = {"Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        bearer = token if isinstance(token, str) else self._token if token else None
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        failure = ""
        for attempt in range(1, ATTEMPTS + 1):
            last = attempt == ATTEMPTS or not retries
            started = time.monotonic()
            try:
                status, found, raw = self._once(method, path, data, headers)
            except (OSError, http.client.HTTPException) as error:
                failure = type(error).__name__ if not isinstance(error, OSError) else error.strerror or str(error)
                self._drop()
                if last:
                    break
                self._sleep(_backoff(attempt))
                continue
            seconds = time.monotonic() - started
            if status not in _RETRIED or last:
                return Reply(status, _parse(raw), found, seconds, attempt)
            self._sleep(_retry_after(found.get("retry-after"), attempt))
        raise Unreachable(f"{self._place}: {failure}")

    def stall(self, path: str) -> http.client.HTTPConnection:
        """Begin a POST on a connection of its own and never send its body; whoever asked closes it. Raises OSError."""
        connection = self._new()
        connection.putrequest("POST", path)
        connection.putheader("Content-Length", "64")
        if self._token is not None:
            connection.putheader("Authorization", f"Bearer {self._token}")
        connection.endheaders()
        return connection

    def close(self) -> None:
        """Close every connection. No thread may be asking."""
        for connection in self._all:
            connection.close()
        self._all.clear()

    def _once(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self._connection()
        connection.request(method, path, data, dict(headers))
        response = connection.getresponse()
        raw = response.read(_MAX_BODY_BYTES + 1)
        if len(raw) > _MAX_BODY_BYTES:
            raise http.client.HTTPException("the answer is too long")
        if response.will_close:
            self._drop()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, raw

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if connection is None:
            self._own.connection = connection = self._new()
            self._all.append(connection)
        return connection

    def _new(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._tls)

    def _drop(self) -> None:
        # The object stays and makes a new connection at its next request.
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if connection is not None:
            connection.close()


def read_token(file: Path | None, *, none: bool = False) -> str | None:
    """The bearer token: from ``file`` (one trailing line break is cut), else from the settings API_TOKEN or
    API_TOKEN_FILE; no token at all when ``none``. Raises :class:`TokenError`."""
    if none:
        return None
    if file is None:
        try:
            return WebSettings.from_env().api_token
        except SettingsError as error:
            raise TokenError(f"{error}; or give --token-file or --no-token") from None
    try:
        text = re.sub(r"\r?\n\Z", "", file.read_text("ascii", "surrogateescape"))
    except OSError as error:
        raise TokenError(f"{file}: {error.strerror}") from None
    # Another server's token may be shorter than ours must be, but a header can carry no other characters.
    if not text or not all(33 <= ord(ch) <= 126 for ch in text):
        raise TokenError(f"{file}: the token must be visible ASCII characters (33-126)")
    return text


def _parse(raw: bytes) -> Any:
    try:
        return jsonio.loads(raw)
    except jsonio.InvalidJSON:
        return None


def _backoff(attempt: int) -> float:
    return float(min(_LONGEST_WAIT_S, 0.25 * 2.0**attempt))


def _retry_after(header: str | None, attempt: int) -> float:
    """Seconds to wait: the header's, a number or a date, but no more than :data:`_LONGEST_WAIT_S`."""
    if header is None:
        return _backoff(attempt)
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", header):
        return min(_LONGEST_WAIT_S, float(header))
    try:
        return min(_LONGEST_WAIT_S, max(0.0, parsedate_to_datetime(header).timestamp() - time.time()))
    except (TypeError, ValueError):
        return _backoff(attempt)
