"""The ``labels`` engine on a real card, on the tiny chat model: sharing changes no answer, memory comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from scorer.engines.base import OutOfMemory
from scorer.engines.labels import LabelsEngine
from scorer.engines.labels_tiny.build import build_tiny_lm
from shared.settings import PREFIX, ScorerSettings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")]

MIB = 1 << 20
STATE = "The parcel came late and the invoice was paid two times. " * 40
CALLS = [{"q": {"type": "noul", "instructions": f"Is it number {i}{' or more' * (i % 5)}?"}} for i in range(30)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_lm(tmp_path_factory.mktemp("labels") / "tiny")


def started(checkpoint: Path, share: bool = True, **changes: str) -> LabelsEngine:
    named = {"ENGINE": "labels", "CHECKPOINT": str(checkpoint), "DEVICE": "cuda", **changes}
    engine = LabelsEngine(ScorerSettings.from_env({PREFIX + name: text for name, text in named.items()}), share=share)
    engine.load()
    return engine


def answers(engine: LabelsEngine, state: str = STATE) -> list[Any]:
    found = [engine.predict(call).answer["answers"]["q"]["noul"] for call in engine.prepare(state, CALLS)]
    engine.release()
    return found


@pytest.mark.parametrize(("dtype", "noise"), [("float32", 1e-4), ("bfloat16", 0.05)])
def test_answers_equal_those_without_sharing_within_the_dtypes_noise(
    checkpoint: Path, dtype: str, noise: float
) -> None:
    ours, reference = started(checkpoint, LABELS_DTYPE=dtype), started(checkpoint, share=False, LABELS_DTYPE=dtype)
    assert ours.info().model["prefix_sharing"]
    first = answers(ours)
    assert first == pytest.approx(answers(reference), abs=noise)
    assert answers(ours) == first


def test_auto_is_bfloat16_and_the_canary_repeats_bit_for_bit(checkpoint: Path) -> None:
    engine = started(checkpoint)
    assert engine.info().model["dtype"] == "bfloat16"
    assert len({engine.canary() for _ in range(5)}) == 1


def test_kept_prefixes_stay_within_their_bound_and_the_rest_is_given_back(checkpoint: Path) -> None:
    engine = started(checkpoint, LABELS_CACHE_MIB="2", RELEASE_SLACK_MIB="8")
    for number in range(50):
        answers(engine, f"{number} {STATE}")
        counters = engine.memory()
        assert counters["prefix_cache_bytes"] <= 2 * MIB
        assert counters["reserved"] <= counters["baseline"] + (8 + 2 + 20) * MIB  # blocks of 20 MiB


def test_out_of_memory_is_recovered_from_and_the_answers_are_as_before(checkpoint: Path) -> None:
    engine = started(checkpoint)
    expected = answers(engine)
    with pytest.MonkeyPatch.context() as patch:
        # A real one, in the middle of a read.
        patch.setattr(engine.reader, "_forward", lambda *_: torch.empty(1 << 50, device="cuda"))
        with pytest.raises(OutOfMemory):
            answers(engine)
    assert engine.memory()["prefix_cache_bytes"] == 0
    assert answers(engine) == expected
