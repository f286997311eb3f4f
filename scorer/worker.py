"""The one inference thread: a serial REP loop that loads the engine and runs every job (INV-2).

torch keeps CUDA state per host thread, part of it outside the memory cap, so load, warm-up, canary and every call
happen here and nowhere else. The broker sends two frames, a stamp of its own (when the job came, until when it is
wanted, its slot and id) and the payload; payloads are parsed here, where nothing else waits on the interpreter lock.
"""

from __future__ import annotations

import gc
import logging
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import zmq

from scorer.engines.base import Engine, StartRefused
from scorer.jobline import write_line
from scorer.recovery import Afterwards, classify
from shared import jsonio, logs, wire
from shared.frames import receive, send
from shared.slots import SlotFileError, SlotTable, WorkLease
from shared.wire import EngineInfo, Job, Reply, Request

__all__ = ["LOADING", "READY", "Snapshot", "Worker", "pack_stamp"]

LOADING, READY = "loading", "ready"

#: How often a running job looks whether its caller still waits. It takes two system calls, and at each of them the
#: interpreter lock may change hands, which a quick engine's calls are too short for.
_LOOK_EVERY_S = 0.005

_log = logging.getLogger("scorer.worker")


@dataclass
class Snapshot:
    """What the broker may tell about this thread without asking it. Written by the inference thread only, whole values
    at a time, so readers need no lock and make no CUDA call (architecture.md §1.6)."""

    state: str = LOADING
    info: EngineInfo | None = None
    refused: str | None = None  # why the engine must not serve: exit 78
    broken: str | None = None  # why the process must be replaced: exit 70; no further job is taken
    ended: bool = False  # the thread has sent its last reply
    busy_since: float | None = None  # monotonic seconds
    busy_seconds: float = 0.0  # of all jobs that are over, with what follows each
    memory: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


_STAMP = struct.Struct("ddi16s")


def pack_stamp(arrived: float, deadline: float, request: Request) -> bytes:
    """The broker's frame: arrival and deadline in monotonic seconds, the job's slot, id and request id."""
    return _STAMP.pack(arrived, deadline, request.slot, bytes.fromhex(request.id)) + request.request_id.encode("ascii")


