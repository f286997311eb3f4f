"""``python -m tests.bench.bench_intern [DIRECTORY]``: what the engine adds to the file's own predict(), on the tiny
checkpoint.

Prints, for one call of about 2,000 tokens, the medians of each part in milliseconds: ``file`` (the file's own predict),
``prepare`` (validate, render, tokenise, hash), ``wire`` (job decoded, answer encoded), ``around`` (what our predict()
adds to the file's), ``assemble`` (the web tier's part: reply read, answer checked, response written); and the share of
the call that is added, which is to stay under 10 %. All parts take turns in one run, so that a busy machine disturbs
all alike."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scorer.engines.intern import InternEngine
from scorer.engines.intern_tiny.build import build
from shared import jsonio
from shared.settings import ScorerSettings
from shared.wire import CallItem, Job, decode_job, encode_job
from web.assemble import check_call

ROUNDS = 15
TOKENS = 2000
QUESTIONS = [
    {
        "type": "choice",
        "instructions": "Which team?",
        "criteria": {"billing": "Payments", "delivery": "Parcels", "other": None},
    },
    {"type": "noul", "instructions": "Is the person asking for the money back?"},
    {"type": "score", "instructions": "How urgent is it?", "criteria": ["low", "medium", "high"]},
]


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Milliseconds and the result."""
    started = time.perf_counter()
    result = work(*arguments)
    return 1000 * (time.perf_counter() - started), result


def assembled(payload: bytes, questions: dict[str, dict[str, Any]]) -> bytes:
    """What the web tier does with the reply to a ``native`` request."""
    (call,) = jsonio.loads_ours(payload)["calls"]
    check_call(call, questions)
    return jsonio.dumps(call["answer"])


def measure(directory: Path) -> None:
    """Build, load, measure, print."""
    started = time.perf_counter()
    engine = InternEngine(ScorerSettings.from_env(build(directory).settings()))
    engine.load()
    print(f"start, imports included: {time.perf_counter() - started:.1f} s")
    state, words = "", 0
    calls = [[CallItem(f"q{n}", n) for n in range(len(QUESTIONS))]]
    named = Job(None, QUESTIONS, calls).call_questions(calls[0])
    while engine.prepare(state, [named])[0].input_tokens < TOKENS:
        words += 50
        state = "A customer writes that the parcel came late. " * (words // 8)
    frame = encode_job(Job(state, QUESTIONS, calls))

    parts: dict[str, list[float]] = {name: [] for name in ("file", "prepare", "wire", "around", "assemble")}
    file_predict = engine._decider.predict

    def clocked(request: Any) -> Any:
        took, answer = timed(file_predict, request)
        parts["file"].append(took)
        return answer

    engine._decider.predict = clocked
    for _ in range(ROUNDS):
        decode, job = timed(decode_job, frame)
        prepare, (call,) = timed(engine.prepare, job.state, [job.call_questions(job.calls[0])])
        own, result = timed(engine.predict, call)
        answered = {"input_tokens": call.input_tokens, "prompt_sha256": call.prompt_sha256}
        reply = {"calls": [{"answer": result.answer, **answered}]}
        encode, payload = timed(jsonio.dumps, reply)
        assemble, _ = timed(assembled, payload, named)
        parts["assemble"].append(assemble)
        parts["prepare"].append(prepare)
        parts["wire"].append(decode + encode)
        parts["around"].append(own - parts["file"][-1])
    median = {name: statistics.median(values) for name, values in parts.items()}
    added = median["prepare"] + median["wire"] + median["around"] + median["assemble"]
    print(f"tokens: {call.input_tokens}, rounds: {ROUNDS}")
    for name, value in median.items():
        print(f"{name:>8}: {value:8.3f} ms")
    print(f"{'added':>8}: {added:8.3f} ms = {100 * added / (added + median['file']):.1f} % of the call")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            measure(Path(scratch))
