"""INV-3, INV-4 and INV-7 on a real card: the cap, an over-cap request, memory back at the baseline, A against A.

On the tiny checkpoint always; on the pinned 4B one too where ``INTERN_DECISION_CHECKPOINT`` or its default path holds
it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from scorer.engines.base import OutOfMemory, StartRefused
from scorer.engines.intern import InternEngine
from scorer.engines.intern_tiny.build import build
from shared.settings import ScorerSettings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")]

GIB, MIB = 1 << 30, 1 << 20
QUESTIONS = {
    "team": {
        "type": "choice",
        "instructions": "Which team?",
        "criteria": {"billing": "Payments", "delivery": "Parcels"},
    },
    "refund": {"type": "noul", "instructions": "Is the person asking for the money back?"},
}
LOAD = """
import sys
from scorer.engines.base import StartRefused
from scorer.engines.intern import InternEngine
from shared.settings import ScorerSettings
try:
    InternEngine(ScorerSettings.from_env()).load()
except StartRefused as refusal:
    print(refusal)
    sys.exit(78)
"""
SHORT, LONG = "The parcel came late.", "The parcel came late. " * 600


@pytest.fixture(scope="module", params=["tiny", "real"])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings of one checkpoint, uncapped."""
    if request.param == "tiny":
        settings = build(tmp_path_factory.mktemp("tiny")).settings()
        return {**settings, "INTERN_DECISION_DEVICE": "cuda", "INTERN_DECISION_ALLOW_SLOW_KERNELS": "1"}
    settings = {name: value for name, value in os.environ.items() if name == "INTERN_DECISION_CHECKPOINT"}
    if not ScorerSettings.from_env(settings).checkpoint.is_dir() or sys.version_info < (3, 12):
        pytest.skip("no 4B checkpoint, or a Python below 3.12")
    return settings


@pytest.fixture(autouse=True)
def uncapped() -> Iterator[None]:
    """A cap outlives its engine: it is the process's."""
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    torch.cuda.empty_cache()


def settings(environment: dict[str, str], **changes: str) -> ScorerSettings:
    return ScorerSettings.from_env(
        environment | {f"INTERN_DECISION_{name.upper()}": text for name, text in changes.items()}
    )


@pytest.fixture(scope="module")
def engine(environment: dict[str, str]) -> InternEngine:
    engine = InternEngine(settings(environment, release_slack_mib="0"))
    engine.load()
    return engine


def answer(engine: InternEngine, state: str) -> dict[str, Any]:
    (call,) = engine.prepare(state, [QUESTIONS])
    out = engine.predict(call).answer
    return {"answers": out["answers"], "usage": out["usage"]}


def test_the_model_is_on_the_card_and_the_card_is_named(engine: InternEngine) -> None:
    assert {parameter.device.type for parameter in engine._decider.backend.model.parameters()} == {"cuda"}
    assert engine.info().device == torch.cuda.get_device_name(0)
    print("kernels:", engine.info().model["kernels"], "memory:", engine.memory())


def test_parameters_are_bfloat16_and_take_two_bytes_each(engine: InternEngine) -> None:
    parameters = list(engine._decider.backend.model.parameters())
    assert {parameter.dtype for parameter in parameters} == {torch.bfloat16}
    assert engine.memory()["allocated"] < 2 * sum(p.numel() for p in parameters) + 64 * MIB


def test_a_card_that_torch_is_not_built_for_is_refused(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_10"])
    with pytest.raises(StartRefused, match="sm_10"):
        InternEngine(settings(environment)).load()


def test_a_cap_above_the_card_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(StartRefused, match="INTERN_DECISION_VRAM_CAP_GIB"):
        InternEngine(settings(environment, vram_cap_gib="4096")).load()


def test_a_cap_below_the_weights_is_refused(environment: dict[str, str]) -> None:
    # In a process of its own: here, memory that torch has cached could hold a second tiny model.
    cap = "8" if "INTERN_DECISION_PINS_FILE" not in environment else "0.001"
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **environment, "INTERN_DECISION_VRAM_CAP_GIB": cap},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 78, done.stderr
    assert f"INTERN_DECISION_VRAM_CAP_GIB={cap} is too small" in done.stdout


def test_an_over_cap_request_is_out_of_memory_three_times_and_memory_is_back_each_time(engine: InternEngine) -> None:
    before, canary = torch.cuda.memory_allocated(), engine.canary()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2 * MIB) / total, 0)
    for _ in range(3):
        with pytest.raises(OutOfMemory) as caught:
            answer(engine, LONG)
        assert caught.value.__context__ is None
        del caught
        assert abs(torch.cuda.memory_allocated() - before) <= MIB
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    assert engine.canary() == canary


def test_what_a_long_call_leaves_over_the_slack_is_given_back(engine: InternEngine) -> None:
    answer(engine, LONG)
    engine.release()
    assert engine.memory()["reserved"] <= engine.memory()["baseline"] + 2 * MIB


def test_a_against_a_is_bit_identical_alone_after_a_long_call_and_after_an_oom(
    engine: InternEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = answer(engine, SHORT)
    assert all(answer(engine, SHORT) == first for _ in range(10))
    long = answer(engine, LONG)
    assert answer(engine, SHORT) == first
    with monkeypatch.context() as patch:
        patch.setattr(engine._decider.backend, "score", out_of_memory)
        with pytest.raises(OutOfMemory):
            answer(engine, SHORT)
    assert answer(engine, SHORT) == first
    assert answer(engine, LONG) == long


def test_the_model_without_its_vision_tower_is_the_same_model_and_smaller(
    environment: dict[str, str], engine: InternEngine
) -> None:
    whole = InternEngine(settings(environment, keep_vision="1"))
    whole.load()
    assert whole.canary() == engine.canary()
    tower = sum(p.numel() * p.element_size() for p in whole._decider.backend.model.model.visual.parameters())
    assert tower > 0


def test_memory_outside_the_allocator_does_not_grow_over_two_hundred_mixed_calls(engine: InternEngine) -> None:
    def outside() -> int:
        free, total = torch.cuda.mem_get_info(0)
        return int(total - free - torch.cuda.memory_reserved())

    for state in (SHORT, LONG):
        answer(engine, state)
    before = outside()
    for index in range(200):
        answer(engine, f"{index} " + (LONG[: 50 * index] if index % 5 else SHORT))
    assert outside() - before < 64 * MIB


def out_of_memory(row: Any) -> Any:
    """Fill the card until torch itself refuses."""
    kept: list[torch.Tensor] = []
    while True:
        kept.append(torch.empty(8 * GIB, dtype=torch.uint8, device="cuda"))
