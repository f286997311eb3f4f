"""The acceptance list's checks of an engine in this process, and the process that makes them.

    python -m scorer.bench.inside OUT [--answers] [--min-accuracy X] [--tolerance X] [ROWS ...]

loads the engine that the settings name and writes ``OUT``: ``{"info", "lines", "scores"}``, with ``--answers`` the
scores alone. It is a process of its own so that its memory is the engine's, and so that one model at a time is loaded.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scorer.bench import checks, controls, rows
from scorer.bench.checks import FAIL, NOT_APPLICABLE, PASS, Line, Scores
from scorer.bench.forms import Row
from scorer.bench.plan import calls
from scorer.bench.source import Answer, EngineSource, Failure, SourceBroken
from scorer.engines.base import StartRefused
from shared import jsonio
from shared.settings import SettingsError
from shared.wire import EngineInfo

__all__ = ["ROWS_LIMIT", "asked_rows", "inspect", "main", "tolerance_of", "unfit"]

#: Rows of the caller's that the controls ask; more would only take longer.
ROWS_LIMIT = 500

_MIB = 1 << 20
#: Resident memory that repeating a shape may add.
_GROWTH_MIB = 64
#: Room above what is in use when the over-cap request is sent.
_ROOM = 8 * _MIB
#: On a GPU two runs of the same kernels may differ in the last bits of bfloat16; measured on ours up to 0.01.
_GPU_TOLERANCE = 0.02
_UNTRAINED = {
    "fake": "the engine has no model",
    "Intern-Decision-tiny": "the checkpoint's weights are random: it has learned nothing that could be right",
}


def unfit(name: str) -> str:
    """Why an engine or model of this name cannot know the controls' answers, or ""."""
    return _UNTRAINED.get(name.partition("@")[0], "")


def tolerance_of(device: str, asked: float | None) -> float:
    """How far two runs may differ: as asked, else nothing on a CPU, where the same arithmetic is done in the same
    order."""
    return asked if asked is not None else 0.0 if device == "cpu" else _GPU_TOLERANCE


def asked_rows(paths: Sequence[Path]) -> list[Row]:
    """The rows that the controls ask: the built-in ones, or the first 500 of the caller's. Raises RowsError."""
    if not paths:
        return controls.control_rows()
    files = rows.find(paths)
    return [row for _, row in zip(range(ROWS_LIMIT), rows.read(files, rows.check(files)), strict=False)]


def inspect(
    source: EngineSource, asked: Sequence[Row], *, least: float | None = None, tolerance: float | None = None
) -> tuple[list[Line], Scores]:
    """Every check that an engine in process can pass, on a loaded source; and the scores, to be compared with another
    process's. Raises SourceBroken."""
    info = source.engine.info()
    allowed = tolerance_of(info.device, tolerance)
    reason = unfit(info.name)
    loaded = _memory_kib("VmRSS")
    scores, lost = checks.score(source, asked)
    lines = [
        checks.whole(scores, lost),
        checks.positive(asked, scores, least, reason),
        checks.negative(source, asked, scores, reason),
        # The other way round: an answer that depends on what was asked before it shows.
        checks.compared("A-vs-A, in process", scores, checks.score(source, asked[::-1])[0], allowed),
        _chunks(source),
        checks.latency(source, "21 binary questions", controls.SENTENCE, controls.BINARY, "in process"),
    ]
    state = checks.long_state(source)
    name = "16 questions, long state"
    lines.append(checks.latency(source, name, state, controls.SIXTEEN, "in process"))
    lines.append(_memory(source, loaded, lambda: checks.latency(source, name, state, controls.SIXTEEN, "")))
    lines.append(_over_cap(source, info, scores, asked, allowed))
    return lines, scores


def _chunks(source: EngineSource) -> Line:
    """Contract § Acceptance, 7, without the server: calls of one request against the same calls alone."""
    name, expected = "chunks, in process", "a request of 40 questions equals its chunks asked one by one, bit for bit"
    questions = {f"f{number}": question for number, question in enumerate(controls.forty())}
    labels = {field: tuple(question["criteria"]) for field, question in questions.items()}
    state = controls.SENTENCE * 3
    # Calls of one question would have no chunks to compare.
    chunks = [call.questions for call in calls(questions, labels, "none", max(2, source.per_call))]
    together = list(source.ask(state, chunks))
    alone = [outcome for chunk in chunks for outcome in source.ask(state, [chunk])]
    lost = [outcome for outcome in (*together, *alone) if isinstance(outcome, Failure)]
    if lost:
        return Line(name, expected, f"{lost[0].kind}: {lost[0].message}", FAIL)
    pairs = list(zip(together, alone, strict=True))
    same = sum(
        isinstance(x, Answer)
        and isinstance(y, Answer)
        and (x.answers, x.prompt_sha256, x.input_tokens) == (y.answers, y.prompt_sha256, y.input_tokens)
        for x, y in pairs
    )
    found = f"{same} of {len(pairs)} chunks ({'+'.join(str(len(chunk)) for chunk in chunks)} questions)"
    return Line(name, expected, found, PASS if same == len(pairs) else FAIL)