class Worker(threading.Thread):
    """See the module's text. ``engine`` is not loaded yet; ``boot_id`` goes into every reply."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        engine: Engine,
        slots: SlotTable,
        boot_id: str,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(name="inference", daemon=True)
        self.snapshot = Snapshot()
        self._context = context
        self._endpoint = endpoint
        self._engine = engine
        self._slots = slots
        self._boot_id = boot_id
        self._wake = wake
        self._canary: Any = None

    def run(self) -> None:
        """Load, then serve until the context is terminated. Never raises: the broker reads the outcome in the
        snapshot."""
        try:
            self._load()
            if self.snapshot.state == READY:
                self._serve()
        except zmq.ContextTerminated:
            pass
        except BaseException as error:
            # Whatever got here is a bug of ours: the loop cannot go on, and a dead thread behind a live broker would
            # keep every caller waiting (vllm#39863), so the process is replaced.
            _log.critical("the inference thread died", extra={"fields": logs.frames(error)})
            self.snapshot.broken = "the inference thread died"
        finally:
            self.snapshot.ended = True
            self._wake()

    def _load(self) -> None:
        started = time.monotonic()
        try:
            self._engine.load()
            self._canary = self._engine.canary()
        except StartRefused as refusal:
            self.snapshot.refused = str(refusal)
            return
        self.snapshot.info = self._engine.info()
        self.snapshot.memory = self._engine.memory()
        # What load left behind is permanent: keep the collector from walking it at every full collection.
        gc.collect()
        gc.freeze()
        self.snapshot.state = READY
        _log.info(
            "ready",
            extra={
                "fields": {"model": self.snapshot.info.served_model, "load_s": round(time.monotonic() - started, 3)}
            },
        )
        self._wake()

    def _serve(self) -> None:
        socket = self._context.socket(zmq.REP)
        socket.linger = 0
        socket.connect(self._endpoint)
        with socket:
            while self.snapshot.broken is None:
                stamp, payload = (frame.bytes for frame in receive(socket))
                self.snapshot.busy_since = time.monotonic()
                facts: dict[str, Any] = {}
                reply, body, afterwards = self._job(stamp, payload, facts)
                if afterwards is Afterwards.EXIT:
                    self.snapshot.broken = "a fatal device error"
                send(socket, [wire.encode_reply(reply), body])
                write_line(reply, **facts)
                if reply.status not in (wire.OK, wire.EXPIRED):
                    # Frames that hold each other in a cycle outlive their exception until the collector has run. What
                    # was there after load is frozen, so this takes about a millisecond.
                    gc.collect()
                self._engine.release()
                self._after(afterwards)
                self.snapshot.memory = self._engine.memory()
                self.snapshot.busy_seconds += time.monotonic() - self.snapshot.busy_since
                self.snapshot.busy_since = None

    def _job(self, stamp: bytes, payload: bytes, facts: dict[str, Any]) -> tuple[Reply, bytes, Afterwards]:
        """One job; ``facts`` is filled with what its log line tells beside the reply."""
        started = time.monotonic()
        arrived, deadline, slot, job_id = _STAMP.unpack_from(stamp)
        request_id = stamp[_STAMP.size :].decode("ascii")
        facts.update(request_id=request_id, slot=slot)
        body = b""
        lease = self._lease(slot, job_id) if started < deadline else None
        if lease is None:
            status, message, afterwards = wire.EXPIRED, "", Afterwards.GO_ON
        else:
            with lease:
                status, message, afterwards, body = self._score(payload, lease, deadline, facts)
        self._count(status)
        reply = Reply(
            job_id.hex(),
            self._boot_id,
            status,
            message,
            queue_ms=round(1000 * (started - arrived), 3),
            score_ms=round(1000 * (time.monotonic() - started), 3),
            input_tokens=facts.pop("input_tokens", 0),
        )
        return reply, body, afterwards

    def _lease(self, slot: int, job_id: bytes) -> WorkLease | None:
        try:
            return self._slots.begin_work(slot, job_id)
        except (SlotFileError, OSError) as error:
            # Nobody can tell any more whether the request is still wanted; the web tier refuses new ones by itself.
            _log.error("the slot file cannot be read", extra={"fields": logs.frames(error)})
            return None

    def _score(
        self, payload: bytes, lease: WorkLease, deadline: float, facts: dict[str, Any]
    ) -> tuple[str, str, Afterwards, bytes]:
        try:
            job = wire.decode_job(payload)
        except wire.WireError as error:
            return wire.BAD_MESSAGE, str(error), Afterwards.GO_ON, b""
        facts.update(calls=len(job.calls), questions=sum(map(len, job.calls)))
        try:
            results = self._run_calls(job, lease, deadline, facts)
        except Exception as error:
            verdict = classify(error)
            if verdict.status != wire.INVALID:
                where = getattr(error, "origin", None) or logs.frames(error)
                _log.error(
                    "the engine failed",
                    extra={"fields": {"request_id": facts["request_id"], "status": verdict.status, **where}},
                )
            # The frames own the tensors of the failed call; they must be dead before the engine releases memory
            # (INV-4, pytorch#27600).
            error.__traceback__ = None
            return verdict.status, verdict.message, verdict.afterwards, b""
        if results is None:
            return wire.EXPIRED, "", Afterwards.GO_ON, b""
        try:
            return wire.OK, "", Afterwards.GO_ON, jsonio.dumps({"calls": results})
        except (ValueError, TypeError, RecursionError) as error:
            # A non-finite number, or something that is not JSON: the engine's fault, whatever the exception (INV-1).
            _log.error(
                "the engine's answer is not finite JSON",
                extra={"fields": {"request_id": facts["request_id"], **logs.frames(error)}},
            )
            return wire.FAILED, "the model's answer is not finite", Afterwards.CANARY, b""

    def _run_calls(
        self, job: Job, lease: WorkLease, deadline: float, facts: dict[str, Any]
    ) -> list[dict[str, Any]] | None:
        """Every call of the job, back to back; None when its caller gave up meanwhile."""
        prepared = self._engine.prepare(job.state, [job.call_questions(call) for call in job.calls], job.terms)
        facts["input_tokens"] = sum(call.input_tokens for call in prepared)
        results: list[dict[str, Any]] = []
        look_at = time.monotonic() + _LOOK_EVERY_S
        for call in prepared:
            now = time.monotonic()
            if now >= look_at or now >= deadline:
                if now >= deadline or not lease.wanted():
                    return None
                look_at = now + _LOOK_EVERY_S
            result = self._engine.predict(call)
            results.append(
                {
                    "answer": result.answer,
                    "input_tokens": call.input_tokens,
                    "cached_tokens": result.cached_tokens,
                    "prompt_sha256": call.prompt_sha256,
                }
            )
        return results

    def _after(self, afterwards: Afterwards) -> None:
        if afterwards is Afterwards.CANARY:
            try:
                healthy = self._engine.canary() == self._canary
            except Exception as error:
                # Any failure of the canary means the same: this process can no longer be trusted.
                _log.error("the canary failed", extra={"fields": logs.frames(error)})
                healthy = False
            if not healthy:
                self.snapshot.broken = "the canary does not answer as it did at start"

    def _count(self, status: str) -> None:
        self.snapshot.counters[status] = self.snapshot.counters.get(status, 0) + 1
