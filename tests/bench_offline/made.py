"""Records made for the tests of the measures: one by one from what matters, and whole runs of engines with a known
fault."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scorer.bench.records import Record

MANIFEST = {"engine": {"engine": "fake", "name": "fake", "revision": "0"}, "seed": 7, "orderings": "none"}
LABELS = ("red", "green", "blue")


def record(
    probabilities: Mapping[str, float],
    expected: str | None,
    *,
    decision: str | None = None,
    order: Sequence[int] | None = None,
    ordering: int = 0,
    **changes: Any,
) -> Record:
    labels = tuple(probabilities)
    chosen = decision or min(labels, key=lambda label: (-probabilities[label], label))
    fields: dict[str, Any] = {
        "row": "r1",
        "file": "rows.jsonl",
        "field": "decision",
        "family": "colour",
        "type": "choice",
        "labels": labels,
        "expected": expected,
        "ordering": ordering,
        "order": tuple(range(len(labels))) if order is None else tuple(order),
        "probabilities": dict(probabilities),
        "decision": chosen,
        "score": None,
        "confidence": probabilities[chosen],
        "input_tokens": 40,
        "prompt_sha256": "",
        "questions": 1,
        "inference_ms": 10.0,
        "total_ms": 11.0,
    }
    fields |= changes
    fields["prompt_sha256"] = fields["prompt_sha256"] or f"{fields['row']}/{fields['field']}/{ordering}"
    return Record(**fields)


def binary(sure: Sequence[float], right: Sequence[bool]) -> list[Record]:
    """Noul answers by largest probability and whether they are right."""
    return [
        record({"no": 1.0 - p, "yes": p}, "yes" if ok else "no", row=f"r{index}", type="noul")
        for index, (p, ok) in enumerate(zip(sure, right, strict=True))
    ]


def spread(first: float, labels: Sequence[str] = LABELS, chosen: int = 0) -> dict[str, float]:
    """``first`` for the label at ``chosen``, the rest shared."""
    rest = (1.0 - first) / (len(labels) - 1)
    return {label: first if index == chosen else rest for index, label in enumerate(labels)}


def engine(rows: int, sure: float, right: float, *, seed: int = 1, **changes: Any) -> list[Record]:
    """A run over three options: every answer is ``sure`` of its decision, and ``right`` of them are."""
    dice = random.Random(seed)
    out = []
    for index in range(rows):
        expected = dice.randrange(3)
        chosen = expected if dice.random() < right else (expected + dice.choice((1, 2))) % 3
        out.append(record(spread(sure, chosen=chosen), LABELS[expected], row=f"r{index:04}", **changes))
    return out


def position_biased(rows: int) -> Iterator[Record]:
    """Whatever is asked first wins, in the row's own order and in the reversed one."""
    for index in range(rows):
        for ordering, order in enumerate(((0, 1, 2), (2, 1, 0))):
            yield record(
                spread(0.7, chosen=order[0]), LABELS[index % 3], row=f"r{index:04}", ordering=ordering, order=order
            )


def drifting(rows: int) -> list[Record]:
    """Two families, one after the other as in a sorted file; within each, right and sure at first, then neither."""
    out = []
    for family in ("a", "b"):
        for index in range(rows):
            late = index >= rows // 2
            chosen = (index + (1 if late and index % 2 else 0)) % 3
            out.append(
                record(
                    spread(0.55 if late else 0.9, chosen=chosen),
                    LABELS[index % 3],
                    row=f"{family}{index:04}",
                    family=family,
                    inference_ms=20.0 if late else 10.0,
                )
            )
    return out
