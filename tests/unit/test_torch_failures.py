"""The contract's list "Engine against a fake torch": what comes out of a failed call, and what it leaves behind
(INV-4)."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import pytest

from scorer.engines.base import EngineFailure, FatalEngineError, NonFiniteForward, OutOfMemory
from scorer.engines.intern import InternEngine
from scorer.engines.torch_failures import ScoringFailed, drop_frames
from tests.unit.intern_fakes import (  # noqa: F401 - the last two are fixtures
    MIB,
    QUESTION,
    FakeTorch,
    Snapshot,
    answer,
    fake_snapshot,
    fake_torch,
)

SECRET = "secret-STATE-123"


def failing(torch: FakeTorch, error: BaseException) -> Any:
    """A forward that holds tensors in its frames, in a cycle, and in a chained exception's frames, and then raises
    ``error``."""

    def inner() -> None:
        tensor = torch.tensor()
        cycle = [tensor]
        cycle.append(cycle)  # type: ignore[arg-type]
        raise KeyError(len(cycle))

    def forward(decider: Any, request: Any) -> Any:
        kept = [torch.tensor(), torch.tensor()]
        try:
            inner()
        except KeyError as cause:
            kept.append(torch.tensor())
            raise error from cause

    return forward


def predict(engine: InternEngine, state: Any = SECRET) -> dict[str, Any]:
    (call,) = engine.prepare(state, [QUESTION])
    return engine.predict(call).answer


def outcome(engine: InternEngine, torch: FakeTorch, error: BaseException) -> BaseException:
    """What the engine raises when the forward raises ``error``."""
    torch.forward = failing(torch, error)
    del error
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each test looks at it
        predict(engine)
    torch.forward = answer
    return caught.value


def assert_released_and_unchained(torch: FakeTorch, raised: BaseException) -> None:
    assert raised.__cause__ is None
    assert raised.__context__ is None
    assert torch.events.count("empty_cache") == 1
    assert torch.alive_at_empty_cache == [0]


def test_an_oom_is_reraised_unchained_and_the_cache_emptied_only_after_the_tensors_are_dead(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    engine = snapshot.loaded()
    raised = outcome(engine, torch, torch.OutOfMemoryError("CUDA ran short"))
    assert type(raised) is OutOfMemory
    assert_released_and_unchained(torch, raised)


def test_a_runtime_error_whose_first_line_says_out_of_memory_becomes_out_of_memory(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    engine = snapshot.loaded()
    raised = outcome(engine, torch, RuntimeError("CUDA error: Out of Memory\nmore"))
    assert type(raised) is OutOfMemory
    assert_released_and_unchained(torch, raised)


def test_out_of_memory_in_a_later_line_only_is_an_ordinary_failure(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded()
    assert type(outcome(engine, torch, RuntimeError("shapes differ\nout of memory"))) is ScoringFailed


def test_after_an_oom_the_next_call_answers_as_before(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded()
    before = predict(engine)
    outcome(engine, torch, torch.OutOfMemoryError(""))
    assert predict(engine) == before


def test_another_failure_becomes_scoring_failed_unchained_and_quotes_nothing(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    engine = snapshot.loaded()
    raised = outcome(engine, torch, RuntimeError(f"boom {SECRET}"))
    assert type(raised) is ScoringFailed
    assert SECRET not in str(raised)
    assert_released_and_unchained(torch, raised)


def test_a_failure_carries_where_it_happened_for_the_workers_one_log_record_and_not_its_message(
    snapshot: Snapshot, torch: FakeTorch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = snapshot.loaded()
    caplog.clear()
    raised = outcome(engine, torch, RuntimeError(f"boom {SECRET}"))
    assert isinstance(raised, EngineFailure)
    assert raised.origin is not None
    assert raised.origin["exception"] == "RuntimeError"
    assert any(frame.endswith(" forward") for frame in raised.origin["frames"])
    assert SECRET not in str(vars(raised))
    assert not caplog.records


def test_a_value_error_keeps_its_message_and_is_released_and_raised_unchained(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    engine = snapshot.loaded()
    raised = outcome(engine, torch, ValueError("Candidate symbols must each encode to a single token"))
    assert type(raised) is ValueError
    assert str(raised) == "Candidate symbols must each encode to a single token"
    assert_released_and_unchained(torch, raised)


@pytest.mark.parametrize("message", ["Invalid probability distribution", "Probabilities must sum to one"])
def test_a_non_finite_forward_is_not_the_callers_fault(snapshot: Snapshot, torch: FakeTorch, message: str) -> None:
    engine = snapshot.loaded()
    raised = outcome(engine, torch, ValueError(message))
    assert type(raised) is NonFiniteForward
    assert_released_and_unchained(torch, raised)


@pytest.mark.parametrize(
    "what",
    [
        "an illegal memory access was encountered",
        "device-side assert triggered",
        "unspecified launch failure",
    ],
)
def test_a_fatal_cuda_error_is_fatal_and_no_longer_touches_the_device(
    snapshot: Snapshot, torch: FakeTorch, what: str
) -> None:
    engine = snapshot.loaded()
    raised = outcome(engine, torch, RuntimeError(f"CUDA error: {what}\nCUDA kernel errors might be reported later"))
    assert type(raised) is FatalEngineError
    assert raised.__context__ is None
    assert "empty_cache" not in torch.events
    assert len(torch.tensors) <= 1  # all but the one in a cycle, which waits for the collector


def test_a_device_that_cannot_give_memory_back_is_fatal(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded()

    def poisoned() -> None:
        raise RuntimeError("CUDA error: something new")

    torch.cuda.empty_cache = poisoned
    raised = outcome(engine, torch, RuntimeError("boom"))
    assert type(raised) is FatalEngineError
    assert raised.__context__ is None


def test_a_hundred_ooms_in_a_row_leave_nothing_behind(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded()
    logging.disable(logging.CRITICAL)  # pytest keeps every record
    try:

        def burst(count: int) -> int:
            for _ in range(count):
                with pytest.raises(OutOfMemory):
                    predict(engine)
            torch.events.clear()
            torch.alive_at_empty_cache.clear()
            gc.collect()
            return len(gc.get_objects())

        torch.forward = lambda decider, request: failing(torch, torch.OutOfMemoryError(""))(decider, request)
        before = burst(5)
        assert burst(100) <= before
        assert len(torch.tensors) == 0
    finally:
        logging.disable(logging.NOTSET)


def test_a_raised_failure_is_in_no_reference_cycle(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded()
    torch.forward = failing(torch, torch.OutOfMemoryError(""))
    (call,) = engine.prepare("state", [QUESTION])
    gc.disable()
    try:
        try:
            engine.predict(call)
        except OutOfMemory as error:
            ghost = weakref.ref(error)
        assert ghost() is None
    finally:
        gc.enable()


def test_the_tensors_die_even_when_somebody_else_still_holds_the_traceback(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    engine = snapshot.loaded()
    fail, held = failing(torch, torch.OutOfMemoryError("")), []

    def forward(decider: Any, request: Any) -> Any:
        try:
            fail(decider, request)
        except torch.OutOfMemoryError as error:
            held.append(error.__traceback__)
            raise

    torch.forward = forward
    with pytest.raises(OutOfMemory):
        predict(engine)
    assert len(held) == 1
    assert torch.alive_at_empty_cache == [0]


def test_drop_frames_survives_exceptions_that_are_chained_in_a_circle() -> None:
    one, two = ValueError(), KeyError()
    one.__context__, two.__context__ = two, one
    drop_frames(one)
    assert one.__context__ is None
    assert two.__context__ is None


def test_a_request_the_prompt_builder_rejects_never_reaches_the_model(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded()
    with pytest.raises(ValueError, match=r"^the rule$") as caught:
        engine.prepare("bad", [QUESTION])
    assert caught.value.__context__ is None
    assert torch.events == ["validate"]


def test_a_second_call_that_is_too_long_costs_no_forward_and_the_message_is_the_files_own(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    engine = snapshot.loaded(max_tokens="20")
    longer = {f"q{n}": QUESTION["q"] for n in range(20)}
    with pytest.raises(ValueError, match=r"^Example has 21 tokens, above 20; truncation is forbidden$"):
        engine.prepare("state", [QUESTION, longer])
    assert "predict" not in torch.events


def test_a_prompt_with_more_markers_than_fields_is_refused_before_any_forward(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    engine = snapshot.loaded()
    with pytest.raises(ValueError, match=r"^Decision marker count or position mismatch$"):
        engine.prepare("the fake file lets <decision> through", [QUESTION])
    assert "predict" not in torch.events


def test_exactly_max_tokens_is_taken(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded(max_tokens="20")
    (call,) = engine.prepare("word " * 19, [QUESTION])
    assert call.input_tokens == 20


@pytest.mark.parametrize(
    "error", [TypeError(f"unhashable {SECRET}"), RecursionError(), UnicodeEncodeError("utf-8", SECRET, 0, 1, "")]
)
def test_a_value_that_cannot_be_rendered_is_the_callers_fault_and_is_not_quoted(
    snapshot: Snapshot, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    engine = snapshot.loaded()

    def validate(request: Any) -> Any:
        raise error

    monkeypatch.setattr(engine._module, "validate_request", validate)
    with pytest.raises(ValueError, match=r"\.$") as caught:
        engine.prepare(SECRET, [QUESTION])
    assert type(caught.value) is ValueError
    assert SECRET not in str(caught.value)


def test_a_bug_in_the_prompt_builder_is_a_failure_not_the_callers_fault(
    snapshot: Snapshot, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = snapshot.loaded()
    monkeypatch.setattr(engine._module, "compile_row", lambda row: row.missing)
    with pytest.raises(ScoringFailed):
        engine.prepare("state", [QUESTION])


def test_predict_gets_the_request_and_its_answer_passes_untouched(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded()
    state = {"a": [1.5, None]}
    seen, given = [], {"answers": {}, "usage": {}, "anything": object()}
    torch.forward = lambda decider, request: seen.append(request) or given  # type: ignore[func-returns-value]
    (call,) = engine.prepare(state, [QUESTION])
    assert engine.predict(call).answer is given
    assert seen == [{"state": state, "questions": QUESTION}]
    assert seen[0]["state"] is state


def test_a_burst_over_baseline_plus_slack_is_released(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded(release_slack_mib="512")
    torch.reserved += 512 * MIB + 1
    predict(engine)
    assert torch.events.count("empty_cache") == 1


def test_a_burst_at_baseline_plus_slack_is_left_alone(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded(release_slack_mib="512")
    torch.reserved += 512 * MIB
    predict(engine)
    engine.release()
    assert "empty_cache" not in torch.events


def test_release_gives_back_what_a_job_left_over_the_slack(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded(release_slack_mib="0")
    torch.reserved += 1
    engine.release()
    assert torch.events == ["empty_cache"]


def test_the_canary_sees_one_changed_bit(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded()
    before = engine.canary()
    assert engine.canary() == before

    def other(decider: Any, request: Any) -> Any:
        changed = answer(decider, request)
        next(iter(changed["answers"].values()))["noul"] = 0.75 + 2**-53
        return changed

    torch.forward = other
    assert engine.canary() != before


def test_the_memory_counters_are_the_allocators_and_the_baseline(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded()
    assert set(engine.memory()) == {"allocated", "reserved", "peak_reserved", "baseline"}
    assert engine.memory()["baseline"] == torch.reserved
