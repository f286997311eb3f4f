"""Strangers on the scorer's socket, other versions, and a run directory that is tampered with.

architecture.md §4, tests 13, 17, 32, 33, 35; trouble.md rank 35.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from shared import wire
from tests.harness import D1, ROOT, Pair, pair, wait_for
from tests.process.support import (
    Background,
    Wire,
    at_once,
    health,
    invariants,
    is_own,
    own_decision,
    records,
    slow,
    spawn_web,
    spread,
    starts,
    timed_post,
    wait_running,
    wait_slots,
    whole,
    wrapped_config,
)

pytestmark = pytest.mark.timeout(90)

QUEUE = 8
HEX = "0123456789abcdef" * 2
JOB: dict[str, Any] = {
    "state": "s",
    "questions": [{"type": "choice", "instructions": "?", "criteria": {"a": "A", "b": "B"}}],
    "calls": [[["q", 0, None]]],
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pair]:
    with pair(MAX_QUEUE=str(QUEUE)) as running:
        yield running


@pytest.fixture
def service(pool: Pair) -> Iterator[Pair]:
    scorer = pool.scorer
    yield pool
    assert scorer is not None
    died = scorer.poll()
    if died is not None:
        pool.start_scorer()
    invariants(pool)
    assert died is None, f"the scorer left with {died}"


@contextmanager
def stranger(service: Pair, kind: int = zmq.DEALER) -> Iterator[Any]:
    context = zmq.Context()
    socket = context.socket(kind)
    socket.linger = 2000
    socket.rcvtimeo = 3000
    socket.connect(f"ipc://{service.dir}/scorer.sock")
    try:
        yield socket
    finally:
        socket.close()
        context.term()


def header(**fields: Any) -> bytes:
    return json.dumps(
        {
            "v": wire.VERSION,
            "op": "predict",
            "id": HEX,
            "boot_id": "",
            "slot": 0,
            "budget_ms": 1000,
            "request_id": "",
            **fields,
        }
    ).encode()


def bad_messages(service: Pair) -> int:
    return int(health(service)["counters"]["bad_messages"])


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"x"],
        [b"", b""],
        [b"x", b"y"],
        [b"x", header(), b"{}"],
        [b"", header(), b"{}", b"", b""],
        [b"f"] * 41,
        [b""] * 41,
        [b"", b"{", b"{}"],
        [b"", b"\xff\xfe", b"{}"],
        [b"", b"[]", b"{}"],
        [b"", b"null", b"{}"],
        [b"", b"7", b"{}"],
        [b"", header(op="stop"), b"{}"],
        [b"", header(op=""), b"{}"],
        [b"", header(op=7), b"{}"],
        [b"", b"TERMINATE", b"{}"],
        [b"", header(v=99), b"{}"],
        [b"", header(v=None), b"{}"],
        [b"", header(v=[1]), b"{}"],
        [b"", header(v="1"), b"{}"],
        [b"", header(id="x"), b"{}"],
        [b"", header(id=""), b"{}"],
        [b"", header(id="A" * 32), b"{}"],
        [b"", header(id="\u0661" * 32), b"{}"],
        [b"", header(id=7), b"{}"],
        [b"", header(slot="0"), b"{}"],
        [b"", header(budget_ms="x"), b"{}"],
        [b"", header(budget_ms=None), b"{}"],
        [b"", b" " * 5000 + header(), b"{}"],
        [b"", b"[" * 4000, b"{}"],
        [b"", b'{"v":2,"op":"predict","id":NaN}', b"{}"],
        [b"", header()],
        [b"", header(id="\\ud800"), b"{}"],
    ],
)
def test_a_message_of_another_shape_is_counted_and_harms_nobody(service: Pair, frames: list[bytes]) -> None:
    before = bad_messages(service)
    with stranger(service) as socket:
        socket.send_multipart(frames)
        wait_for(lambda: bad_messages(service) > before, 5, "the message counted")
    status, _ = service.post("/decide", D1)
    assert status == 200


@pytest.mark.parametrize(
    "more",
    [
        {"slot": -1},
        {"slot": 10**6},
        {"slot": 2**31},
        {"slot": 2**63},
        {"slot": 10**400},
        {"slot": -(2**40)},
        {"budget_ms": -5},
        {"budget_ms": 0},
        {"budget_ms": 2**63},
        {"budget_ms": 10**400},
        {"budget_ms": -(10**400)},
        {"request_id": "x" * 3000},
        {"slot": True},
        {"budget_ms": True},
    ],
)
def test_a_job_with_the_right_boot_id_and_odd_numbers_is_refused_and_harms_nobody(
    service: Pair, more: dict[str, Any]
) -> None:
    calls = service.record_calls()
    before = len(starts(calls()))
    boot = health(service)["boot_id"]
    with stranger(service) as socket:
        socket.send_multipart([b"", header(boot_id=boot, **more), json.dumps(JOB).encode()])
        reply = socket.recv_multipart()
        assert wire.decode_reply(reply[1]).status in (wire.EXPIRED, wire.BAD_MESSAGE, wire.STALE_BOOT)
    assert len(starts(calls())) == before
    assert service.post("/decide", D1)[0] == 200


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"state":1}',
        json.dumps({**JOB, "calls": []}).encode(),
        b"\xff" * 50,
        b"[" * 100_000,
        json.dumps({**JOB, "calls": [[["q", 5, None]]]}).encode(),
        json.dumps({**JOB, "calls": [[["q", 0, [0, 0]]]]}).encode(),
        json.dumps({**JOB, "calls": [[["q", -1, None]]]}).encode(),
        json.dumps({**JOB, "calls": [["q"]]}).encode(),
        json.dumps({**JOB, "questions": [7]}).encode(),
        json.dumps({**JOB, "calls": {"a": 1}}).encode(),
        json.dumps({**JOB, "calls": [[["q", 0, None], ["q", 0, None]]]}).encode(),
        json.dumps({**JOB, "calls": [[[None, 0, None]]]}).encode(),
        json.dumps({**JOB, "questions": [{}]}).encode(),
        json.dumps({**JOB, "questions": [{"type": {}, "criteria": 3}]}).encode(),
        json.dumps({**JOB, "calls": [[["q", True, None]]]}).encode(),
        b'{"state":NaN,"questions":[],"calls":[[]]}',
    ],
)
def test_a_payload_that_is_no_job_is_answered_on_a_slot_that_is_held(service: Pair, payload: bytes) -> None:
    """With a slot really held for the job's id, so that the payload is looked at."""
    boot = health(service)["boot_id"]
    from shared.slots import SlotTable

    table = SlotTable(service.dir / "slots")
    slot = table.acquire(bytes.fromhex(HEX))
    assert slot is not None
    try:
        with stranger(service) as socket:
            socket.send_multipart([b"", header(boot_id=boot, slot=slot.index, budget_ms=5000), payload])
            reply = wire.decode_reply(socket.recv_multipart()[1])
            assert reply.status in (wire.BAD_MESSAGE, wire.INVALID, wire.FAILED)
            assert reply.id == HEX
    finally:
        slot.close()
        table.close()
    assert health(service)["boot_id"] == boot


