"""Score a saved run again and say whether its numbers are still the engine's: bit-identical, within a tolerance, or
changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from scorer.bench import recording
from scorer.bench import run as runs
from scorer.bench.folder import RESULTS, FolderError, differences, manifest_of
from scorer.bench.index import Index
from scorer.bench.progress import Progress
from scorer.bench.records import Record, RecordError
from scorer.bench.rows import Checked, InputFile
from scorer.bench.run import Options
from scorer.bench.source import Answer, Source
from shared import jsonio

__all__ = ["CHANGED", "IDENTICAL", "WITHIN", "render", "replay"]

IDENTICAL, WITHIN, CHANGED = "bit-identical", "within the tolerance", "changed"

_WORST = 10


def replay(
    path: Path,
    files: Sequence[InputFile],
    checked: Checked,
    source: Source,
    *,
    tolerance: float = 0.0,
    limit: int | None = None,
) -> dict[str, Any]:
    """Ask ``source``, which is loaded here, what the run in ``path`` has answers to, over its own rows (``files``,
    which must hash as they did) and in its own calls. JSON-able.

    ``verdict`` is of all answers together: ``bit-identical`` if every probability and decision is the same, ``within
    the tolerance`` if no decision moved and no probability by more than ``tolerance``, else ``changed``; an answer that
    fails now is a change. ``largest`` is the greatest move of a probability; ``engine_differs`` names the pins that are
    not the run's. ``limit`` stops after so many answers. Raises FolderError and what :func:`scorer.bench.run.run` does.
    """
    manifest = manifest_of(path)
    if manifest is None:
        raise FolderError(f"{path} holds no run")
    if found := differences(manifest, {"data": checked.files}):
        raise FolderError(f"{path}: the rows are not those of the run; they differ in {', '.join(found)}")
    source.load()
    given = dict(manifest["options"])
    per_call = given.pop("per_call")
    options = Options(**{**given, "families": tuple(given["families"])})
    out: dict[str, Any] = {
        "verdict": IDENTICAL,
        "tolerance": tolerance,
        "answers": 0,
        "identical": 0,
        "within": 0,
        "changed": 0,
        "decisions_moved": 0,
        "failed": 0,
        "other_prompt": 0,
        "run_finished": manifest["status"] == "finished",
        "largest": 0.0,
        "worst": [],
        "engine_differs": differences(manifest, {"engine": source.pins}),
    }
    saved = Index()
    try:
        with (path / RESULTS).open("rb") as stream:
            _learn(stream, saved)
            total = len(saved) if limit is None else min(limit, len(saved))
            bar = Progress(total, what="answers replayed")
            try:
                _compare(runs.work(files, checked, options, per_call), source, stream, saved, total, out, bar)
            finally:
                bar.close()
    except OSError as error:
        raise FolderError(f"{path / RESULTS}: {error.strerror}") from None
    finally:
        saved.close()
    if out["changed"] or out["failed"] or not out["answers"]:
        out["verdict"] = CHANGED
    elif out["within"]:
        out["verdict"] = WITHIN
    return out


def _learn(stream: BinaryIO, saved: Index) -> None:
    """Where each answer lies in the file: an offset is all that is kept of it."""
    offset = 0
    for line in stream:
        if not line.endswith(b"\n"):
            return
        saved.add(_record(line).key, offset)
        offset += len(line)


def _compare(
    work: Any, source: Source, stream: BinaryIO, saved: Index, total: int, out: dict[str, Any], bar: Progress
) -> None:
    for row, calls in work:
        known = [
            call for call in calls if any((row.file, row.id, item.field, item.ordering) in saved for item in call.items)
        ]
        if not known:
            continue
        for call, answer in zip(known, source.ask(row.state, [one.questions for one in known]), strict=True):
            made: list[dict[str, Any]] = []
            if isinstance(answer, Answer):
                recording.records(row, call, answer, made)
            fresh = {record.key: record for record in map(Record.from_json, made)}
            for item in call.items:
                key = (row.file, row.id, item.field, item.ordering)
                place = saved.get(key)
                if place is None:
                    continue
                stream.seek(place)
                _judge(_record(stream.readline()), fresh.get(key), out)
                bar.step()
        if out["answers"] >= total:
            return


def _judge(then: Record, now: Record | None, out: dict[str, Any]) -> None:
    out["answers"] += 1
    if now is None:
        out["failed"] += 1
        return
    out["other_prompt"] += now.prompt_sha256 != then.prompt_sha256
    move = max(abs(now.probabilities[label] - then.probabilities[label]) for label in then.labels)
    moved = now.decision != then.decision
    out["decisions_moved"] += moved
    out["largest"] = max(out["largest"], move)
    if not move and not moved:
        out["identical"] += 1
        return
    out["changed" if moved or move > out["tolerance"] else "within"] += 1
    worst = out["worst"]
    worst.append(
        {
            "file": then.file,
            "row": then.row,
            "field": then.field,
            "ordering": then.ordering,
            "move": move,
            "decision_moved": moved,
        }
    )
    worst.sort(key=lambda one: (-one["decision_moved"], -one["move"]))
    del worst[_WORST:]


def _record(line: bytes) -> Record:
    try:
        return Record.from_json(jsonio.loads_ours(line))
    except (jsonio.InvalidJSON, RecordError) as error:
        raise FolderError(f"{RESULTS}: {error}") from None


def render(result: dict[str, Any]) -> str:
    """The result in a few lines: ids and labels only."""
    lines = [
        f"replay: {result['verdict']}",
        f"{result['answers']} answers: {result['identical']} bit-identical, {result['within']} within "
        f"{result['tolerance']:g}, {result['changed']} changed ({result['decisions_moved']} decisions moved), "
        f"{result['failed']} failed",
        f"largest move of a probability: {result['largest']:.3g}",
    ]
    if result["other_prompt"]:
        lines.append(f"{result['other_prompt']} prompts are not those of the run")
    if not result["run_finished"]:
        lines.append("the run is not finished: what it has no answers to was not compared")
    if result["engine_differs"]:
        lines.append(f"the engine is not the run's; it differs in {', '.join(result['engine_differs'])}")
    lines += [
        f"  {one['file']} {one['row']} {one['field']} ordering {one['ordering']}: {one['move']:.3g}"
        f"{', decision moved' if one['decision_moved'] else ''}"
        for one in result["worst"]
    ]
    return "\n".join(lines)
