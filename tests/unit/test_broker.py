"""The broker against strangers on its socket (scorer/broker.py): failure test 32; architecture.md §1.4, §1.11."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from shared import wire
from shared.rundir import RunDir
from tests.harness import D1, Local


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
    return json.dumps(
        {"v": 1, "op": "predict", "id": "ab" * 16, "boot_id": boot_id, "slot": 0, "budget_ms": 1000, **fields}
    ).encode()


def still_serves(local: Local, socket: zmq.Socket[bytes]) -> None:
    """The loop is alive: it answers this very socket after everything that was sent before, and it scores."""
    socket.send_multipart([b"", json.dumps({"v": 1, "op": "status", "id": "last"}).encode()])
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
    assert "1" in reply.message.replace("99", "")
