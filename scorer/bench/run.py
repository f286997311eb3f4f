"""A run: every row asked, every answer written as it comes, continued where it was.

Rows and results pass one at a time, so memory does not grow with their number. The work of a run follows from its
manifest alone (:func:`work`), which is what lets it be continued, and replayed.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from scorer.bench import plan, rows
from scorer.bench.folder import FolderError, RunFolder, differences, manifest_of
from scorer.bench.forms import Row
from scorer.bench.plan import Call
from scorer.bench.progress import Progress
from scorer.bench.recording import Recorder
from scorer.bench.rows import Checked, InputFile
from scorer.bench.source import Answer, Failure, Source, fingerprint

__all__ = ["FORMAT", "Options", "Outcome", "run", "work"]

FORMAT = "run-1"

Asked = tuple[Row, Call, Answer | Failure]


@dataclass(frozen=True)
class Options:
    """What is asked of the rows: ``limit`` rows of the ``families`` (none named: all), the first ones, or with a
    ``seed`` as many drawn at random; ``orderings`` as in :mod:`scorer.bench.plan`; ``packed`` questions of a row go
    into one call together, else one by one."""

    limit: int | None = None
    families: tuple[str, ...] = ()
    seed: int | None = None
    orderings: str = "none"
    packed: bool = False


@dataclass
class Outcome:
    """What happened: ``written`` records now, ``before`` earlier; ``failed`` answers by reason; seconds of the run,
    loading apart, and within them those of the source."""

    manifest: dict[str, Any]
    written: int = 0
    before: int = 0
    cut_bytes: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    source_seconds: float = 0.0

    @property
    def failures(self) -> int:
        """All failed answers."""
        return self.failed.total()


def run(
    files: Sequence[InputFile],
    checked: Checked,
    source: Source,
    out: Path,
    options: Options,
    *,
    overwrite: bool = False,
    concurrency: int = 1,
    progress: Callable[[int, int], Progress] = Progress,
) -> Outcome:
    """Run, or go on with, the run of ``out``.

    ``files`` are checked (:func:`scorer.bench.rows.check`); ``source`` is loaded here, on this thread, after the folder
    was found to be free for these data and options. ``concurrency`` above 1 is for servers: that many rows at once.
    Failed answers are counted, listed in ``failures.jsonl``, and asked again when the run is continued. Raises
    FolderError, RowsError, StartRefused, SourceBroken and OSError.
    """
    manifest: dict[str, Any] = {"format": FORMAT, "data": checked.files, "options": asdict(options)}
    there = None if overwrite else manifest_of(out)
    if there is not None and (found := [name for name in differences(there, manifest) if "per_call" not in name]):
        raise FolderError(
            f"{out} holds another run; it differs in {', '.join(found)}: give another folder, or --overwrite"
        )
    source.load()
    began = time.perf_counter()
    per_call = source.per_call if options.packed else 1
    pins = source.pins
    manifest = {
        **manifest,
        "options": {**asdict(options), "per_call": per_call},
        "source": "url" if "url" in pins else "engine",
        "engine": pins,
        "fingerprint": fingerprint(pins),
        "status": "running",
        "created": _now(),
    }
    folder = RunFolder(out, manifest, overwrite=overwrite)
    outcome = Outcome(folder.manifest, before=len(folder.done), cut_bytes=folder.cut)
    try:
        todo = _undone(work(files, checked, options, per_call), folder)
        if folder.finished:
            first = next(todo, None)
            if first is None:
                return outcome
            todo = chain([first], todo)
        folder.save(status="running")
        bar = progress(_total(checked, options), outcome.before)
        recorder = Recorder(folder, bar)
        outcome.failed = recorder.failed
        before = source.seconds
        try:
            for row, call, answer in _asked(source, todo, concurrency):
                recorder.take(row, call, answer)
        finally:
            bar.close()
            recorder.flush()
            outcome.written = recorder.written
            outcome.seconds = time.perf_counter() - began
            outcome.source_seconds = source.seconds - before
            folder.save(failed=dict(sorted(outcome.failed.items())))
        folder.save(status="finished", ended=_now())
    finally:
        folder.close()
    return outcome


def work(
    files: Sequence[InputFile], checked: Checked, options: Options, per_call: int
) -> Iterator[tuple[Row, list[Call]]]:
    """Every row of a run with its calls, in order."""
    chosen = _chosen(rows.read(files, checked, options.families), checked.rows, options)
    for row in chosen:
        yield row, plan.calls(row.questions, row.labels, options.orderings, per_call)


def _chosen(found: Iterator[Row], total: int, options: Options) -> Iterator[Row]:
    if options.limit is None or options.limit >= total:
        yield from found
        return
    if options.seed is None:
        for _, row in zip(range(options.limit), found, strict=False):
            yield row
        return
    # Selection sampling: exactly `limit` of `total`, each set as likely as any other, without holding a row.
    draw, wanted, left = random.Random(options.seed), options.limit, total
    for row in found:
        if not wanted:
            return
        if draw.random() * left < wanted:
            wanted -= 1
            yield row
        left -= 1


def _undone(asked: Iterator[tuple[Row, list[Call]]], folder: RunFolder) -> Iterator[tuple[Row, list[Call]]]:
    """What is still to ask. A call is asked again whole if any of its answers is missing, so that its prompt is the
    same."""
    if not len(folder.done):
        yield from asked
        return
    for row, calls in asked:
        left = [
            call
            for call in calls
            if not all((row.file, row.id, item.field, item.ordering) in folder.done for item in call.items)
        ]
        if left:
            yield row, left


def _asked(source: Source, asked: Iterator[tuple[Row, list[Call]]], concurrency: int) -> Iterator[Asked]:
    if concurrency == 1:
        for row, calls in asked:
            outcomes = source.ask(row.state, [call.questions for call in calls])
            for call, outcome in zip(calls, outcomes, strict=True):
                yield row, call, outcome
        return

    def ask(row: Row, calls: list[Call]) -> list[Asked]:
        outcomes = source.ask(row.state, [call.questions for call in calls])
        return [(row, call, outcome) for call, outcome in zip(calls, outcomes, strict=True)]

    waiting: set[Future[list[Asked]]] = set()
    with ThreadPoolExecutor(concurrency) as pool:
        try:
            for row, calls in asked:
                waiting.add(pool.submit(ask, row, calls))
                # A few more than threads, so that none of them waits for a row; and no more, so that memory is bounded.
                if len(waiting) >= 2 * concurrency:
                    ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from chain.from_iterable(future.result() for future in ready)
            while waiting:
                ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from chain.from_iterable(future.result() for future in ready)
        finally:
            for future in waiting:
                future.cancel()


def _total(checked: Checked, options: Options) -> int:
    """Answers of the whole run, for the progress line; with a limit an estimate from the mean of a row."""
    if options.limit is None or options.limit >= checked.rows:
        return checked.answers
    return round(checked.answers * options.limit / checked.rows)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
