"""The broker against strangers on its socket (scorer/broker.py): failure test 32; architecture.md §1.4, §1.11."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from scorer.broker import EXIT_BROKEN
from scorer.engines.base import FatalEngineError
from shared import wire
from shared.rundir import RunDir
from shared.settings import ScorerSettings
from shared.slots import Slot, SlotTable
from tests.harness import D1, Local, RecordingEngine, wait_for


@pytest.fixture
def stranger(local: Local) -> Iterator[zmq.Socket[bytes]]:
    """A socket that may send the scorer anything."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(RunDir(local.dir).endpoint)
    yield socket
    socket.close()
    context.term()


def header(local: Local, **fields: Any) -> bytes:
    boot_id = local.client.get("/health").json["boot_id"]
    head = {"v": wire.VERSION, "op": "predict", "id": "ab" * 16, "boot_id": boot_id, "slot": 0, "budget_ms": 1000}
    return json.dumps({**head, **fields}).encode()


def still_serves(local: Local, socket: zmq.Socket[bytes]) -> None:
    """The loop is alive: it answers this very socket after everything that was sent before, and it scores."""
    socket.send_multipart([b"", json.dumps({"v": wire.VERSION, "op": "status", "id": "last"}).encode()])
    while True:
        assert socket.poll(10_000), "the broker is dead"
        frames = socket.recv_multipart()
        if len(frames) == 3 and json.loads(frames[1])["id"] == "last":
            break
    assert local.post("/decide", D1)[0] == 200