def test_a_10_megabyte_frame_is_absorbed(service: Pair) -> None:
    before = bad_messages(service)
    with stranger(service) as socket:
        socket.send_multipart([b"", b"x" * 10_000_000, b"{}"])
        socket.send_multipart([b"x" * 10_000_000])
        wait_for(lambda: bad_messages(service) >= before + 2, 10, "both counted")


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 200, b"", b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03"]
)
def test_raw_bytes_that_are_not_zeromq_are_absorbed(service: Pair, data: bytes) -> None:
    import socket as sockets

    with sockets.socket(sockets.AF_UNIX) as raw:
        raw.settimeout(1)
        raw.connect(str(service.dir / "scorer.sock"))
        try:
            raw.sendall(data)
            raw.recv(100)
        except OSError:
            pass
    assert service.post("/decide", D1)[0] == 200


def test_10000_random_messages_leave_the_broker_alive_and_are_counted(service: Pair) -> None:
    """architecture.md §4, test 32. The seed is fixed; which messages are bad is told here by the protocol's rule, and
    the scorer's counter must have risen by exactly as many."""
    rng = random.Random(32)
    assert service.scorer is not None
    process = psutil.Process(service.scorer.pid)

    def value() -> Any:
        return rng.choice(
            [None, True, -1, 0, 1, 7, 2**70, 1.5, "", "x", HEX, "predict", "status", [], {}, ["a"], {"v": 1}]
        )

    def message() -> list[bytes]:
        kind = rng.randrange(5)
        if kind == 0:
            return [rng.randbytes(rng.randrange(30)) for _ in range(rng.choice([1, 2, 3, 4, 5, 41]))]
        fields = {
            name: value()
            for name in ("v", "op", "id", "boot_id", "slot", "budget_ms", "request_id")
            if rng.random() < 0.5
        }
        if kind == 1:
            return [b"", json.dumps(fields).encode(), b"{}"]
        frames = [b"", header(**fields), rng.choice([b"", b"{}", json.dumps(JOB).encode()])]
        if kind == 3:
            frames[rng.randrange(3)] = rng.randbytes(20)
        elif kind == 4:
            head = bytearray(frames[1])
            head[rng.randrange(len(head))] = rng.randrange(256)
            frames[1] = bytes(head)
        return frames

    def is_bad(frames: list[bytes]) -> bool:
        if not 2 <= len(frames) <= 3 or frames[0] or len(frames[1]) > wire.MAX_HEADER_BYTES:
            return True
        try:
            request = wire.decode_request(frames[1])
        except wire.WireError:
            return True
        if request.op == "status":
            return False
        return request.op != "predict" or len(frames) < 3 or not re.fullmatch("[0-9a-f]{32}", request.id)

    def sizes() -> tuple[int, int]:
        return process.num_fds(), process.num_threads()

    with spread(service, 1):  # each worker has its connection to the scorer, and keeps it
        pass
    before, boot, at_first = bad_messages(service), health(service)["boot_id"], sizes()
    bad = answered = 0
    with stranger(service) as socket, stranger(service, zmq.REQ) as polite:
        for number in range(10_000):
            frames = message()
            bad += is_bad(frames)
            socket.send_multipart(frames)
            while socket.poll(0):
                reply = wire.decode_reply(socket.recv_multipart()[1])
                # Nothing of them is ever scored: the boot id is wrong in all.
                assert reply.status in (wire.OK, wire.BAD_MESSAGE, wire.STALE_BOOT, wire.UNAVAILABLE)
                answered += 1
            if number % 500 == 0:
                polite.send_multipart([header(op="status"), b""])
                assert wire.decode_reply(polite.recv_multipart()[0]).status == wire.OK
                assert service.post("/decide", D1)[0] == 200
        wait_for(lambda: bad_messages(service) - before >= bad, 20, "every bad message counted")
    assert bad_messages(service) - before == bad
    assert bad > 5000
    assert answered > 1000
    assert health(service)["boot_id"] == boot
    wait_for(lambda: all(now <= then for now, then in zip(sizes(), at_first, strict=True)), 15, "what it holds")


