"""What sharing a state saves on the ``labels`` engine: tokens forwarded, and time against reading every prompt whole.

    python -m tests.bench.bench_labels [--checkpoint DIRECTORY] [--questions N] [--state-tokens N] [--rounds N]

Both run in this process, in turns, on one thread of one CPU unless ``--device`` says otherwise; times are the best of
the rounds, and mean something only as a ratio. Nothing is kept between requests, so every round pays for the state.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
from pathlib import Path
from typing import Any

from scorer.engines.labels import LabelsEngine
from scorer.engines.labels_tiny.build import build_tiny_lm
from shared.settings import PREFIX, ScorerSettings


def started(checkpoint: Path, device: str, share: bool) -> LabelsEngine:
    """A loaded engine that keeps no prefix between requests."""
    named = {"ENGINE": "labels", "CHECKPOINT": str(checkpoint), "DEVICE": device, "LABELS_CACHE_MIB": "0"}
    engine = LabelsEngine(ScorerSettings.from_env({PREFIX + name: value for name, value in named.items()}), share=share)
    engine.load()
    return engine


def questions_of(number: int) -> list[dict[str, Any]]:
    """So many yes-or-no questions, each a call of its own."""
    words = ("late", "paid", "angry", "a repeat", "about a refund", "about the invoice", "from a new customer")
    return [
        {"q": {"type": "noul", "instructions": f"Question {i}: is the message {words[i % len(words)]}?"}}
        for i in range(number)
    ]


def asked(engine: LabelsEngine, state: str, questions: list[dict[str, Any]]) -> tuple[float, int, int, list[float]]:
    """Seconds, tokens forwarded, tokens of the request (the shared ones once), and the probabilities of yes."""
    before, begun = engine.reader.forwarded, time.perf_counter()
    calls = engine.prepare(state, questions)
    answers = [engine.predict(call).answer["answers"]["q"]["noul"] for call in calls]
    seconds = time.perf_counter() - begun
    return seconds, engine.reader.forwarded - before, calls[0].payload[0].tokens, answers


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, help="a model's directory; the tiny random one unless given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--state-tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    importlib.import_module("torch").set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = options.checkpoint or build_tiny_lm(Path(scratch) / "tiny")
        shared, whole = (started(checkpoint, options.device, share) for share in (True, False))
        # A word of one or two tokens, so the state comes out between the number asked for and twice that: cut to size.
        state = "the parcel came late and "
        one = len(shared.prepare(state, questions_of(1))[0].payload[0].shared)
        two = len(shared.prepare(state * 2, questions_of(1))[0].payload[0].shared)
        state *= 1 + (options.state_tokens - one) // (two - one)
        questions = questions_of(options.questions)
        rounds = [(asked(shared, state, questions), asked(whole, state, questions)) for _ in range(options.rounds)]
    ours, theirs = (min(one[side] for one in rounds) for side in (0, 1))
    differ = max(abs(a - b) for a, b in zip(ours[3], theirs[3], strict=True))
    print(f"{options.questions} questions over one state, {ours[2]} tokens in all, the state once")
    ratios = [side[1] / ours[2] for side in (ours, theirs)]
    print(f"tokens forwarded  shared {ours[1]} = {ratios[0]:.2f} x   whole {theirs[1]} = {ratios[1]:.2f} x")
    print(f"wall time         shared 1   whole {theirs[0] / ours[0]:.1f} x   ({ours[0]:.3f} s, {theirs[0]:.3f} s)")
    print(f"probabilities differ by at most {differ:.1e}")


if __name__ == "__main__":
    main()
