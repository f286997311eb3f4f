"""Bearer authentication (INV-6): on bytes, in constant time. Pure."""

from __future__ import annotations

import hmac

from web.errors import ApiError

__all__ = ["BearerAuth"]


class BearerAuth:
    """Checks ``Authorization`` against one token. The scheme's name is case-insensitive (RFC 9110 §11.1); one space;
    then the exact token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode("ascii")

    def check(self, header: str | None) -> None:
        """Raise ApiError ``unauthorized`` unless the header carries the token."""
        # Bytes: compare_digest raises TypeError on a str with a character above 0x7F, which would be a 500.
        scheme, _, credentials = (header or "").encode("utf-8", "surrogatepass").partition(b" ")
        token_matches = hmac.compare_digest(credentials, self._token)
        if not (token_matches and scheme.lower() == b"bearer"):
            raise ApiError("unauthorized", "a valid bearer token is required")
