"""The broker: the scorer's main thread, between the web tier's sockets and the inference thread.

The request-reply broker of the ZeroMQ guide, with one change: jobs wait in a queue of ours instead of a socket's
buffer. So service is first in, first out; the queue can be counted; and status, a late start, a drain and a hang are
all answered while a call runs, which a plain REP could not do (architecture.md §1.4).

Only header frames are parsed here. Payload frames pass as they came, uncopied: nothing between two calls of the
inference thread grows with the payload of a job that still waits.
"""

from __future__ import annotations

import logging
import os
import re
import select
import time
import uuid
from typing import Any

import zmq

from scorer.engines.base import Engine
from scorer.hang import EXIT_BROKEN, exit_if_hung
from scorer.jobline import write_line
from scorer.notify import Notifier
from scorer.waiting import WaitingJob, WaitingJobs
from scorer.worker import LOADING, READY, Worker, pack_stamp
from shared import jsonio, logs, wire
from shared.frames import DONTWAIT, readable, receive, send
from shared.rundir import RunDir
from shared.settings import ScorerSettings
from shared.slots import SlotTable
from shared.wire import Reply, Request

__all__ = ["EXIT_BROKEN", "EXIT_DRAINED", "EXIT_REFUSED", "EXIT_RUNNING", "Broker"]

# Exit codes: a supervisor restarts on EXIT_BROKEN and leaves the other three alone.
EXIT_DRAINED = 0
EXIT_RUNNING = 73  # EX_CANTCREAT: another scorer has the run directory
EXIT_REFUSED = 78  # EX_CONFIG

DRAINING = "draining"

_JOB_ID = re.compile(r"[0-9a-f]{32}")
_INPROC = "inproc://inference"
_TICK_MS = 500
_LINGER_MS = 2000

_log = logging.getLogger("scorer.broker")