def test_a_message_of_another_id_or_slot_never_answers_for_a_real_request(service: Pair) -> None:
    """A stranger that replays headers while real requests run."""
    boot = health(service)["boot_id"]
    over = threading.Event()

    def flood() -> None:
        with stranger(service) as socket:
            while not over.is_set():
                socket.send_multipart(
                    [b"", header(boot_id=boot, slot=random.randrange(QUEUE)), json.dumps(JOB).encode()]
                )
                over.wait(0.002)

    flooding = Background(flood)
    for _ in range(5):
        asked = [own_decision() for _ in range(QUEUE)]
        results = at_once([lambda body=body: service.post("/decide", body) for body in asked])
        # The strict count may refuse one while a stranger's job is looked at in its slot; nobody gets a wrong answer.
        assert all(
            status == 429 or (status == 200 and is_own(body, answer))
            for body, (status, answer) in zip(asked, results, strict=True)
        )
    over.set()
    flooding.result()


# -- versions --------------------------------------------------------------------------------------


def other_version(version: int) -> str:
    return f"import shared.wire; shared.wire.VERSION = {version}"


def check_skew(service: Pair, old: int, new: int) -> None:
    wait_for(lambda: service.request("GET", "/health")[0] == 503, 15, "a 503")
    wait_for(lambda: len(service.worker_pids()) == 2, 15, "both workers")
    workers = service.worker_pids()
    for status, body, seconds in at_once([lambda: timed_post(service, "/decide", D1)] * 3):
        assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
        assert seconds < 5
    told = [
        str(record) for record in records(service, "web") if record["level"] == "error" and "version" in str(record)
    ]
    assert told
    assert re.search(rf"\b{old}\b", told[-1].partition("'event'")[2])
    assert re.search(rf"\b{new}\b", told[-1].partition("'event'")[2])
    assert service.scorer is not None
    assert service.scorer.poll() is None
    assert service.worker_pids() == workers
    assert service.log("web").count("Booting worker") == 2  # none has died before it was counted either


