"""What an engine's exception means (scorer/recovery.py): INV-4; architecture.md §1.5; trouble.md ranks 15, 33, 47;
design §5."""

from __future__ import annotations

import pytest

from scorer.engines.base import FatalEngineError, NonFiniteForward, OutOfMemory
from scorer.recovery import Afterwards, classify
from shared import wire

SECRET = "secret-STATE-123"


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemory(SECRET),
        MemoryError(),
        RuntimeError(f"CUDA out of memory. Tried to allocate {SECRET}"),
        RuntimeError("Out Of Memory"),
        RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
        NotImplementedError("out of memory"),
    ],
    ids=lambda error: repr(error)[:40],
)
def test_out_of_memory_is_503_and_the_process_goes_on(error: Exception) -> None:
    verdict = classify(error)
    assert (verdict.status, verdict.afterwards) == (wire.OUT_OF_MEMORY, Afterwards.GO_ON)
    assert SECRET not in verdict.message


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("something else\nCUDA out of memory"),
        ValueError("out of memory"),
        KeyError("out of memory"),
        RuntimeError("\nout of memory"),
    ],
)
def test_only_the_first_line_of_a_runtime_error_counts_as_out_of_memory(error: Exception) -> None:
    assert classify(error).status != wire.OUT_OF_MEMORY


@pytest.mark.parametrize("message", ["Example has 9000 tokens, above 8192; truncation is forbidden", "", "two\nlines"])
def test_a_value_error_is_the_callers_and_keeps_its_message(message: str) -> None:
    verdict = classify(ValueError(message))
    assert (verdict.status, verdict.message, verdict.afterwards) == (wire.INVALID, message, Afterwards.GO_ON)


def test_a_long_message_is_cut_to_what_a_header_carries_and_keeps_its_beginning() -> None:
    message = classify(ValueError("Example has 9000 tokens" + "é" * 10_000)).message
    assert message.startswith("Example has 9000 tokens")
    assert len(message.encode()) < wire.MAX_HEADER_BYTES / 2


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: device-side assert triggered",
        "CUDA error: unspecified launch failure",
        "CUDA error: misaligned address",
        "CUDA ERROR: An Illegal Memory Access Was Encountered\nmore",
    ],
)
def test_a_fatal_device_error_is_500_and_ends_the_process(text: str) -> None:
    verdict = classify(RuntimeError(text))
    assert (verdict.status, verdict.afterwards) == (wire.FAILED, Afterwards.EXIT)
    assert "CUDA" not in verdict.message


def test_an_engines_own_fatal_error_ends_the_process() -> None:
    assert classify(FatalEngineError(SECRET)).afterwards is Afterwards.EXIT
    assert classify(FatalEngineError()).status == wire.FAILED


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(f"boom /srv/models/x {SECRET}"),
        RuntimeError(),
        KeyError(SECRET),
        TypeError(SECRET),
        ArithmeticError(SECRET),
        AssertionError(SECRET),
        NonFiniteForward(SECRET),
        RecursionError(SECRET),
        Exception(SECRET),
        KeyError("illegal memory access"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_anything_else_is_500_with_a_fixed_message_and_puts_the_process_on_probation(error: Exception) -> None:
    verdict = classify(error)
    assert (verdict.status, verdict.afterwards) == (wire.FAILED, Afterwards.CANARY)
    assert verdict.message == classify(RuntimeError("x")).message
    assert SECRET not in verdict.message
