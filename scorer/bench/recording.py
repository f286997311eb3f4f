"""From answers to records in a run's folder: checked, counted and written in batches.

Beside an engine that takes microseconds the harness's own steps cost most when they come one at a time: between two
calls of a model its code and data have left the processor's caches. So what comes within a few milliseconds is taken
together.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from scorer.bench.answers import numbers
from scorer.bench.folder import RunFolder
from scorer.bench.forms import Row
from scorer.bench.plan import Call, Item
from scorer.bench.progress import Progress
from scorer.bench.source import Answer, Failure
from shared.answers import BrokenAnswer

__all__ = ["HELD_S", "Recorder", "records"]

#: Questions without a sound answer, and the rule.
Broken = list[tuple[Item, str]]

#: Seconds of work that a kill can cost. An engine whose calls take longer has every answer written as it comes.
HELD_S = 0.005


class Recorder:
    """Writes a run's answers into its folder. ``written`` counts records, ``failed`` the answers that did not come, by
    reason."""

    def __init__(self, folder: RunFolder, bar: Progress) -> None:
        self._folder, self._bar = folder, bar
        # Only a run that is continued can have some of a call's answers already.
        self._known = folder.done if len(folder.done) else None
        self._held: list[tuple[Row, Call, Answer | Failure]] = []
        self._due = 0.0
        self.written = 0
        self.failed: Counter[str] = Counter()

    def take(self, row: Row, call: Call, outcome: Answer | Failure) -> None:
        """One call's outcome. It is in the file, and safe from a kill, when this returns, except those of the last
        :data:`HELD_S` seconds."""
        self._held.append((row, call, outcome))
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Write what is held, whole calls at once."""
        # Taken first: a stop in the middle must not write anything twice.
        held, self._held = self._held, []
        found: list[dict[str, Any]] = []
        for row, call, outcome in held:
            if isinstance(outcome, Failure):
                self._fail(row, outcome.kind, [(item, outcome.message) for item in call.items])
            elif broken := records(row, call, outcome, found):
                self._fail(row, "broken_answer", broken)
        if (known := self._known) is not None:
            found = [one for one in found if (one["file"], one["row"], one["field"], one["ordering"]) not in known]
        if found:
            self._folder.write(found)
            self.written += len(found)
            self._bar.step(len(found))
        self._due = time.monotonic() + HELD_S

    def _fail(self, row: Row, reason: str, broken: Broken) -> None:
        for item, message in broken:
            entry = {"file": row.file, "row": row.id, "field": item.field, "ordering": item.ordering}
            self._folder.fail({**entry, "reason": reason, "message": message})
            self.failed[reason] += 1
            self._bar.step(1, failed=1)


def records(row: Row, call: Call, answer: Answer, out: list[dict[str, Any]]) -> Broken:
    """Append one call's answer to ``out``, as the JSON of its records (:meth:`scorer.bench.records.Record.to_json`);
    return the questions whose answer is broken, each with the rule.

    The JSON and not the record: making one takes as long as a third of all this, and most are only written.
    """
    broken: Broken = []
    row_id, file, family, _, questions, labels, expected = row
    given, tokens, prompt, inference_ms, total_ms = answer
    count = len(call.items)
    for item in call.items:
        field, name, ordering, order = item
        kind, own = questions[field]["type"], labels[field]
        try:
            probabilities, decision, score, confidence, top = numbers(given.get(name), kind, own)
        except BrokenAnswer as error:
            broken.append((item, str(error)))
            continue
        one: dict[str, Any] = {
            "row": row_id,
            "file": file,
            "field": field,
            "type": kind,
            "expected": expected[field],
            "ordering": ordering,
            "probabilities": probabilities,
            "decision": decision,
            "input_tokens": tokens,
            "prompt_sha256": prompt,
            "questions": count,
            "inference_ms": inference_ms,
            "total_ms": total_ms,
        }
        if family is not None:
            one["family"] = family
        if ordering:
            one["order"] = order
        if score is not None:
            one["score"] = score
        if confidence != top:
            one["confidence"] = confidence
        out.append(one)
    return broken
