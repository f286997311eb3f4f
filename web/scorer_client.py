"""The web tier's side of the scorer's socket: one job, one REQ, one answer or one clear error.

A socket is kept for reuse only after a clean, matching reply; after anything else it is closed, so a late answer can
never reach another request (architecture.md §1.3). Keeping pays: on two cores a round trip over a new socket and its
monitor took 0.43 ms, over a kept one 0.10 ms. While it waits, the client watches three things: the reply; the socket's
own monitor, which tells of a dead scorer within a millisecond where REQ alone would wait for ever; and the HTTP
caller's connection, since nobody should score for a caller that has left.
"""

from __future__ import annotations

import logging
import math
import os
import re
import select
import socket as sockets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import zmq

from shared import jsonio, wire
from shared.frames import DONTWAIT, receive, send
from shared.wire import EngineInfo, Job, Reply, Request
from web.connection import Connection
from web.errors import ApiError, Invalid, Problem
from web.turn import NO_TURN, Turn

__all__ = ["Description", "Scored", "ScorerClient", "StaleBoot", "engine_of"]

_MOST_SOCKETS = 8192
_STATUS_S = 0.5

#: How every engine words it (engine/intern-decision.md §1.6).
_TOO_LONG = re.compile(r"Example has \d+ tokens, above \d+")

_log = logging.getLogger("web.scorer_client")


@dataclass(frozen=True)
class Description:
    """What this worker knows of the scorer that runs now: its start's id and its engine."""

    boot_id: str
    info: EngineInfo


@dataclass(frozen=True)
class Scored:
    """A clean answer: its header and, per call, ``answer, input_tokens, cached_tokens, prompt_sha256``."""

    reply: Reply
    calls: list[dict[str, Any]]


def engine_of(status: Mapping[str, Any]) -> EngineInfo:
    """The engine's description in a status payload. Raises ApiError ``scorer_unavailable`` when it cannot be read."""
    try:
        return EngineInfo.from_json(status["engine"])
    except (ValueError, KeyError) as error:
        _log.error("unreadable engine description", extra={"fields": {"reason": str(error)}})
        raise ApiError("scorer_unavailable", "the scorer is of another version") from None


class StaleBoot(Exception):
    """The scorer was restarted since the plan was made; nothing was run, so planning anew and asking again is safe."""