HOSTILE: dict[str, dict[str, Any]] = {
    "a lone surrogate as id": {"op": "status", "id": "\ud800"},
    "a lone surrogate as id of another version": {"v": 2, "op": "status", "id": "\ud800"},
    "a slot above 32 bits": {"slot": 1 << 40},
    "a negative slot": {"slot": -5},
    "a budget no float holds": {"budget_ms": int("9" * 400)},
    "a negative budget": {"budget_ms": -1},
    "an id that is not hexadecimal": {"id": "zz" * 16},
    "an unknown op": {"op": "TERMINATION"},
    "a version that is a list": {"v": [[1]]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_header_ends_the_broker(local: Local, stranger: zmq.Socket[bytes], name: str) -> None:
    stranger.send_multipart([b"", header(local, **HOSTILE[name]), b"{}"])
    still_serves(local, stranger)


def test_random_frames_are_dropped_or_answered_and_counted(local: Local, stranger: zmq.Socket[bytes]) -> None:
    dice = random.Random(1)
    good = header(local)
    before = local.client.get("/health").json["counters"]["bad_messages"]
    for _ in range(500):
        frames = [
            dice.choice([b"", b"", good, dice.randbytes(dice.randrange(40)), b"[" * 5000, b"{}", header_like(dice)])
            for _ in range(dice.choice([1, 2, 3, 3, 3, 4, 5, 41]))
        ]
        stranger.send_multipart(frames)
    still_serves(local, stranger)
    assert local.client.get("/health").json["counters"]["bad_messages"] > before


def header_like(dice: random.Random) -> bytes:
    names = ["v", "op", "id", "slot", "budget_ms", "boot_id"]
    values = [1, 2, "predict", "status", "ab" * 16, None, [], 1.5, -1]
    return json.dumps({name: dice.choice(values) for name in dice.sample(names, 4)}).encode()


def test_another_protocol_version_is_answered_with_both_versions(local: Local, stranger: zmq.Socket[bytes]) -> None:
    stranger.send_multipart([b"", header(local, v=99, id="x"), b"{}"])
    assert stranger.poll(10_000)
    reply = wire.decode_reply(stranger.recv_multipart()[1])
    assert (reply.id, reply.status) == ("x", wire.UNAVAILABLE)
    assert "99" in reply.message
    assert str(wire.VERSION) in reply.message.replace("99", "")


# -- callers that give up ----------------------------------------------------------------------------------------

SIZE = 4


class GatedEngine(RecordingEngine):
    """Every call waits until the gate is open."""

    def __init__(self, settings: ScorerSettings) -> None:
        super().__init__(settings)
        self.gate = threading.Event()
        self.error: Exception | None = None  # raised once the gate is open

    def predict(self, call: Any) -> Any:
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        return super().predict(call)


@pytest.fixture
def gated() -> Iterator[Local]:
    service = Local(engine=GatedEngine, MAX_QUEUE=str(SIZE))
    yield service
    service.engine.gate.set()
    service.close()


class Callers:
    """Web threads without their HTTP: each takes a slot, sends a job on a socket of its own, and waits or leaves."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.table = SlotTable(local.dir / "slots")
        self._boot_id = self.status()["boot_id"]
        self.waiting: list[tuple[bytes, Slot, zmq.Socket[bytes]]] = []

    def status(self) -> Any:
        return self._local.client.get("/health").json

    def ask(self, payload: bytes = b"", send: Callable[[Callable[[], None]], None] = lambda go: go()) -> None:
        """One caller. ``send`` may hold the sending back."""
        job_id = os.urandom(16)
        slot = self.table.acquire(job_id)
        assert slot is not None
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(RunDir(self._local.dir).endpoint)
        head = {"v": wire.VERSION, "op": "predict", "id": job_id.hex(), "slot": slot.index, "budget_ms": 600_000}
        message = [b"", json.dumps({**head, "boot_id": self._boot_id}).encode(), payload or job_of(job_id)]
        self.waiting.append((job_id, slot, socket))
        send(lambda: socket.send_multipart(message))

    def leave(self, index: int = -1) -> zmq.Socket[bytes]:
        """One caller gives up; its socket may still get what is sent to it."""
        _, slot, socket = self.waiting.pop(index)
        slot.close()
        return socket

    def close(self) -> None:
        for _, slot, socket in self.waiting:
            slot.close()
            socket.close()
        self._context.destroy(linger=0)
        self.table.close()


@pytest.fixture
def callers(gated: Local) -> Iterator[Callers]:
    made = Callers(gated)
    yield made
    made.close()


def job_of(job_id: bytes) -> bytes:
    name = job_id.hex()
    question = {"type": "choice", "instructions": "?", "criteria": {f"{name}-a": "A", f"{name}-b": "B"}}
    return json.dumps({"state": name, "questions": [question], "calls": [[["q", 0, None]]]}).encode()


def running_and_nothing_queued(callers: Callers) -> bool:
    found = callers.status()
    return bool(found["busy_seconds"] > 0 and found["queue_length"] == 0)


def answers_own(job_id: bytes, socket: zmq.Socket[bytes]) -> bool:
    assert socket.poll(10_000), "a live job was lost"
    _, head, body = socket.recv_multipart()
    reply = wire.decode_reply(head)
    return (reply.id, reply.status) == (job_id.hex(), wire.OK) and job_id.hex().encode() in body


def test_jobs_of_callers_that_gave_up_do_not_pile_up_behind_a_long_call(gated: Local, callers: Callers) -> None:
    callers.ask()
    wait_for(lambda: running_and_nothing_queued(callers), 10, "one job running")
    callers.ask()  # one patient caller among the impatient ones
    wait_for(lambda: callers.status()["queue_length"] == 1, 10, "the patient one queued")
    longest = 0
    for _ in range(100):
        seen = callers.status()["queue_length"]
        callers.ask(payload=b"x" * 10_000)
        wait_for(lambda seen=seen: callers.status()["queue_length"] != seen, 10, "the job arrived")
        longest = max(longest, callers.status()["queue_length"])
        callers.leave().close()
    assert SIZE < longest <= 2 * SIZE
    gated.engine.gate.set()
    for job_id, _, socket in callers.waiting:
        assert answers_own(job_id, socket)
    wait_for(lambda: callers.status()["counters"]["expired"] == 100, 10, "all of them counted")


def test_jobs_are_answered_in_the_order_of_their_arrival_each_to_its_caller(gated: Local, callers: Callers) -> None:
    for number in range(SIZE):
        callers.ask()
        wait_for(lambda waiting=number: queued_behind_one(callers) == waiting, 10, "the job arrived")
    gated.engine.gate.set()
    for job_id, _, socket in callers.waiting:
        assert answers_own(job_id, socket)
    assert [call["state"] for call in gated.engine.calls] == [job_id.hex() for job_id, _, _ in callers.waiting]


def test_a_process_that_must_be_replaced_begins_no_further_job_and_tells_all_callers(
    gated: Local, callers: Callers
) -> None:
    for number in range(3):
        callers.ask()
        wait_for(lambda waiting=number: queued_behind_one(callers) == waiting, 10, "the job arrived")
    gated.engine.error = FatalEngineError("the device is gone")
    gated.engine.gate.set()
    statuses = []
    for job_id, _, socket in callers.waiting:
        assert socket.poll(10_000), "a caller was not told"
        reply = wire.decode_reply(socket.recv_multipart()[1])
        assert reply.id == job_id.hex()
        statuses.append(reply.status)
        assert not socket.poll(0), "told twice"
    assert statuses == [wire.FAILED, wire.UNAVAILABLE, wire.UNAVAILABLE]
    wait_for(lambda: gated.exit_code == EXIT_BROKEN, 10, "the end")
    assert gated.engine.released == 1


def queued_behind_one(callers: Callers) -> int:
    found = callers.status()
    return int(found["queue_length"]) if found["busy_seconds"] > 0 else -1


def test_no_live_job_is_dropped_in_whatever_order_the_jobs_of_a_slot_arrive(gated: Local, callers: Callers) -> None:
    """Messages of two sockets have no order: the job of a caller that left may come after that of the slot's next."""
    dice = random.Random(3)
    callers.ask()
    wait_for(lambda: running_and_nothing_queued(callers), 10, "one job running")
    gone = []
    held_back: list[Callable[[], None]] = []
    for _ in range(150):
        if len(callers.waiting) == SIZE:
            gone.append(callers.leave(dice.randrange(1, SIZE)))
        callers.ask(send=held_back.append)
    dice.shuffle(held_back)
    for go in held_back:
        go()
    wait_for(lambda: callers.status()["counters"]["expired"] > 100, 10, "most of them dropped while the call runs")
    gated.engine.gate.set()
    for job_id, _, socket in callers.waiting:
        assert answers_own(job_id, socket)
    wait_for(lambda: callers.status()["queue_length"] == 0, 10, "an empty queue")
    statuses = set()
    for socket in gone:
        assert socket.poll(10_000), "whoever still listens is told"
        statuses.add(wire.decode_reply(socket.recv_multipart()[1]).status)
        assert not socket.poll(0), "told twice"
        socket.close()
    assert statuses == {wire.EXPIRED}
    assert len(gated.engine.calls) == SIZE