def test_a_newer_scorer_is_503_with_both_versions_in_the_log_until_it_is_replaced() -> None:
    with pair(start=False) as service:
        with service.logs["scorer"].open("ab") as log:
            service.scorer = subprocess.Popen(
                [sys.executable, "-c", f"{other_version(77)}\nimport sys, scorer.__main__ as m; sys.exit(m.serve())"],
                cwd=ROOT,
                env=service.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        service.start_web()
        check_skew(service, wire.VERSION, 77)
        service.scorer.terminate()
        service.scorer.wait(10)
        service.start_scorer()
        service.wait_ready()
        invariants(service)


def test_a_newer_web_tier_is_503_with_both_versions_in_the_log() -> None:
    with pair(start=False) as service:
        service.start_scorer()
        spawn_web(service, wrapped_config(service, other_version(77)))
        check_skew(service, wire.VERSION, 77)


def test_a_scorer_of_another_version_answers_an_older_peer_with_both_versions(service: Pair) -> None:
    with stranger(service, zmq.REQ) as socket:
        socket.send_multipart([header(v=77, op="status"), b""])
        reply = wire.decode_reply(socket.recv_multipart()[0])
    assert reply.status == wire.UNAVAILABLE
    assert "77" in reply.message
    assert str(wire.VERSION) in reply.message


# -- replies ---------------------------------------------------------------------------------------

Answering = Callable[[dict[str, Any]], "list[list[bytes]] | None"]


class Impostor:
    """A ROUTER in the scorer's place: honest about status, scripted about jobs."""

    def __init__(self, service: Pair, info: dict[str, Any]) -> None:
        self.answering: Answering = lambda request: None
        self._info = info
        self._over = threading.Event()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(f"ipc://{service.dir}/scorer.sock")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def reply(self, request: dict[str, Any], status: str = "ok", **more: Any) -> bytes:
        return json.dumps(
            {
                "v": wire.VERSION,
                "id": request["id"],
                "boot_id": "impostor",
                "status": status,
                "message": "",
                "queue_ms": 0.0,
                "score_ms": 0.0,
                **more,
            }
        ).encode()

    def _run(self) -> None:
        while not self._over.is_set():
            if not self._socket.poll(50):
                continue
            identity, _, head, *_ = self._socket.recv_multipart()
            request = json.loads(head)
            if request["op"] == "status":
                status = {
                    "state": "ready",
                    "engine": self._info,
                    "queue_length": 0,
                    "busy_seconds": 0.0,
                    "uptime_seconds": 1.0,
                    "memory": {},
                    "counters": {},
                }
                answers = [[self.reply(request), json.dumps(status).encode()]]
            else:
                answers = self.answering(request) or []
            for frames in answers:
                self._socket.send_multipart([identity, b"", *frames])

    def close(self) -> None:
        self._over.set()
        self._thread.join(5)
        self._socket.close()
        self._context.term()


@pytest.fixture(scope="module")
def impostor() -> Iterator[tuple[Pair, Impostor]]:
    with pair(start=False, REQUEST_BUDGET_S="1", MAX_QUEUE=str(QUEUE)) as service:
        from scorer.engines.fake import FakeEngine
        from shared.settings import ScorerSettings

        info = FakeEngine(ScorerSettings.from_env(service.env)).info().to_json()
        lying = Impostor(service, info)
        service.start_web()
        service.wait_ready()
        yield service, lying
        lying.close()


GOOD_CALL: dict[str, Any] = {
    "answer": {
        "answers": {
            "q": {
                "type": "choice",
                "probabilities": {"billing": 0.75, "tech": 0.25},
                "confidence": 0.75,
                "choice": "billing",
            }
        },
        "usage": {},
        "timing": {"inference_ms": 1.0},
        "calibration": None,
        "model": "m",
        "backend": "b",
    },
    "input_tokens": 3,
    "cached_tokens": 0,
    "prompt_sha256": "0" * 64,
}


def good(lying: Impostor, request: dict[str, Any]) -> list[bytes]:
    return [lying.reply(request), json.dumps({"calls": [GOOD_CALL]}).encode()]


LIES: dict[str, tuple[Callable[[Impostor, dict[str, Any]], Any], set[int]]] = {
    "wrong_id": (lambda me, r: [[me.reply({"id": "0" * 32}), good(me, r)[1]]], {500, 503}),
    "wrong_boot": (lambda me, r: [[me.reply(r, boot_id="another"), good(me, r)[1]]], {500, 503}),
    "no_payload": (lambda me, r: [[me.reply(r)]], {500, 503}),
    "three_frames": (lambda me, r: [[*good(me, r), b""]], {500, 503}),
    "empty_payload": (lambda me, r: [[me.reply(r), b""]], {500}),
    "nan": (lambda me, r: [[me.reply(r), good(me, r)[1].replace(b"0.75", b"NaN")]], {500}),
    "overflow": (lambda me, r: [[me.reply(r), good(me, r)[1].replace(b"0.75", b"1e400")]], {500}),
    "deep": (lambda me, r: [[me.reply(r), b"[" * 200_000]], {500}),
    "not_utf8": (lambda me, r: [[me.reply(r), b"\xff\xff"]], {500}),
    "no_calls": (lambda me, r: [[me.reply(r), b'{"calls":[]}']], {500}),
    "calls_of_another_kind": (lambda me, r: [[me.reply(r), b'{"calls":[7]}']], {500}),
    "call_without_answer": (lambda me, r: [[me.reply(r), b'{"calls":[{}]}']], {500}),
    "timing_of_another_kind": (
        lambda me, r: [[me.reply(r), good(me, r)[1].replace(b'{"inference_ms": 1.0}', b"7")]],
        {500},
    ),
    "bad_header": (lambda me, r: [[b"{", good(me, r)[1]]], {500, 503}),
    "unknown_status": (lambda me, r: [[me.reply(r, "splendid"), good(me, r)[1]]], {500, 503}),
    "long_header": (lambda me, r: [[me.reply(r, "invalid", message="m" * 20_000), b""]], {422, 500, 503}),
    "string_times": (lambda me, r: [[me.reply(r, score_ms="x"), good(me, r)[1]]], {500, 503}),
    "huge": (lambda me, r: [[me.reply(r), b'{"calls":[' + b" " * (20 << 20) + b"]}"]], {500}),
    "late": (lambda me, r: None, {504}),
    "stale_for_ever": (lambda me, r: [[me.reply(r, "stale_boot"), b""]], {503}),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_reply_that_cannot_be_right_is_an_error_and_never_an_answer(
    impostor: tuple[Pair, Impostor], lie: str
) -> None:
    service, lying = impostor
    answer, allowed = LIES[lie]
    lying.answering = lambda request: answer(lying, request)
    status, body = service.post("/decide", D1)
    assert status in allowed, body
    assert body["error"]["code"] != "internal_error"
    lying.answering = lambda request: [good(lying, request)]
    for _ in range(4):
        status, body = service.post("/decide", D1)
        assert (status, body["probabilities"]) == (200, [0.75, 0.25])
    assert service.slots_in_use() == 0


def test_a_second_reply_to_one_job_reaches_nobody(impostor: tuple[Pair, Impostor]) -> None:
    service, lying = impostor
    serial = iter(range(1, 1000))

    def doubled(request: dict[str, Any]) -> list[list[bytes]]:
        share = next(serial) / 4000 + 0.5
        text = good(lying, request)[1].replace(b"0.75", str(share).encode()).replace(b"0.25", str(1 - share).encode())
        return [[lying.reply(request), text], good(lying, request)]

    lying.answering = doubled
    served = 0
    for _ in range(20):
        status, body = service.post("/decide", D1)
        # The double that comes between the next job and its reply costs that job a 500; it is never its answer.
        assert status in (200, 500)
        served += status == 200
        assert status == 500 or 0.5 < body["probabilities"][0] < 0.51, body
    assert served >= 10
    lying.answering = lambda request: [good(lying, request)]
    for _ in range(4):
        service.post("/decide", D1)


def test_doubles_pass_through_both_tiers_bit_for_bit(service: Pair) -> None:
    rng = random.Random(34)
    for _ in range(20):
        shares = [rng.random() for _ in range(16)]
        exact = [share / sum(shares) for share in shares]
        options = [{"id": f"o{n}", "description": "x"} for n in range(16)]
        status, body = service.post("/decide", {**D1, "options": options, "state": {"fake": {"probabilities": exact}}})
        assert status == 200
        assert body["probabilities"] == exact


# -- the run directory -----------------------------------------------------------------------------


def test_the_socket_is_the_owners_alone_and_the_directory_is_closed_to_others(service: Pair) -> None:
    for name in ("scorer.sock", "slots", "scorer.lock"):
        assert stat.S_IMODE((service.dir / name).stat().st_mode) == 0o600, name
    assert stat.S_ISSOCK((service.dir / "scorer.sock").stat().st_mode)
    assert stat.S_IMODE(service.dir.stat().st_mode) & 0o007 == 0


def test_a_run_directory_that_is_made_is_0750() -> None:
    with pair(start=False) as service:
        inner = service.dir / "run"
        service.env["INTERN_DECISION_RUN_DIR"] = str(inner)
        service.start_scorer()
        service.start_web()
        service.wait_ready()
        assert stat.S_IMODE(inner.stat().st_mode) == 0o750
        assert stat.S_IMODE((inner / "scorer.sock").stat().st_mode) == 0o600


def never_more_than(service: Pair, limit: int) -> Counter[int]:
    """Many slow requests at once: whatever is admitted is at most the limit."""
    results = at_once([lambda: timed_post(service, "/decide", slow(D1, 0.2))] * (limit + 6))
    counts = Counter(status for status, *_ in results)
    assert counts[200] <= limit
    assert set(counts) <= {200, 429, 503}, counts
    return counts


def errors_told(service: Pair, word: str) -> bool:
    return any(record["level"] == "error" and word in str(record) for record in records(service, "web"))


def test_a_deleted_slot_file_refuses_with_a_clear_log_until_the_web_tier_is_restarted() -> None:
    with pair(MAX_QUEUE="3") as service:
        with spread(service, 1):
            service.post("/decide", D1)
        running = Background(lambda: service.post("/decide", slow(D1, 0.8)))
        wait_running(service)
        (service.dir / "slots").unlink()
        counts = never_more_than(service, 3)
        assert counts[503] > 0
        assert errors_told(service, "slots"), service.log("web")[-800:]
        assert running.result()[0] == 200
        service.web.terminate()
        service.web.wait(15)
        service.start_web()
        service.wait_ready()
        never_more_than(service, 3)
        invariants(service)


def test_a_worker_restarted_after_the_slot_file_was_deleted_does_not_double_the_limit() -> None:
    with pair(MAX_QUEUE="3") as service:
        with spread(service, 1):
            service.post("/decide", D1)
        (service.dir / "slots").unlink()
        old = service.worker_pids()
        os.kill(old[0], 9)
        wait_for(lambda: old[0] not in service.worker_pids() and len(service.worker_pids()) == 2, 15, "a new worker")
        never_more_than(service, 3)
        assert service.scorer.poll() is None


def test_a_truncated_slot_file_never_admits_without_limit_and_the_service_can_be_restarted() -> None:
    with pair(MAX_QUEUE="3") as service:
        with spread(service, 1):
            service.post("/decide", D1)
        os.truncate(service.dir / "slots", 0)
        counts = never_more_than(service, 3)
        assert not counts[503] or errors_told(service, "slots")
        # A job whose caller leaves makes the scorer look at the file again.
        with Wire(service) as wire:
            wire.send(whole(slow(D1, 0.5)))
            wait_for(lambda: service.request("GET", "/health")[0] in (200, 503), 5)
        assert service.scorer.poll() is None, "a damaged file must not end the scorer"
        for process in (service.web, service.scorer):
            process.terminate()
            process.wait(15)
        service.start_scorer()
        service.start_web()
        service.wait_ready()
        never_more_than(service, 3)
        invariants(service)


def test_a_job_whose_caller_left_over_a_truncated_slot_file_does_not_end_the_scorer() -> None:
    with pair(MAX_QUEUE="3") as service:
        with spread(service, 1):  # both workers have started: a start over a damaged file is another test's
            pass
        running = Background(lambda: service.post("/decide", slow(D1, 1.5)))
        wait_running(service)
        leaving = Wire(service).send(whole(own_decision()))
        wait_for(lambda: health(service)["queue_length"] == 1, 5, "one queued")
        os.truncate(service.dir / "slots", 0)
        # Whatever writes next makes the file long again, but without its header.
        with (service.dir / "slots").open("r+b") as file:
            file.truncate(200)
        leaving.close()
        assert running.result()[0] == 200

        def looked_at() -> bool:
            status, _, body = service.request("GET", "/health")
            return service.scorer.poll() is not None or (status == 200 and body["counters"].get("expired", 0) >= 1)

        wait_for(looked_at, 10, "the job that nobody waits for looked at")
        assert service.scorer.poll() is None, service.log("scorer")[-1500:]


@pytest.mark.parametrize("tier", ["scorer", "web"])
def test_a_start_on_a_file_that_is_no_slot_file_is_refused_clearly(tier: str) -> None:
    with pair(start=False) as service:
        (service.dir / "slots").write_bytes(bytes(200))
        process = service.start_scorer() if tier == "scorer" else service.start_web()
        try:
            code = process.wait(8)
        except subprocess.TimeoutExpired:
            # Or it mends the file, which nobody else uses, and serves.
            other = service.start_web() if tier == "scorer" else service.start_scorer()
            service.wait_ready(10)
            assert other.poll() is None
            return
        assert code in (3, 78), f"left with {code}: a restart would not help"
        assert "slots" in service.log(tier)
        assert "Traceback" not in service.log(tier)


def test_an_unlinked_socket_is_503_or_served_and_a_restart_of_the_scorer_mends_it() -> None:
    with pair(MAX_QUEUE="6") as service:
        service.post("/decide", D1)
        (service.dir / "scorer.sock").unlink()
        results = at_once([lambda: timed_post(service, "/decide", D1)] * 6)
        for status, body, seconds in results:
            assert status == 200 or (status, body["error"]["code"]) == (503, "scorer_unavailable")
            assert seconds < 3
        wait_for(lambda: service.scorer.poll() is None, 1)
        service.scorer.terminate()
        assert service.scorer.wait(10) == 0
        service.start_scorer()
        service.wait_ready()
        invariants(service)


def test_a_deleted_run_directory_is_503_never_admission_without_limit(tmp_path: Path) -> None:
    with pair(MAX_QUEUE="3") as service:
        with spread(service, 1):
            service.post("/decide", D1)
        service.logs = {name: tmp_path / f"{name}.log" for name in service.logs}
        shutil.rmtree(service.dir)
        counts = never_more_than(service, 3)
        assert counts[503] > 0
        assert service.request("GET", "/health")[0] in (200, 503)
        for process in (service.web, service.scorer):
            process.terminate()
            assert process.wait(15) == 0
        service.start_scorer()
        service.start_web()
        service.wait_ready()
        never_more_than(service, 3)


def test_a_slot_held_by_a_stranger_only_lowers_the_limit(service: Pair) -> None:
    from shared.slots import SlotTable

    table = SlotTable(service.dir / "slots")
    held = [table.acquire(os.urandom(16)) for _ in range(3)]
    try:
        wait_slots(service, 3)
        assert never_more_than(service, QUEUE)[200] == QUEUE - 3
    finally:
        for slot in held:
            assert slot is not None
            slot.close()
        table.close()