class Broker:
    """One scorer process. ``settings`` and ``run_dir`` are checked; ``engine`` is created, not loaded; ``notifier``
    tells the service manager, if there is one.

    The caller holds the run directory's scorer lock. :meth:`run` returns the exit code.
    """

    def __init__(
        self, settings: ScorerSettings, run_dir: RunDir, engine: Engine, notifier: Notifier | None = None
    ) -> None:
        self._settings = settings
        self._run_dir = run_dir
        self._notifier = notifier or Notifier()
        self._boot_id = uuid.uuid4().hex
        self._started = time.monotonic()
        # Tables are opened without a size: the web tier, whichever tier starts first, sets it.
        self._queue = WaitingJobs(SlotTable(run_dir.slots))
        self._running: WaitingJob | None = None
        self._drain_until: float | None = None
        self._bad_messages = 0
        self._abandoned_replies = 0
        # Two contexts: the network's can be terminated, which flushes the last replies, while the inference thread
        # still holds a socket of the other one.
        self._network: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._front = self._bind_front()
        self._back = self._context.socket(zmq.DEALER)
        self._back.linger = 0
        self._back.bind(_INPROC)
        # Not a socket: making one while the context is being terminated aborts the process.
        self._wake_fd = os.eventfd(0)
        self._worker = Worker(self._context, _INPROC, engine, SlotTable(run_dir.slots), self._boot_id, self._wake)

    def stop(self) -> None:
        """Begin to drain. Safe in a signal handler: it only sets a time."""
        if self._drain_until is None:
            self._drain_until = time.monotonic() + self._settings.drain_s

    def run(self) -> int:
        """Serve until stopped or broken; returns the process's exit code. Ends the process itself when it hangs."""
        self._worker.start()
        wakeups = select.poll()
        for fd in (self._front.fileno(), self._back.fileno(), self._wake_fd):
            wakeups.register(fd, select.POLLIN)
        while True:
            self._wait(wakeups)
            self._take_result()
            self._take_messages()
            self._dispatch()
            code = self._verdict()
            if code is not None:
                return self._close(code)
            # Last: a loop that stands still, or that has found a hung job, must not say that it is alive.
            state = self._state()
            self._notifier.report(state, f"{state}; {len(self._queue)} jobs wait")

    def _bind_front(self) -> zmq.Socket[bytes]:
        socket = self._network.socket(zmq.ROUTER)
        socket.linger = _LINGER_MS
        # Without it a reply to a peer that left vanishes silently instead of being counted.
        socket.router_mandatory = 1
        socket.maxmsgsize = wire.MAX_PAYLOAD_BYTES
        socket.rcvhwm = socket.sndhwm = 0
        before = os.umask(0o177)
        try:
            socket.bind(self._run_dir.endpoint)
        finally:
            os.umask(before)
        return socket

    def _wake(self) -> None:
        """Called by the inference thread: make the loop look at the snapshot now."""
        os.eventfd_write(self._wake_fd, 1)

    def _wait(self, wakeups: select.poll) -> None:
        """Until there is something to do, or for one tick. zmq.Poller would ask every socket twice."""
        if readable(self._front) or readable(self._back):
            return
        if (self._wake_fd, select.POLLIN) in wakeups.poll(_TICK_MS):
            os.eventfd_read(self._wake_fd)

    # -- messages ------------------------------------------------------------------------------------------------

    def _take_messages(self) -> None:
        """Everything that has arrived, so that the queue is in order of arrival and not of polling."""
        while readable(self._front):
            frames = receive(self._front)
            # REQ's envelope: identity, empty, then our header and payload (a status request may leave the payload out).
            if not 3 <= len(frames) <= 4 or len(frames[1]):
                self._bad_messages += 1
                continue
            self._take(frames[:2], frames[2], frames[3] if len(frames) == 4 else None)

    def _take(self, envelope: list[zmq.Frame], head: zmq.Frame, payload: zmq.Frame | None) -> None:
        if len(head) > wire.MAX_HEADER_BYTES:
            self._bad_messages += 1
            return
        header = head.bytes
        try:
            request = wire.decode_request(header)
        except wire.WireError as error:
            self._bad_messages += 1
            version, job_id = wire.peek(header)
            # A peer of another version gets an answer that names both; anything else gets one if it gave an id.
            status = wire.UNAVAILABLE if version not in (None, wire.VERSION) else wire.BAD_MESSAGE
            self._reply(envelope, Reply(job_id, self._boot_id, status, str(error)))
            return
        if request.op == "status":
            self._reply(envelope, Reply(request.id, self._boot_id, wire.OK), jsonio.dumps(self._status()))
        elif request.op != "predict" or payload is None or not _is_job_id(request.id):
            self._bad_messages += 1
            self._reply(envelope, Reply(request.id, self._boot_id, wire.BAD_MESSAGE, "unknown op, or no payload"))
        elif self._state() != READY:
            self._refuse(envelope, request, wire.UNAVAILABLE, self._state())
        elif request.boot_id != self._boot_id:
            self._refuse(envelope, request, wire.STALE_BOOT, "")
        else:
            now = time.monotonic()
            self._queue.append(WaitingJob(envelope, request, payload, now, now + request.budget_ms / 1000))
            for job in self._queue.drop_unwanted():
                self._refuse(job.envelope, job.request, wire.EXPIRED, "")

    def _dispatch(self) -> None:
        if self._running is not None or not self._queue or self._worker.snapshot.broken is not None:
            return
        job = self._queue[0]
        stamp = pack_stamp(job.arrived, job.deadline, job.request)
        try:
            # One job is out at a time, so its envelope stays here; the empty frame is the one that REP expects.
            send(self._back, [b"", stamp, job.payload], DONTWAIT)
        except zmq.Again:
            return  # the inference thread has just closed its socket: a send that waits for it would wait for ever
        self._running = self._queue.popleft()

    def _take_result(self) -> None:
        if not readable(self._back):
            return
        _, header, payload = receive(self._back)
        job, self._running = self._running, None
        if job is not None:
            self._send([*job.envelope, header, payload])

    def _refuse(self, envelope: list[zmq.Frame], request: Request, status: str, message: str) -> None:
        reply = Reply(request.id, self._boot_id, status, message)
        self._reply(envelope, reply)
        write_line(reply, request_id=request.request_id, slot=request.slot)

    def _reply(self, envelope: list[zmq.Frame], reply: Reply, payload: bytes = b"") -> None:
        self._send([*envelope, wire.encode_reply(reply), payload])

    def _send(self, frames: Any) -> None:
        try:
            send(self._front, frames, DONTWAIT)
        except zmq.ZMQError:
            # The peer gave up and left (EHOSTUNREACH); its slot is its own affair.
            self._abandoned_replies += 1

    # -- state ---------------------------------------------------------------------------------------------------

    def _state(self) -> str:
        """``loading``, ``ready`` or ``draining``."""
        return DRAINING if self._drain_until is not None else self._worker.snapshot.state

    def _status(self) -> dict[str, Any]:
        """The payload of a status reply: numbers and names, no caller's text."""
        snapshot = self._worker.snapshot
        busy_since = snapshot.busy_since
        return {
            "state": self._state(),
            "engine": snapshot.info.to_json() if snapshot.info else None,
            "queue_length": len(self._queue),
            "busy_seconds": round(time.monotonic() - busy_since, 3) if busy_since is not None else 0.0,
            "busy_total_seconds": round(snapshot.busy_seconds, 3),
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "memory": snapshot.memory,
            "counters": {
                **snapshot.counters,
                wire.EXPIRED: snapshot.counters.get(wire.EXPIRED, 0) + self._queue.dropped,
                "bad_messages": self._bad_messages,
                "abandoned_replies": self._abandoned_replies,
            },
        }

    def _verdict(self) -> int | None:
        """The exit code when it is time to go."""
        snapshot = self._worker.snapshot
        if snapshot.refused is not None:
            logs.tell(f"scorer: {snapshot.refused}")
            return EXIT_REFUSED
        if snapshot.ended:
            self._take_result()
            _log.critical("exiting to be replaced", extra={"fields": {"reason": snapshot.broken}})
            return EXIT_BROKEN
        exit_if_hung(snapshot, self._started, self._settings)
        if self._drain_until is not None:
            idle = self._running is None and not self._queue and snapshot.busy_since is None
            if idle or snapshot.state == LOADING or time.monotonic() > self._drain_until:
                return EXIT_DRAINED
        return None

    def _close(self, code: int) -> int:
        """Answer what still waits, unlink the socket and leave without waiting for the inference thread."""
        for job in [*([self._running] if self._running else []), *self._queue]:
            self._refuse(job.envelope, job.request, wire.UNAVAILABLE, "the scorer is stopping")
        self._queue.clear()
        self._run_dir.socket.unlink(missing_ok=True)
        self._back.close()
        snapshot = self._worker.snapshot
        if snapshot.ended or (snapshot.state == READY and self._running is None and snapshot.busy_since is None):
            # An idle inference thread waits in a receive, which this ends; one that loads or hangs is left to the exit.
            self._context.term()
            self._worker.join()
            os.close(self._wake_fd)
        self._front.close()
        self._network.term()  # waits until the last replies are out, at most the linger time
        _log.info("stopped", extra={"fields": {"exit_code": code}})
        return code


def _is_job_id(text: str) -> bool:
    return _JOB_ID.fullmatch(text) is not None
