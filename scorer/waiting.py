"""The jobs that wait for the inference thread, first in, first out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from shared.slots import SlotFileError, SlotTable
from shared.wire import Request

__all__ = ["WaitingJob", "WaitingJobs"]


@dataclass
class WaitingJob:
    """One job: whom to answer, its header and payload, and its arrival and deadline in monotonic seconds. Envelope and
    payload are ``zmq.Frame`` objects, as they came."""

    envelope: list[Any]
    request: Request
    payload: Any
    arrived: float
    deadline: float


class WaitingJobs(deque[WaitingJob]):
    """The queue. ``dropped`` counts what :meth:`drop_unwanted` has dropped; ``slots`` is a table of its own, since two
    threads must not reopen the same one."""

    def __init__(self, slots: SlotTable) -> None:
        super().__init__()
        self._slots = slots
        self.dropped = 0

    def drop_unwanted(self) -> list[WaitingJob]:
        """Forget the jobs whose callers have left, and return them, once there are more than two jobs a slot: payloads
        of callers who give up and come back must not pile up behind one long call.

        It asks the slot file, as the inference thread does at a job's turn, and so drops nothing that would have run: a
        live job's slot is locked under its own id from before it was sent until its answer. By slot number alone a live
        job could go, since messages of two sockets have no order. At most one job a slot is live, so at least every
        second one goes, and the work for an arriving job stays constant.
        """
        if len(self) <= 2 * self._slots.size:
            return []
        kept: list[WaitingJob] = []
        gone: list[WaitingJob] = []
        for job in self:
            (kept if self._wanted(job.request) else gone).append(job)
        self.clear()
        self.extend(kept)
        self.dropped += len(gone)
        return gone

    def _wanted(self, request: Request) -> bool:
        try:
            return self._slots.wanted(request.slot, bytes.fromhex(request.id))
        except (SlotFileError, OSError):
            return True  # nobody can tell; the inference thread logs it at the job's turn
