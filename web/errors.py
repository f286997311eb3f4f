"""Errors: the one table from an error's kind to its status, codes and headers, and the one place that writes an error
body.

    ApiError            anything a caller is told; carries a kind of the table
    └── Invalid         422 with the list of problems found

Every body has the contract's ``error: {code, message}``. On the Jev routes (``/v1/...``) it also has Jev's ``detail``,
so that one body serves the contract's readers, jevcompat and the official SDK (wire/systemone.md §4.2).
``/v1/decisions`` has OpenAI's body instead, and 400 where the others have 422 (wire/decisions.md §5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shared import jsonio

__all__ = ["KINDS", "ApiError", "Invalid", "Kind", "Problem", "kind_of_status", "render", "render_refusal"]


@dataclass(frozen=True)
class Kind:
    """One row: HTTP status, the contract's ``error.code``, Jev's ``detail.error_type``, OpenAI's ``error.code``,
    seconds for ``Retry-After`` (0: no retry helps)."""

    status: int
    code: str
    error_type: str
    openai_code: str | None
    retry_after: int = 0


KINDS = {
    # What is not HTTP as it must be; most of it gunicorn and nginx refuse in our place (see render_refusal).
    "bad_request": Kind(400, "bad_request", "api_usage_error", "bad_request"),
    "unauthorized": Kind(401, "unauthorized", "authentication_error", "invalid_api_key"),
    "not_found": Kind(404, "not_found", "api_usage_error", "not_found"),
    "model_not_found": Kind(404, "model_not_found", "api_usage_error", "model_not_found"),
    "method_not_allowed": Kind(405, "method_not_allowed", "api_usage_error", "method_not_allowed"),
    "request_timeout": Kind(408, "request_timeout", "api_usage_error", "request_timeout"),
    "request_too_large": Kind(413, "request_too_large", "request_too_large", "request_too_large"),
    "unsupported_media_type": Kind(415, "unsupported_media_type", "api_usage_error", "unsupported_media_type"),
    # OpenAI's code is that of a body without any problem listed: one that was cut short or garbled.
    "invalid_request": Kind(422, "invalid_request", "invalid_request_error", "invalid_json"),
    "busy": Kind(429, "busy", "rate_limit_error", "rate_limit_exceeded", retry_after=1),
    # nginx's status for a caller that has left: nobody reads it, but the access line needs one.
    "client_closed_request": Kind(499, "client_closed_request", "api_usage_error", None),
    "scoring_failed": Kind(500, "scoring_failed", "internal_error", None),
    "internal_error": Kind(500, "internal_error", "internal_error", None),
    "out_of_memory": Kind(503, "out_of_memory", "overloaded_error", "overloaded", retry_after=2),
    "overloaded": Kind(503, "overloaded", "overloaded_error", "overloaded", retry_after=1),
    "scorer_unavailable": Kind(503, "scorer_unavailable", "overloaded_error", "overloaded", retry_after=1),
    "deadline_exceeded": Kind(504, "deadline_exceeded", "overloaded_error", "timeout", retry_after=2),
}

_OPENAI_PATH = "/v1/decisions"
#: OpenAI's code for a broken rule; ``invalid_value`` for any other (wire/decisions.md §5).
_OPENAI_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "unsupported": "unsupported_value",
    "max_tokens_exceeded": "context_length_exceeded",
}

_MOST_PROBLEMS = 20
#: Longest part of a name that an error on /v1/decisions repeats: unknown names are of any length.
_MOST_SHOWN = 64

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a body: where (names and list positions below ``body``), what, and the rule's name in the
    vocabulary of wire/systemone.md §4.3. Holds names and ids of the caller's, never a text of theirs."""

    loc: Loc
    msg: str
    type: str = "value_error"


class ApiError(Exception):
    """An error to tell the caller. ``kind`` is a key of :data:`KINDS`; ``headers`` are added to the answer's;
    ``problems`` are the parts of the body at fault."""

    def __init__(
        self, kind: str, message: str, headers: Sequence[tuple[str, str]] = (), problems: Sequence[Problem] = ()
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.headers = tuple(headers)
        self.problems = tuple(problems[:_MOST_PROBLEMS])
        self.unlisted = len(problems) - len(self.problems)


class Invalid(ApiError):
    """422 ``invalid_request``; the message joins the problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("invalid_request", "", problems=problems)
        self.message = _joined(self, _dotted)
        self.args = (self.message,)


def render(error: ApiError, path: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, headers and JSON body of an error on ``path``."""
    kind = KINDS[error.kind]
    status = kind.status
    headers = list(error.headers)
    if path == _OPENAI_PATH or path.startswith(f"{_OPENAI_PATH}/"):
        # The clients' validation error is 400; langchain-openai looks for it to say what a caller can do.
        status = 400 if status == 422 else status
        body: dict[str, Any] = {"error": _openai_error(kind, error)}
        if not kind.retry_after and status != 408:
            # OpenAI's clients retry every 5xx twice unless told (a 408 may come in time when sent again).
            headers.append(("x-should-retry", "false"))
    else:
        body = {"error": {"code": kind.code, "message": error.message}}
        if path.startswith("/v1/"):
            body["detail"] = _jev_detail(kind, error)
    if status == 401:
        headers.append(("WWW-Authenticate", "Bearer"))
    if kind.retry_after:
        headers += [("Retry-After", str(kind.retry_after)), ("Retry-After-Ms", str(1000 * kind.retry_after))]
    return status, headers, jsonio.dumps(body)


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
    by_status = {
        400: "bad_request",
        404: "not_found",
        405: "method_not_allowed",
        413: "request_too_large",
        415: "unsupported_media_type",
    }
    return by_status.get(status, "invalid_request" if 400 <= status < 500 else "internal_error")


def _jev_detail(kind: Kind, error: ApiError) -> Any:
    if kind.status != 422:
        return {"error_type": kind.error_type, "message": error.message}
    problems = error.problems or (Problem((), error.message),)
    return [{"loc": ["body", *problem.loc], "msg": problem.msg, "type": problem.type} for problem in problems]


def _openai_error(kind: Kind, error: ApiError) -> dict[str, str | None]:
    """OpenAI's four keys. ``param`` and ``code`` are the first problem's; the message has them all."""
    code, param, message = kind.openai_code, None, error.message
    first = error.problems[0] if error.problems else None
    if first is not None and first.type == "json_invalid":
        # A place in the text of a body that is no JSON is not a parameter.
        message = first.msg
    elif first is not None:
        param = _bracketed(first.loc) or None
        if kind.status == 422:
            code = _OPENAI_CODES.get(first.type, "invalid_value")
            message = _joined(error, _bracketed)
    if kind.status >= 500:
        type_ = "server_error"
    else:
        type_ = "rate_limit_error" if kind.status == 429 else "invalid_request_error"
    # The Python client makes its own message of this one, and shows a bare status when it is empty.
    return {"message": message or kind.code, "type": type_, "param": param, "code": code}


def _joined(error: ApiError, path_of: Callable[[Loc], str]) -> str:
    parts = [f"{path_of(problem.loc)}: {problem.msg}" if problem.loc else problem.msg for problem in error.problems]
    return "; ".join(parts) + (f"; and {error.unlisted} more" if error.unlisted else "")


def _dotted(loc: Loc) -> str:
    return ".".join(map(str, loc))


def _bracketed(loc: Loc) -> str:
    """``questions[0].choices[1].value`` (wire/decisions.md §5); "" for the body itself."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            name = part if len(part) <= _MOST_SHOWN else f"{part[:_MOST_SHOWN]}..."
            path += f".{name}" if path else name
    return path
