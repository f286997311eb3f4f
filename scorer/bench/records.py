"""What a run writes and everything else reads: one record an answered question and ordering. Pure.

A run's folder holds ``run.json`` (the manifest: what was asked of which engine) and ``results.jsonl`` (a record a line,
in the order the answers came).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Record", "RecordError"]


class RecordError(ValueError):
    """A line of a results file is not a record; the message names the field."""


@dataclass(frozen=True)
class Record:
    """One answer to one question in one ordering of its options.

    ``row`` is the row's id, ``file`` the input file's name and ``field`` the question's name in the row. ``labels`` are
    the options in the row's own order (``no``, ``yes`` for a noul; ``"0"``... for a score); ``order`` is the order
    asked, as positions in ``labels``; ``ordering`` numbers it, 0 being the row's own. ``expected`` is the label, None
    where the row has none. ``probabilities`` maps label to probability; ``decision`` is the engine's chosen label;
    ``score`` its expected level (score questions only). ``input_tokens`` and ``prompt_sha256`` describe the call, which
    held ``questions`` questions;
    ``inference_ms`` is the engine's own time for the call, ``total_ms`` the harness's (both milliseconds).
    """

    row: str
    file: str
    field: str
    family: str | None
    type: str
    labels: tuple[str, ...]
    expected: str | None
    ordering: int
    order: tuple[int, ...]
    probabilities: Mapping[str, float]
    decision: str
    score: float | None
    confidence: float
    input_tokens: int
    prompt_sha256: str
    questions: int
    inference_ms: float
    total_ms: float

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What makes the record unique in a run: file, row, field, ordering."""
        return (self.file, self.row, self.field, self.ordering)

    @property
    def correct(self) -> bool | None:
        """Whether the decision is the expected label; None where the row has none."""
        return None if self.expected is None else self.decision == self.expected

    def to_json(self) -> dict[str, Any]:
        """As a JSON object. What follows from the rest is left out, since writing it is most of what an answer costs
        beside a fast engine: ``labels`` and ``order`` as the probabilities have them, no family, no score, a confidence
        that is the largest probability."""
        out = asdict(self)
        if self.labels == tuple(self.probabilities):
            del out["labels"]
        if self.order == tuple(range(len(self.labels))):
            del out["order"]
        if self.confidence == max(self.probabilities.values()):
            del out["confidence"]
        return {name: value for name, value in out.items() if value is not None or name not in ("family", "score")}

    @classmethod
    def from_json(cls, value: Any) -> Record:
        """From :meth:`to_json`'s object. Raises RecordError."""
        try:
            probabilities = value["probabilities"]
            labels = tuple(value.get("labels", probabilities))
            order = tuple(value.get("order", range(len(labels))))
            given = {"family": None, "score": None, "confidence": None, **value, "labels": labels, "order": order}
            if given["confidence"] is None:
                given["confidence"] = max(probabilities.values())
            record = cls(**given)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise RecordError(f"not a result record: {error}") from None
        if record.probabilities.keys() != set(labels) or record.decision not in record.probabilities:
            raise RecordError("not a result record: its options contradict each other")
        return record
