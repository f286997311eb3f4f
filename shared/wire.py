"""The messages between the web tier and the scorer.

A message is two frames: a small JSON header and a JSON payload. The broker reads headers only; payloads are parsed by
the thread that needs them (architecture.md §1.6, §1.11). Both directions carry the protocol version; fields may be
added freely, but a change of meaning takes a new :data:`VERSION`.

Request header: ``v, op, id`` and, for ``op: predict``, ``boot_id`` (the scorer start that the plan was made for),
``slot``,
``budget_ms`` and ``request_id``. Reply header: ``v, id, boot_id, status, message, queue_ms, score_ms,
input_tokens``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shared import jsonio
from shared.engine_info import EngineInfo, Limits
from shared.jsonio import InvalidJSON

__all__ = [
    "BAD_MESSAGE",
    "EXPIRED",
    "FAILED",
    "INVALID",
    "MAX_HEADER_BYTES",
    "MAX_PAYLOAD_BYTES",
    "NO_TERMS",
    "OK",
    "OUT_OF_MEMORY",
    "STALE_BOOT",
    "UNAVAILABLE",
    "VERSION",
    "CallItem",
    "EngineInfo",
    "Job",
    "Limits",
    "Reply",
    "Request",
    "Terms",
    "WireError",
    "decode_job",
    "decode_reply",
    "decode_request",
    "encode_job",
    "encode_reply",
    "encode_request",
]

VERSION = 2
MAX_HEADER_BYTES = 4096
#: Largest payload frame. A sender of more would see no error, only a dropped connection (architecture.md §1.10), so the
#: web tier checks before it sends. Rewriting a body grows it fourfold at most (``1e15`` becomes
#: ``1000000000000000.0``).
MAX_PAYLOAD_BYTES = 256 << 20

# Statuses of a reply.
OK = "ok"
INVALID = "invalid"  # the engine refused the input; message is for the caller
OUT_OF_MEMORY = "out_of_memory"
FAILED = "failed"
UNAVAILABLE = "unavailable"  # loading, draining, or another protocol version
EXPIRED = "expired"  # budget spent, or the web tier let go of the slot, before or between calls
STALE_BOOT = "stale_boot"  # planned for an earlier start of the scorer; nothing was run
BAD_MESSAGE = "bad_message"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MAX_SLOT = 2**31 - 1
_MAX_BUDGET_MS = 10**9
_MOST_TOKENS = 2**53
_STATUSES = frozenset({OK, INVALID, OUT_OF_MEMORY, FAILED, UNAVAILABLE, EXPIRED, STALE_BOOT, BAD_MESSAGE})


class WireError(ValueError):
    """A message is not of this protocol; the message text says which part."""


class CallItem(NamedTuple):
    """One question inside one call: the field name the model sees, the question's index in the job, and the order of
    its options (positions in the question's own order; None is that order)."""

    field: str
    question: int
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Terms:
    """What a request asks of an engine beside its questions: work done for another ``cache_salt`` must not be reused
    (contract/granite-switch-decision.md, C23), and ``long_context`` raises the cap on a request's tokens (S8)."""

    cache_salt: str = ""
    long_context: bool = False


NO_TERMS = Terms()


@dataclass(frozen=True)
class Job:
    """The payload of ``op: predict``: the state once, each question once, the calls as references."""

    state: Any
    questions: Sequence[Mapping[str, Any]]
    calls: Sequence[Sequence[CallItem]]
    terms: Terms = NO_TERMS

    def call_questions(self, call: Sequence[CallItem]) -> dict[str, dict[str, Any]]:
        """The questions of one call as the engine takes them: field name to question, options in the call's order."""
        out: dict[str, dict[str, Any]] = {}
        for item in call:
            question = dict(self.questions[item.question])
            if item.order is not None:
                options = list(question["criteria"].items())
                question["criteria"] = dict(options[index] for index in item.order)
            out[item.field] = question
        return out


@dataclass(frozen=True)
class Request:
    """A request header."""

    op: str
    id: str
    boot_id: str = ""
    slot: int = -1
    budget_ms: int = 0
    request_id: str = ""


@dataclass(frozen=True)
class Reply:
    """A reply header. ``queue_ms`` is the wait for the inference thread, ``score_ms`` the time on it (milliseconds);
    ``input_tokens`` counts every call of the job in full."""

    id: str
    boot_id: str
    status: str
    message: str = ""
    queue_ms: float = 0.0
    score_ms: float = 0.0
    input_tokens: int = 0


def encode_request(request: Request) -> bytes:
    """The header frame of a request."""
    return jsonio.dumps({"v": VERSION, **vars(request)})


def decode_request(frame: bytes) -> Request:
    """Read a request header. Raises :class:`WireError`; :func:`peek` tells the id of a header of another version."""
    header = _object(frame, "request header")
    if header.get("v") != VERSION:
        raise WireError(f"protocol version {_shown(header.get('v'))} is not {VERSION}")
    request = Request(
        op=_typed(header, "op", str, ""),
        id=_typed(header, "id", str, ""),
        boot_id=_typed(header, "boot_id", str, ""),
        slot=_typed(header, "slot", int, -1),
        budget_ms=_typed(header, "budget_ms", int, 0),
        request_id=_typed(header, "request_id", str, ""),
    )
    if not request.op or not _is_id(request.id):
        raise WireError("request header: op and id are required")
    if request.request_id and not _is_id(request.request_id):
        raise WireError("request header: request_id is not an id")
    if not -1 <= request.slot <= _MAX_SLOT or not 0 <= request.budget_ms <= _MAX_BUDGET_MS:
        raise WireError("request header: slot or budget_ms is out of range")
    return request


def peek(frame: bytes) -> tuple[Any, str]:
    """The version and id of any header, for an answer to a peer of another version; (None, "") when unreadable."""
    try:
        header = _object(frame, "header")
        found = _typed(header, "id", str, "")
        return header.get("v"), found if _is_id(found) else ""
    except WireError:
        return None, ""


def encode_reply(reply: Reply) -> bytes:
    """The header frame of a reply."""
    return jsonio.dumps({"v": VERSION, **vars(reply)})


def decode_reply(frame: bytes) -> Reply:
    """Read a reply header. Raises :class:`WireError`."""
    header = _object(frame, "reply header")
    if header.get("v") != VERSION:
        raise WireError(f"the scorer speaks protocol version {_shown(header.get('v'))}, this web tier {VERSION}")
    reply = Reply(
        id=_typed(header, "id", str, ""),
        boot_id=_typed(header, "boot_id", str, ""),
        status=_typed(header, "status", str, ""),
        message=_typed(header, "message", str, ""),
        queue_ms=_typed(header, "queue_ms", float, 0.0),
        score_ms=_typed(header, "score_ms", float, 0.0),
        input_tokens=_typed(header, "input_tokens", int, 0),
    )
    if reply.status not in _STATUSES:
        raise WireError("reply header: unknown status")
    if not 0 <= reply.input_tokens <= _MOST_TOKENS:
        raise WireError("reply header: input_tokens is out of range")
    return reply


def encode_job(job: Job) -> bytes:
    """The payload frame of ``op: predict``. An order is sent only where it is not the question's own."""
    calls = [[item if item.order else item[:2] for item in call] for call in job.calls]
    payload = {"state": job.state, "questions": job.questions, "calls": calls}
    if job.terms != NO_TERMS:
        payload["terms"] = vars(job.terms)
    return jsonio.dumps(payload)


def decode_job(frame: bytes) -> Job:
    """Read a predict payload. Raises :class:`WireError` unless every reference in it is sound."""
    payload = _object(frame, "job", limit=None)
    questions, calls = payload.get("questions"), payload.get("calls")
    if "state" not in payload or not isinstance(questions, list) or not isinstance(calls, list) or not calls:
        raise WireError("job: state, questions and calls are required")
    if not all(isinstance(question, dict) for question in questions):
        raise WireError("job: a question is not an object")
    return Job(payload["state"], questions, [_decode_call(call, questions) for call in calls], _decode_terms(payload))


def _decode_terms(payload: dict[str, Any]) -> Terms:
    terms = payload.get("terms", {})
    if not isinstance(terms, dict):
        raise WireError("job: terms is not an object")
    return Terms(_typed(terms, "cache_salt", str, ""), _typed(terms, "long_context", bool, False))


def _decode_call(call: Any, questions: list[dict[str, Any]]) -> list[CallItem]:
    if not isinstance(call, list) or not call:
        raise WireError("job: a call is not a nonempty list")
    items: list[CallItem] = []
    for entry in call:
        if not isinstance(entry, list) or len(entry) not in (2, 3):
            raise WireError("job: a call entry is not [field, question] with or without an order")
        name, index, *rest = entry
        order = rest[0] if rest else None
        if not isinstance(name, str) or type(index) is not int or not 0 <= index < len(questions):
            raise WireError("job: a call entry refers to no question")
        if order is not None:
            criteria = questions[index].get("criteria")
            size = len(criteria) if isinstance(criteria, dict) else -1
            if (
                size < 1
                or not isinstance(order, list)
                or not all(type(position) is int for position in order)
                or sorted(order) != list(range(size))
            ):
                raise WireError("job: an order is not a permutation of the question's options")
            order = tuple(order)
        items.append(CallItem(name, index, order))
    if len({item.field for item in items}) != len(items):
        raise WireError("job: a field name occurs twice in one call")
    return items


def _shown(version: Any) -> str:
    return str(version) if type(version) is int and 0 <= version < 10**6 else "unknown"


def _is_id(text: str) -> bool:
    """Ids come back in replies and logs, so they are plain."""
    return _ID.fullmatch(text) is not None


def _object(frame: bytes, what: str, limit: int | None = MAX_HEADER_BYTES) -> dict[str, Any]:
    if limit is not None and len(frame) > limit:
        raise WireError(f"{what}: longer than {limit} bytes")
    try:
        value = jsonio.loads_ours(frame)
    except InvalidJSON as error:
        raise WireError(f"{what}: {error}") from None
    if not isinstance(value, dict):
        raise WireError(f"{what}: not an object")
    return value


def _typed(header: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = header.get(name, default)
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is not kind:
        raise WireError(f"header: {name} is not {kind.__name__}")
    return value