class ScorerClient:
    """Talks to the scorer behind ``endpoint``. Safe for any number of threads; makes its sockets after a fork."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._idle: deque[Connection] = deque()
        self._idle_pid = os.getpid()
        self._known: Description | None = None

    def close(self) -> None:
        """Close the idle sockets."""
        while self._idle:
            self._idle.pop().close()

    def status(self) -> tuple[Reply, dict[str, Any]]:
        """The scorer's status reply and its payload. Raises ApiError ``scorer_unavailable`` within about a second."""
        request = Request("status", os.urandom(16).hex())
        try:
            reply, payload = self._exchange(request, b"", time.monotonic() + _STATUS_S, None, NO_TURN)
        except ApiError as error:
            # No budget of a caller's is spent here: a scorer that is this slow to say how it is, is not there.
            raise ApiError("scorer_unavailable", error.message) from None
        if reply.status != wire.OK:
            raise ApiError("scorer_unavailable", self._skew(reply))
        return reply, _object(payload)

    def describe(self, afresh: bool = False) -> Description:
        """The running scorer's description, asked for once per start of it. Raises ApiError ``scorer_unavailable`` when
        it is not ready."""
        if self._known is None or afresh:
            reply, payload = self.status()
            if payload.get("engine") is None:
                raise ApiError("scorer_unavailable", f"the scorer is {payload.get('state', 'not ready')}")
            self._known = Description(reply.boot_id, engine_of(payload))
        return self._known

    def ask(
        self,
        job: Job,
        *,
        slot: int,
        job_id: bytes,
        boot_id: str,
        deadline: float,
        request_id: str,
        caller: Any = None,
        turn: Turn = NO_TURN,
    ) -> Scored:
        """Have every call of ``job`` scored; ``deadline`` is monotonic seconds, ``caller`` the HTTP connection's
        socket, ``turn`` the caller's own, which others have while the scorer is at work.

        Raises StaleBoot, or ApiError: ``scorer_unavailable``, ``deadline_exceeded``, ``client_closed_request``,
        ``invalid_request`` with the engine's message, ``out_of_memory``, ``scoring_failed``, ``request_too_large``.
        """
        payload = wire.encode_job(job)
        if len(payload) > wire.MAX_PAYLOAD_BYTES:
            raise ApiError("request_too_large", "the request is too large for the scorer")
        budget_ms = int(1000 * (deadline - time.monotonic()))
        if budget_ms <= 0:
            raise ApiError("deadline_exceeded", "the request's time was over before it could be scored")
        request = Request("predict", job_id.hex(), boot_id, slot, budget_ms, request_id)
        reply, body = self._exchange(request, payload, deadline, caller, turn)
        if reply.status == wire.STALE_BOOT:
            raise StaleBoot
        if reply.status == wire.OK:
            if reply.boot_id != boot_id:
                _log.error("an answer of another scorer start", extra={"fields": {"request_id": request_id}})
                raise ApiError("scoring_failed", "the scorer's answer does not belong to this request")
            calls = _object(body).get("calls")
            if isinstance(calls, list) and len(calls) == len(job.calls):
                return Scored(reply, calls)
            raise ApiError("scoring_failed", "the scorer answered a different number of calls")
        raise self._error(reply)

    def _error(self, reply: Reply) -> ApiError:
        if reply.status == wire.INVALID:
            # The one refusal of an engine that clients know by name (wire/systemone.md §10, row 20).
            too_long = _TOO_LONG.match(reply.message)
            return Invalid([Problem((), reply.message, "max_tokens_exceeded" if too_long else "value_error")])
        if reply.status == wire.OUT_OF_MEMORY:
            return ApiError("out_of_memory", reply.message)
        if reply.status == wire.UNAVAILABLE:
            return ApiError("scorer_unavailable", self._skew(reply))
        if reply.status == wire.EXPIRED:
            return ApiError("deadline_exceeded", "the request's time was over before it could be scored")
        return ApiError("scoring_failed", reply.message or "the scorer could not read the job")

    def _skew(self, reply: Reply) -> str:
        if "protocol version" in reply.message:
            _log.error("the tiers speak different protocol versions", extra={"fields": {"scorer_says": reply.message}})
        return f"the scorer is not available: {reply.message}" if reply.message else "the scorer is not available"

    # -- one exchange ---------------------------------------------------------------------------------------------

    def _exchange(
        self, request: Request, payload: bytes, deadline: float, caller: Any, turn: Turn
    ) -> tuple[Reply, bytes]:
        connection = self._connection()
        try:
            send(connection.socket, [wire.encode_request(request), payload])
            reply, body = self._await(connection, request.id, deadline, caller, turn)
        except BaseException as error:  # only a connection whose exchange ended cleanly is kept
            connection.close()
            if isinstance(error, zmq.ZMQError):
                _log.error("the connection failed", extra={"fields": {"reason": str(error)}})
                raise ApiError("scorer_unavailable", "the connection to the scorer failed") from None
            raise
        self._idle.append(connection)
        return reply, body

    def _connection(self) -> Connection:
        if self._idle_pid != os.getpid():
            # The sockets belong to the parent of a fork (a preloaded application); they must not even be closed here.
            self._idle, self._idle_pid, self._known = deque(), os.getpid(), None
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if not connection.lost():
                return connection
            connection.close()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        # Three sockets a connection, up to a connection a thread; the default is 1,023. Read at the first socket.
        context.set(zmq.MAX_SOCKETS, _MOST_SOCKETS)
        try:
            return Connection(context, self._endpoint)
        except (zmq.ZMQError, OSError) as error:
            _log.error("no connection can be made", extra={"fields": {"reason": str(error)}})
            raise ApiError("scorer_unavailable", "the server has no connection left to the scorer") from None

    def _await(
        self, connection: Connection, job_id: str, deadline: float, caller: Any, turn: Turn
    ) -> tuple[Reply, bytes]:
        watched = caller.fileno() if caller is not None else -1
        lost = False
        if watched >= 0:
            connection.wakeups.register(watched, select.POLLIN)
        try:
            while True:
                # Also when the scorer is lost: one that answers and exits may be seen to go before its answer is.
                try:
                    return self._read([frame.bytes for frame in receive(connection.socket, DONTWAIT)], job_id)
                except zmq.Again:
                    if lost:
                        raise ApiError("scorer_unavailable", "the scorer was lost while it held the request") from None
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ApiError("deadline_exceeded", "the request was not scored in time")
                turn.give()
                ready = {fd for fd, _ in connection.wakeups.poll(math.ceil(1000 * left))}
                turn.take()
                lost = connection.monitor_fd in ready and connection.lost()
                if watched in ready:
                    if _has_left(caller):
                        raise ApiError("client_closed_request", "the caller left before its answer was ready")
                    # A next request is waiting behind this one: stop watching, or poll would return at once for ever.
                    connection.wakeups.unregister(watched)
                    watched = -1
        finally:
            if watched >= 0:
                connection.wakeups.unregister(watched)

    def _read(self, frames: list[bytes], job_id: str) -> tuple[Reply, bytes]:
        try:
            if len(frames) != 2:
                raise wire.WireError(f"a reply of {len(frames)} frames")
            reply = wire.decode_reply(frames[0])
        except wire.WireError as error:
            _log.error("unreadable reply", extra={"fields": {"reason": str(error)}})
            raise ApiError("scorer_unavailable", "the scorer's answer cannot be read") from None
        if reply.id != job_id:
            _log.error("a reply to another job")
            raise ApiError("scoring_failed", "the scorer's answer does not belong to this request")
        return reply, frames[1]


def _has_left(caller: Any) -> bool:
    try:
        return not caller.recv(1, sockets.MSG_PEEK | sockets.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _object(payload: bytes) -> dict[str, Any]:
    try:
        value = jsonio.loads_ours(payload)
    except jsonio.InvalidJSON:
        value = None
    if not isinstance(value, dict):
        raise ApiError("scoring_failed", "the scorer's answer is not finite JSON")
    return value
