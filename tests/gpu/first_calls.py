"""``python -m tests.gpu.first_calls``: the first and the second call at ten new prompt lengths, in milliseconds, on the
tiny checkpoint (trouble.md rank 50)."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from scorer.engines.intern import InternEngine
from scorer.engines.intern_tiny.build import build
from shared.settings import ScorerSettings


def main() -> None:
    """Print one line a length."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as scratch:
        settings = build(Path(scratch)).settings()
        settings |= {"INTERN_DECISION_DEVICE": device, "INTERN_DECISION_ALLOW_SLOW_KERNELS": "1"}
        engine = InternEngine(ScorerSettings.from_env(settings))
        engine.load()
    print("device:", engine.info().device, "kernels:", engine.info().model["kernels"])
    for length in range(60, 1100, 104):
        (call,) = engine.prepare(
            "The parcel came late. " * length, [{"q": {"type": "noul", "instructions": "Was it late?"}}]
        )
        took = []
        for _ in range(2):
            started = time.perf_counter()
            engine.predict(call)
            took.append(1000 * (time.perf_counter() - started))
        first, second = took
        print(f"{call.input_tokens:6d} tokens: {first:9.1f} ms, then {second:9.1f} ms, ratio {first / second:6.1f}")


if __name__ == "__main__":
    main()
