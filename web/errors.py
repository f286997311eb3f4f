"""Errors: the one table from an error's kind to its status, codes and headers, and the one place that writes an error
body.

    ApiError            anything a caller is told; carries a kind of the table
    └── Invalid         422 with the list of problems found

Every body has the contract's ``error: {code, message}``. On the Jev routes (``/v1/...``) it also has Jev's ``detail``,
so that one body serves the contract's readers, jevcompat and the official SDK (wire/systemone.md §4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared import jsonio

__all__ = ["KINDS", "ApiError", "Invalid", "Kind", "Problem", "kind_of_status", "render", "render_refusal"]


@dataclass(frozen=True)
class Kind:
    """One row: HTTP status, the contract's ``error.code``, Jev's ``detail.error_type``, seconds for ``Retry-After`` (0:
    no retry helps)."""

    status: int
    code: str
    error_type: str
    retry_after: int = 0


KINDS = {
    # Not of the application: what gunicorn and nginx answer in its place (see render_refusal).
    "bad_request": Kind(400, "bad_request", "api_usage_error"),
    "unauthorized": Kind(401, "unauthorized", "authentication_error"),
    "not_found": Kind(404, "not_found", "api_usage_error"),
    "model_not_found": Kind(404, "model_not_found", "api_usage_error"),
    "method_not_allowed": Kind(405, "method_not_allowed", "api_usage_error"),
    "request_timeout": Kind(408, "request_timeout", "api_usage_error"),
    "request_too_large": Kind(413, "request_too_large", "request_too_large"),
    "unsupported_media_type": Kind(415, "unsupported_media_type", "api_usage_error"),
    "invalid_request": Kind(422, "invalid_request", "invalid_request_error"),
    "busy": Kind(429, "busy", "rate_limit_error", retry_after=1),
    # nginx's status for a caller that has left: nobody reads it, but the access line needs one.
    "client_closed_request": Kind(499, "client_closed_request", "api_usage_error"),
    "scoring_failed": Kind(500, "scoring_failed", "internal_error"),
    "internal_error": Kind(500, "internal_error", "internal_error"),
    "out_of_memory": Kind(503, "out_of_memory", "overloaded_error", retry_after=2),
    "scorer_unavailable": Kind(503, "scorer_unavailable", "overloaded_error", retry_after=1),
    "deadline_exceeded": Kind(504, "deadline_exceeded", "overloaded_error", retry_after=2),
}

_MOST_PROBLEMS = 20


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a body: where (names and list positions below ``body``), what, and the rule's name in the
    vocabulary of wire/systemone.md §4.3. Holds names and ids of the caller's, never a text of theirs."""

    loc: tuple[str | int, ...]
    msg: str
    type: str = "value_error"


class ApiError(Exception):
    """An error to tell the caller. ``kind`` is a key of :data:`KINDS`; ``headers`` are added to the answer's."""

    def __init__(self, kind: str, message: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.headers = tuple(headers)
        self.problems: tuple[Problem, ...] = ()


class Invalid(ApiError):
    """422 ``invalid_request``; the message joins the problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        shown = tuple(problems[:_MOST_PROBLEMS])
        message = "; ".join(f"{_where(problem.loc)}{problem.msg}" for problem in shown)
        if len(problems) > len(shown):
            message += f"; and {len(problems) - len(shown)} more"
        super().__init__("invalid_request", message)
        self.problems = shown


def render(error: ApiError, path: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, headers and JSON body of an error on ``path``."""
    kind = KINDS[error.kind]
    body: dict[str, Any] = {"error": {"code": kind.code, "message": error.message}}
    if path.startswith("/v1/"):
        body["detail"] = _jev_detail(kind, error)
    headers = list(error.headers)
    if kind.status == 401:
        headers.append(("WWW-Authenticate", "Bearer"))
    if kind.retry_after:
        headers += [("Retry-After", str(kind.retry_after)), ("Retry-After-Ms", str(1000 * kind.retry_after))]
    return kind.status, headers, jsonio.dumps(body)


#: What gunicorn and nginx refuse before the application sees it, or answer when it does not: kind and message.
_REFUSALS = {
    400: ("bad_request", "the request is not valid HTTP"),
    404: ("not_found", "there is no such path"),
    405: ("method_not_allowed", "the method is not supported"),
    413: ("request_too_large", "the body is over the proxy's limit"),
    414: ("bad_request", "the request line is too long"),
    417: ("bad_request", "the expectation cannot be met"),
    421: ("bad_request", "the request is for another server"),
    429: ("busy", "the proxy's limit of requests is reached; try again"),
    431: ("bad_request", "the headers are too large or too many"),
    501: ("bad_request", "the transfer encoding is not supported"),
    502: ("scorer_unavailable", "the web tier is down, or was lost while it held the request"),
    503: ("scorer_unavailable", "the web tier is not available"),
    504: ("deadline_exceeded", "the web tier did not answer in time"),
    505: ("bad_request", "the HTTP version is not supported"),
}


def render_refusal(status: int, path: str) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and JSON body for a ``status`` of the server's or the proxy's own; conf/gunicorn.conf.py sends them, and
    conf/nginx.conf has the same texts (a test compares). ``path`` is empty where it could not be read."""
    other = ("bad_request", "the request cannot be served") if status < 500 else ("internal_error", "the server failed")
    kind, message = _REFUSALS.get(status, other)
    # With no path known, the body is in the shapes of both: error and detail.
    _, headers, body = render(ApiError(kind, message), path or "/v1/")
    return headers, body


def kind_of_status(status: int) -> str:
    """The kind for a status that the framework raised itself."""
    by_status = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large", 415: "unsupported_media_type"}
    return by_status.get(status, "invalid_request" if 400 <= status < 500 else "internal_error")


def _jev_detail(kind: Kind, error: ApiError) -> Any:
    if kind.status != 422:
        return {"error_type": kind.error_type, "message": error.message}
    problems = error.problems or (Problem((), error.message),)
    return [{"loc": ["body", *problem.loc], "msg": problem.msg, "type": problem.type} for problem in problems]


def _where(loc: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in loc) + ": " if loc else ""
