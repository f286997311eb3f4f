"""The inference thread (scorer/worker.py), driven as the broker drives it: INV-2, INV-4; architecture.md §1.2,
§1.5; failure tests 8, 23, 36, 37; trouble.md ranks 8, 12, 15, 33, 47."""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zmq

from scorer.engines.base import CallResult, FatalEngineError, NonFiniteForward, OutOfMemory, PreparedCall, StartRefused
from scorer.engines.fake import FakeEngine
from scorer.worker import _LOOK_EVERY_S, LOADING, READY, Worker, pack_stamp
from shared import jsonio, wire
from shared.settings import PREFIX, ScorerSettings
from shared.slots import Slot, SlotTable
from shared.wire import CallItem, Job, Reply, Request

SECRET = "secret-STATE-123"
QUESTION = {"type": "choice", "instructions": "?", "criteria": {"a": "A", "b": "B"}}
ONE_CALL = Job({"text": SECRET}, [QUESTION], [[CallItem("q", 0)]])
THREE_CALLS = Job("s", [QUESTION], [[CallItem("q", 0)], [CallItem("q", 0, (1, 0))], [CallItem("q", 0)]])


class Tracked:
    """Stands for a tensor: weak references tell whether it is still alive."""

    alive: ClassVar[weakref.WeakSet[Tracked]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.alive.add(self)


class Engine(FakeEngine):
    """Records the order of everything that is done to it; an error is raised by ``fail``, from a frame that holds
    Tracked objects."""

    def __init__(self, settings: ScorerSettings) -> None:
        super().__init__(settings)
        self.events: list[str] = []
        self.threads: set[int] = set()
        self.load_error: BaseException | None = None
        self.prepare_error: Callable[[], BaseException] | None = None
        self.predict_error: Callable[[], BaseException] | None = None
        self.canary_answer: Any = 0.5
        self.answer: dict[str, Any] | None = None
        self.before_predict: Callable[[int], None] = lambda number: None
        self.fail: Callable[[Callable[[], BaseException]], None] = fail_chained
        self.alive_at_release: list[int] = []

    def _note(self, event: str) -> None:
        self.events.append(event)
        self.threads.add(threading.get_ident())

    def load(self) -> None:
        self._note("load")
        if self.load_error is not None:
            raise self.load_error
        super().load()

    def canary(self) -> Any:
        self._note("canary")
        if isinstance(self.canary_answer, BaseException):
            raise self.canary_answer
        return self.canary_answer

    def prepare(self, state: Any, calls: Sequence[Any], *terms: Any) -> list[PreparedCall]:
        self._note("prepare")
        if self.prepare_error is not None:
            self.fail(self.prepare_error)
        prepared = super().prepare(state, calls, *terms)
        return [PreparedCall(one.input_tokens, one.prompt_sha256, (*one.payload, Tracked())) for one in prepared]

    def predict(self, call: PreparedCall) -> CallResult:
        self._note("predict")
        self.before_predict(self.events.count("predict"))
        activation = Tracked()
        if self.predict_error is not None:
            self.fail(self.predict_error)
        assert activation in Tracked.alive
        result = super().predict(PreparedCall(call.input_tokens, call.prompt_sha256, call.payload[:4]))
        return CallResult(self.answer) if self.answer is not None else result

    def release(self) -> None:
        self._note("release")
        self.alive_at_release.append(len(Tracked.alive))

    def memory(self) -> dict[str, int]:
        self._note("memory")
        return {"bytes": len(self.events)}


def fail_plainly(make: Callable[[], BaseException]) -> None:
    """Raise from a frame that holds tensors and the exception itself."""
    activations = [Tracked() for _ in range(3)]
    error = make()
    assert activations
    raise error


def fail_chained(make: Callable[[], BaseException]) -> None:
    """Raise from a frame that holds tensors, chained to an exception whose frames hold more."""
    activations = [Tracked() for _ in range(3)]
    try:
        raise KeyError(len(activations))
    except KeyError as cause:
        raise make() from cause


def fail_in_a_cycle(make: Callable[[], BaseException]) -> None:
    """The same, but the first exception's frame also holds the second one, so that no count of references ever gets to
    0."""
    activations = [Tracked() for _ in range(3)]
    error = make()
    try:
        raise KeyError(len(activations))
    except KeyError:
        raise error  # noqa: B904 - the context is the point


def stamped(arrived: float, deadline: float, slot: int, job_id: bytes) -> bytes:
    return pack_stamp(arrived, deadline, Request("predict", job_id.hex(), "boot-1", slot, 1, "request-7"))


class Bench:
    """A worker and what the broker has of it."""

    def __init__(self, directory: Path, prepare: Callable[[Engine], None] = lambda engine: None) -> None:
        self.engine = Engine(ScorerSettings.from_env({PREFIX + "RUN_DIR": str(directory), PREFIX + "ENGINE": "fake"}))
        prepare(self.engine)
        self.path = directory / "slots"
        self.web = SlotTable(self.path, 4)
        self._slots = SlotTable(self.path)
        self.woken = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._back = self._context.socket(zmq.DEALER)
        self._back.linger = 0
        self._back.bind("inproc://test")
        self.worker = Worker(self._context, "inproc://test", self.engine, self._slots, "boot-1", self.woken.set)
        self.worker.start()
        assert self.woken.wait(10)

    def run(
        self,
        job: Job | bytes = ONE_CALL,
        *,
        hold: bool = True,
        job_id: bytes | None = None,
        deadline: float | None = None,
        slot: int | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> tuple[Reply, Any]:
        """Have one job run as an admitted request would; the reply, its payload, and the engine's events since."""
        number = os.urandom(16)
        held = self.web.acquire(number)
        assert held is not None
        self.held: Slot = held
        if not hold:
            held.close()
        meanwhile()
        now = time.monotonic()
        until = now + (30 if deadline is None else deadline)
        stamp = stamped(now, until, held.index if slot is None else slot, job_id or number)
        self._back.send_multipart([b"", stamp, job if isinstance(job, bytes) else wire.encode_job(job)])
        while not self._back.poll(20):
            assert self.worker.is_alive() or self._back.poll(0), "the inference thread died without a reply"
        _, header, payload = self._back.recv_multipart()
        held.close()
        reply = wire.decode_reply(header)
        assert reply.id == (job_id or number).hex()
        assert reply.boot_id == "boot-1"
        return reply, jsonio.loads(payload) if payload else None

    def settle(self) -> None:
        """Wait until the job's aftermath (release, canary) is over."""
        end = time.monotonic() + 10
        while self.worker.snapshot.busy_since is not None and self.worker.is_alive():
            assert time.monotonic() < end
            time.sleep(0.001)

    def close(self) -> None:
        self._back.close()
        self._context.term()
        self.worker.join(10)
        assert not self.worker.is_alive()
        self.web.close()
        self._slots.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    Tracked.alive.clear()
    benches = []

    def start(prepare: Callable[[Engine], None] = lambda engine: None) -> Bench:
        benches.append(Bench(tmp_path, prepare))
        return benches[-1]

    yield start
    for bench in benches:
        bench.close()
    gc.unfreeze()  # the worker freezes what load left behind: in a test process that is everything


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


# -- load ---


def test_after_load_and_canary_the_thread_is_ready_and_describes_the_engine(bench: Bench) -> None:
    snapshot = bench.worker.snapshot
    assert snapshot.state == READY
    assert bench.engine.events[:2] == ["load", "canary"]
    assert snapshot.info == bench.engine.info()
    assert snapshot.memory
    assert (snapshot.refused, snapshot.broken, snapshot.busy_since) == (None, None, None)


def failing_load(error: BaseException) -> Callable[[Engine], None]:
    def prepare(engine: Engine) -> None:
        engine.load_error = error

    return prepare


def test_a_refused_start_is_told_with_its_reason_and_the_thread_ends(make: Callable[..., Bench]) -> None:
    bench = make(failing_load(StartRefused("INTERN_DECISION_CHECKPOINT: wrong hash")))
    bench.worker.join(10)
    snapshot = bench.worker.snapshot
    assert (snapshot.refused, snapshot.state, snapshot.broken) == (
        "INTERN_DECISION_CHECKPOINT: wrong hash",
        LOADING,
        None,
    )
    assert not bench.worker.is_alive()


@pytest.mark.parametrize("error", [RuntimeError(SECRET), KeyError("x"), SystemExit(3)])
def test_any_other_failure_of_load_means_a_broken_process_and_never_a_ready_one(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    bench = make(failing_load(error))
    bench.worker.join(10)
    assert bench.worker.snapshot.broken
    assert bench.worker.snapshot.state == LOADING
    assert SECRET not in caplog.text


# -- replies ---


def test_every_call_of_a_job_is_answered_in_order_with_its_counts_and_hash(bench: Bench) -> None:
    reply, payload = bench.run(THREE_CALLS)
    assert (reply.status, reply.message) == (wire.OK, "")
    assert reply.queue_ms >= 0.0
    assert reply.score_ms >= 0.0
    assert [list(call) for call in payload["calls"]] == [
        ["answer", "input_tokens", "cached_tokens", "prompt_sha256"]
    ] * 3
    orders = [list(call["answer"]["answers"]["q"]["probabilities"]) for call in payload["calls"]]
    assert orders == [["a", "b"], ["b", "a"], ["a", "b"]]
    hashes = [call["prompt_sha256"] for call in payload["calls"]]
    assert hashes[0] == hashes[2] != hashes[1]
    assert bench.worker.snapshot.counters == {wire.OK: 1}


def test_all_calls_are_prepared_before_the_first_is_predicted_and_the_release_follows_the_last(bench: Bench) -> None:
    bench.run(THREE_CALLS)
    bench.settle()
    assert bench.engine.events[-6:] == ["prepare", "predict", "predict", "predict", "release", "memory"]


def test_load_canary_every_call_and_release_happen_on_one_thread(bench: Bench) -> None:
    for job in (ONE_CALL, THREE_CALLS):
        bench.run(job)
    bench.engine.predict_error = lambda: RuntimeError("x")
    bench.run()
    bench.settle()
    assert bench.engine.threads == {bench.worker.ident}


def failing(error: Callable[[], BaseException], where: str) -> Callable[[Engine], None]:
    def prepare(engine: Engine) -> None:
        setattr(engine, f"{where}_error", error)

    return prepare


VERDICTS = [
    (lambda: ValueError("Example has 9000 tokens"), wire.INVALID, "Example has 9000 tokens"),
    (lambda: OutOfMemory(SECRET), wire.OUT_OF_MEMORY, "the model ran out of memory on this request"),
    (
        lambda: RuntimeError(f"CUDA out of memory {SECRET}"),
        wire.OUT_OF_MEMORY,
        "the model ran out of memory on this request",
    ),
    (lambda: RuntimeError(f"boom {SECRET}"), wire.FAILED, "the model failed on this request"),
    (lambda: NonFiniteForward(SECRET), wire.FAILED, "the model failed on this request"),
    (lambda: FatalEngineError(SECRET), wire.FAILED, "the model failed on this request"),
]


@pytest.mark.parametrize("fail", [fail_plainly, fail_chained])
@pytest.mark.parametrize("where", ["prepare", "predict"])
@pytest.mark.parametrize(
    ("error", "status", "message"), VERDICTS, ids=["value", "oom", "runtime oom", "runtime", "non-finite", "fatal"]
)
def test_a_failed_job_is_answered_by_its_verdict_with_its_frames_dead_before_the_release(
    make: Callable[..., Bench],
    caplog: pytest.LogCaptureFixture,
    fail: Any,
    where: str,
    error: Callable[[], BaseException],
    status: str,
    message: str,
) -> None:
    bench = make(failing(error, where))
    bench.engine.fail = fail
    reply, payload = bench.run()
    assert (reply.status, reply.message, payload) == (status, message, None)
    bench.settle()
    assert bench.engine.alive_at_release == [0]
    assert SECRET not in caplog.text
    assert "Traceback" not in caplog.text
    assert bench.worker.snapshot.counters == {status: 1}


def test_frames_that_hold_each_other_in_a_cycle_are_dead_before_the_release_too(bench: Bench) -> None:
    bench.engine.fail = fail_in_a_cycle
    bench.engine.predict_error = lambda: OutOfMemory("x")
    assert bench.run()[0].status == wire.OUT_OF_MEMORY
    bench.settle()
    assert bench.engine.alive_at_release == [0]


@pytest.mark.parametrize("error", [lambda: OutOfMemory(SECRET), lambda: RuntimeError(SECRET)])
def test_a_failure_is_one_log_record_with_the_requests_id_and_its_frames(
    bench: Bench, caplog: pytest.LogCaptureFixture, error: Callable[[], BaseException]
) -> None:
    bench.engine.predict_error = error
    bench.run()
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    told = record.fields  # type: ignore[attr-defined]
    assert told["request_id"] == "request-7"
    assert told["frames"][-1].endswith(" fail_chained")
    assert SECRET not in str(told)


def test_an_engine_that_raised_anew_tells_where_it_really_happened(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def anew() -> BaseException:
        error = OutOfMemory("x")
        error.origin = {"exception": "torch.OutOfMemoryError", "frames": ["model.py:7 forward"]}
        return error

    bench.engine.predict_error = anew
    bench.run()
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.fields["frames"] == ["model.py:7 forward"]  # type: ignore[attr-defined]


def test_a_successful_job_leaves_nothing_alive_at_the_release_either(bench: Bench) -> None:
    bench.run(THREE_CALLS)
    bench.settle()
    assert bench.engine.alive_at_release == [0]


@pytest.mark.parametrize(
    "spoil", [math.nan, math.inf, object(), 1j, "\ud800"], ids=["nan", "inf", "object", "complex", "surrogate"]
)
def test_an_answer_that_is_not_finite_json_is_a_failure_of_the_engine_and_puts_it_on_probation(
    bench: Bench, spoil: Any
) -> None:
    bench.engine.answer = {"answers": {"q": {"probabilities": {"a": spoil}}}}
    reply, payload = bench.run()
    assert (reply.status, payload) == (wire.FAILED, None)
    bench.settle()
    assert bench.engine.events[-3:] == ["release", "canary", "memory"]
    assert bench.worker.snapshot.broken is None
    bench.engine.answer = None
    assert bench.run()[0].status == wire.OK


def test_an_answer_nested_beyond_writing_is_a_failure_and_not_the_end_of_the_thread(bench: Bench) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    bench.engine.answer = {"answers": deep}
    assert bench.run()[0].status == wire.FAILED
    bench.settle()
    assert bench.worker.is_alive()
    bench.engine.answer = None
    assert bench.run()[0].status == wire.OK


@pytest.mark.parametrize(
    "message",
    ["x" * 10_000, "é" * 10_000, "😀" * 5_000, '"\\\n' * 5_000, "\x01" * 10_000, "lone \ud800 surrogate"],
    ids=["ascii", "accents", "emoji", "escapes", "controls", "surrogate"],
)
def test_a_value_error_with_any_message_reaches_the_web_tier_as_the_callers_fault(bench: Bench, message: str) -> None:
    # A header that cannot be read, or written, would be a 503 that clients retry, or the end of this thread.
    bench.engine.predict_error = lambda: ValueError(message)
    reply, _ = bench.run()
    assert reply.status == wire.INVALID
    assert reply.message[:4] == message[:4]


# -- the canary ---


def test_bad_input_and_out_of_memory_ask_no_canary(bench: Bench) -> None:
    for error in (ValueError("x"), OutOfMemory(), RuntimeError("out of memory")):
        bench.engine.predict_error = lambda error=error: error
        bench.run()
        bench.settle()
    assert bench.engine.events.count("canary") == 1


def test_after_another_failure_a_canary_that_answers_as_at_start_lets_the_process_go_on(bench: Bench) -> None:
    bench.engine.predict_error = lambda: RuntimeError("x")
    bench.run()
    bench.settle()
    assert bench.engine.events[-3:] == ["release", "canary", "memory"]
    assert bench.worker.snapshot.broken is None
    bench.engine.predict_error = None
    assert bench.run()[0].status == wire.OK


@pytest.mark.parametrize("canary", [0.5 + 2**-53, None, RuntimeError(SECRET), OutOfMemory(), KeyError("x")], ids=repr)
def test_a_canary_that_answers_otherwise_or_raises_breaks_the_process_after_the_reply(
    bench: Bench, caplog: pytest.LogCaptureFixture, canary: Any
) -> None:
    bench.engine.predict_error = lambda: RuntimeError("x")
    bench.engine.canary_answer = canary
    assert bench.run()[0].status == wire.FAILED
    bench.worker.join(10)
    assert "canary" in str(bench.worker.snapshot.broken)
    assert not bench.worker.is_alive()
    assert SECRET not in caplog.text


def test_a_fatal_error_breaks_the_process_after_the_reply_without_a_canary(bench: Bench) -> None:
    bench.engine.predict_error = lambda: RuntimeError("CUDA error: an illegal memory access was encountered")
    reply, _ = bench.run()
    assert reply.status == wire.FAILED
    assert "illegal" not in reply.message
    bench.worker.join(10)
    assert bench.worker.snapshot.broken == "a fatal device error"
    assert bench.engine.events.count("canary") == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exception_that_is_no_error_of_the_engine_ends_the_thread_and_the_process_is_told(
    bench: Bench, error: type[BaseException]
) -> None:
    bench.engine.before_predict = lambda _number: (_ for _ in ()).throw(error)
    bench.woken.clear()
    with pytest.raises(AssertionError, match="no reply"):
        bench_run_without_waiting(bench)
    bench.worker.join(10)
    assert bench.woken.is_set()
    assert bench.worker.snapshot.broken == "the inference thread died"


def bench_run_without_waiting(bench: Bench) -> None:
    bench._back.setsockopt(zmq.RCVTIMEO, 0)
    number = os.urandom(16)
    slot = bench.web.acquire(number)
    assert slot is not None
    now = time.monotonic()
    bench._back.send_multipart([b"", stamped(now, now + 30, slot.index, number), wire.encode_job(ONE_CALL)])
    bench.worker.join(10)
    slot.close()
    assert bench._back.poll(0), "no reply"


# -- jobs that nobody wants any more ---


def never_ran(bench: Bench) -> bool:
    return not {"prepare", "predict"} & set(bench.engine.events)


@pytest.mark.parametrize(
    "circumstances",
    [
        {"hold": False},
        {"deadline": -0.001},
        {"deadline": 0.0},
        {"job_id": b"\x01" * 16},
        {"slot": 3},
        {"slot": -1},
        {"slot": 99},
    ],
    ids=[
        "request gone",
        "budget spent",
        "budget just spent",
        "another request's slot",
        "a free slot",
        "slot -1",
        "slot 99",
    ],
)
def test_a_job_that_nobody_wants_any_more_is_skipped_without_meeting_the_engine(
    bench: Bench, circumstances: dict[str, Any]
) -> None:
    reply, payload = bench.run(**circumstances)
    assert (reply.status, payload) == (wire.EXPIRED, None)
    bench.settle()
    assert never_ran(bench)
    assert bench.web.in_use() == 0
    assert bench.worker.snapshot.counters == {wire.EXPIRED: 1}
    assert bench.run()[0].status == wire.OK


def test_the_work_lock_is_held_while_a_job_runs_and_free_after_the_reply(bench: Bench) -> None:
    seen = []
    bench.engine.before_predict = lambda _number: (bench.held.close(), seen.append(bench.web.in_use()))
    bench.run()
    assert seen == [1], "a request that left freed the slot under a running job"
    bench.settle()
    assert bench.web.in_use() == 0


def test_a_caller_that_leaves_between_two_calls_costs_no_further_call(bench: Bench) -> None:
    def leave_at_the_second(number: int) -> None:
        if number == 2:
            bench.held.close()
            time.sleep(2 * _LOOK_EVERY_S)

    bench.engine.before_predict = leave_at_the_second
    reply, payload = bench.run(THREE_CALLS)
    assert (reply.status, payload) == (wire.EXPIRED, None)
    assert bench.engine.events.count("predict") == 2


def test_a_budget_that_ends_between_two_calls_costs_no_further_call(bench: Bench) -> None:
    # The first call itself outlasts the budget, however slow this machine is.
    passed = time.monotonic() + 0.2
    bench.engine.before_predict = lambda _number: wait_until(passed)
    reply, _ = bench.run(THREE_CALLS, deadline=passed - time.monotonic())
    assert reply.status == wire.EXPIRED
    assert bench.engine.events.count("predict") <= 1


def wait_until(moment: float) -> None:
    while time.monotonic() < moment:
        time.sleep(0.01)


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b'{"state":1}', b"\xff", b'{"state":1,"questions":[{}],"calls":[[["q",1,null]]]}']
)
def test_a_payload_that_cannot_be_read_is_told_and_never_meets_the_engine(bench: Bench, payload: bytes) -> None:
    reply, _ = bench.run(payload)
    assert reply.status == wire.BAD_MESSAGE
    assert reply.message
    assert never_ran(bench)
    assert bench.run()[0].status == wire.OK


def test_a_damaged_slot_file_costs_requests_and_not_the_inference_thread(bench: Bench) -> None:
    def damage() -> None:
        os.truncate(bench.path, 0)
        with bench.path.open("r+b") as file:
            file.write(b"no slot file any more")

    reply, _ = bench.run(meanwhile=damage)
    assert reply.status == wire.EXPIRED
    assert never_ran(bench)
    bench.settle()
    assert bench.worker.is_alive()
    assert bench.worker.snapshot.broken is None


# -- the long run ---


@pytest.mark.parametrize(
    "error",
    [lambda: OutOfMemory("x"), lambda: RuntimeError("x"), lambda: ValueError("x")],
    ids=["oom", "runtime", "value"],
)
def test_a_hundred_failures_in_a_row_leave_nothing_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException]
) -> None:
    monkeypatch.setattr(logging.getLogger("scorer.worker"), "disabled", True)  # pytest itself keeps every record
    bench.engine.predict_error = error

    def fail(times: int) -> int:
        for _ in range(times):
            bench.run()
        bench.settle()
        del bench.engine.events[2:], bench.engine.alive_at_release[:-1]
        gc.collect()
        return len(gc.get_objects())

    before = fail(20)
    assert fail(100) - before < 50, "something is kept for each failure"
    assert bench.engine.alive_at_release == [0]
    bench.engine.predict_error = None
    assert bench.run()[0].status == wire.OK
    assert sum(bench.worker.snapshot.counters.values()) == 121


def test_results_after_failures_are_those_of_before(bench: Bench) -> None:
    first = bench.run()[1]["calls"]
    for error in (RuntimeError("x"), OutOfMemory(), ValueError("x")):
        bench.engine.predict_error = lambda error=error: error
        bench.run()
    bench.engine.predict_error = None
    assert json.dumps(bench.run()[1]["calls"]) == json.dumps(first)