def _memory(source: EngineSource, loaded: int, again: Any) -> Line:
    """Contract § Acceptance, 5: resident and peak, and that the long shape asked over and over adds nothing."""
    before = _memory_kib("VmRSS")
    for _ in range(3):
        again()
    after, peak = _memory_kib("VmRSS"), _memory_kib("VmHWM")
    found = (
        f"resident {loaded // 1024} MiB loaded, {after // 1024} MiB after, peak {peak // 1024} MiB; "
        f"15 more long calls added {max(0, after - before) // 1024} MiB"
    )
    device = source.engine.memory()
    if "reserved" in device:
        found += "; device " + ", ".join(f"{name} {value // _MIB} MiB" for name, value in device.items())
    good = after - before <= _GROWTH_MIB * 1024
    return Line("memory", f"told; repeating a call adds at most {_GROWTH_MIB} MiB", found, PASS if good else FAIL)


def _over_cap(source: EngineSource, info: EngineInfo, scores: Scores, asked: Sequence[Row], allowed: float) -> Line:
    """Contract § Acceptance, 6, without the server: out of memory, back at the baseline, and the same answers after
    it."""
    name = "over-cap request"
    expected = "out of memory; then memory at the baseline, and the same answers"
    if "reserved" not in source.engine.memory():
        return Line(name, expected, "", NOT_APPLICABLE, f"no memory cap: {info.engine} does not run on CUDA here")
    torch: Any = importlib.import_module("torch")
    total = int(torch.cuda.get_device_properties(0).total_memory)
    cap = total if info.vram_cap_gib is None else int(info.vram_cap_gib * (1 << 30))
    torch.cuda.empty_cache()
    before = source.engine.memory()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (before["reserved"] + _ROOM) / total), 0)
    try:
        (outcome,) = source.ask(checks.long_state(source), [{f"q{i}": q for i, q in enumerate(controls.SIXTEEN, 1)}])
    finally:
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total), 0)
    if not isinstance(outcome, Failure) or outcome.kind != "out_of_memory":
        kind = outcome.kind if isinstance(outcome, Failure) else "it was answered"
        return Line(name, expected, f"a request beyond {_ROOM // _MIB} MiB of room: {kind}", FAIL)
    left = source.engine.memory()["reserved"] - before["reserved"]
    same = checks.compared(name, scores, checks.score(source, asked)[0], allowed)
    found = f"out of memory; {max(0, left) // _MIB} MiB left behind; then {same.found}"
    return Line(name, expected, found, PASS if left <= _ROOM and same.outcome == PASS else FAIL)


def _memory_kib(name: str) -> int:
    found = re.search(rf"^{name}:\s+([0-9]+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) if found else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit code is 0, 78 when the engine refuses to start, 70 when it breaks."""
    parser = argparse.ArgumentParser(prog="python -m scorer.bench.inside", description="checks of an engine in process")
    parser.add_argument("out", type=Path)
    parser.add_argument("rows", type=Path, nargs="*")
    parser.add_argument("--answers", action="store_true")
    parser.add_argument("--min-accuracy", type=float)
    parser.add_argument("--tolerance", type=float)
    given = parser.parse_args(argv)
    # As the scorer does: see scorer.__main__.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        source = EngineSource()
        source.load()
        asked = asked_rows(given.rows)
        lines: list[Line] = []
        if given.answers:
            scores, _ = checks.score(source, asked)
        else:
            lines, scores = inspect(source, asked, least=given.min_accuracy, tolerance=given.tolerance)
    except (SettingsError, StartRefused) as error:
        print(f"scorer: {error}", file=sys.stderr)
        return 78
    except SourceBroken as error:
        print(f"scorer: {error}", file=sys.stderr)
        return 70
    told: Mapping[str, Any] = {
        "info": source.pins,
        "lines": [line.to_json() for line in lines],
        "scores": scores,
    }
    given.out.write_bytes(jsonio.dumps(told))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # An engine's library may have threads that an orderly exit would wait for.
    os._exit(code)
