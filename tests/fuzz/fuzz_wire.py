"""The decoders of the scorer's socket raise WireError and nothing else; what they take, they take again unchanged when
it is encoded; and every reference in a job they took can be followed."""

from __future__ import annotations

import json
import re
from typing import Any

from shared import wire
from shared.wire import CallItem, Job, Reply, Request, Terms, WireError
from tests.fuzz.program import Program

REQUEST = Request("predict", "ab" * 16, "boot", 3, 59_000, "req_1")
REPLY = Reply("ab" * 16, "boot", wire.OK, "", 1.25, 17.5)
CHOICE = {"type": "choice", "instructions": "Which?", "criteria": {"z": "Z", "a": "A", "10": None}}
SCORE = {"type": "score", "instructions": "How bad?", "criteria": ["low", "high"]}
JOB = Job({"k": [1, 2.5]}, [CHOICE, SCORE], [[CallItem("q1", 0), CallItem("q2", 1)], [CallItem("q", 0, (2, 0, 1))]])

_jobs = [JOB, Job("s", JOB.questions, JOB.calls, Terms("salt", True))]
GOOD: list[tuple[Any, list[Any]]] = [
    (wire.decode_request, [json.loads(wire.encode_request(one)) for one in (REQUEST, Request("status", "a"))]),
    (wire.decode_reply, [json.loads(wire.encode_reply(one)) for one in (REPLY, Reply("a", "b", wire.OK))]),
    (wire.decode_job, [json.loads(wire.encode_job(one)) for one in _jobs]),
    (wire.peek, [json.loads(wire.encode_request(REQUEST)), {"v": 77, "id": "x"}]),
]
ENCODE = {
    wire.decode_request: wire.encode_request,
    wire.decode_reply: wire.encode_reply,
    wire.decode_job: wire.encode_job,
}

SEEDS = [bytes([kind, 0, body, *range(edits)]) for kind in range(4) for body in range(2) for edits in (0, 20)] + [
    bytes([kind, 1]) + json.dumps(good[0]).encode() for kind, (_, good) in enumerate(GOOD)
]


def check(data: bytes) -> None:
    program = Program(data)
    decode, good = program.pick(GOOD)
    check_frame(decode, program.rest() if program.byte() % 2 else _written(program.edited(program.pick(good))))


def _written(value: Any) -> bytes:
    return json.dumps(value).encode()


def check_frame(decode: Any, frame: bytes) -> None:
    """One frame through one decoder."""
    if decode is wire.peek:
        _, found = wire.peek(frame)
        # It goes back in a reply and into logs.
        assert re.fullmatch(r"([A-Za-z0-9._-]{1,64})?", found)
        return
    try:
        value = decode(frame)
    except WireError as error:
        value, told = None, str(error)
    else:
        told = ""
    # Both tiers answer and log with it.
    assert len(told.encode("utf-8")) < 1000
    if told:
        return
    again = decode(ENCODE[decode](value))
    assert repr(again) == repr(value)
    if isinstance(value, Job):
        for call in value.calls:
            asked = value.call_questions(call)
            assert list(asked) == [item.field for item in call]
            for item in call:
                assert sorted(asked[item.field]) == sorted(value.questions[item.question])
