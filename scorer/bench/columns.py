"""A run's answers as arrays: what the measures need all of at once, 86 bytes an answer, whatever its texts are. Pure.

Sums and counts are kept as such; but a percentile, a curve over the surest answers and a rank test need every value.
Texts are kept as 64-bit hashes, by which answers are told apart: two of n are taken for one with a chance of n² / 2⁶⁵.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from scorer.bench.numbers import Answers
from scorer.bench.records import Record

__all__ = ["Columns", "Keys", "MeasureError", "asked"]

Array = np.ndarray[Any, Any]


class MeasureError(ValueError):
    """The records cannot be measured; the message names the file, row and field."""


class Keys:
    """Sees to it that no answer is there twice and that each expected label is an option: 8 bytes a record."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, record: Record) -> None:
        """Note a record. Raises MeasureError for an expected label that is none of its options."""
        self._hashes.append(hash(record.key))
        if record.expected is not None and record.expected not in record.probabilities:
            raise MeasureError(f"{_name(record)}: the expected label is none of its options")

    def check(self, records: Iterable[Record]) -> None:
        """Raise MeasureError if two records had one key. ``records`` are those that were added: they are walked again
        only to name the second one."""
        twice = repeated(np.asarray(self._hashes))
        seen = set()
        for record in records if twice else ():
            if hash(record.key) in twice:
                if record.key in seen:
                    raise MeasureError(f"{_name(record)}: answered twice in one run")
                seen.add(record.key)


class Columns:
    """The arrays, filled by :meth:`add` in the order in which the answers came; read as numpy's through the methods."""

    def __init__(self) -> None:
        self._top, self._expected, self._brier = array("d"), array("d"), array("d")
        self._correct, self._own, self._group = array("b"), array("b"), array("i")
        self._inference_ms, self._total_ms, self._tokens = array("d"), array("d"), array("d")
        self._question, self._call, self._asked = array("q"), array("q"), array("q")
        self._groups: dict[tuple[str, str | None, int, str], int] = {}

    def __len__(self) -> int:
        return len(self._top)

    def add(self, record: Record) -> None:
        """Append one answer, whose expected label is one of its options or None."""
        probabilities, wanted = record.probabilities, record.expected
        self._top.append(max(probabilities.values()))
        self._expected.append(0.0 if wanted is None else probabilities[wanted])
        self._brier.append(sum((p - (label == wanted)) ** 2 for label, p in probabilities.items()))
        self._correct.append(-1 if wanted is None else record.decision == wanted)
        self._own.append(record.ordering == 0)
        group = (record.type, record.family, len(record.labels), record.file)
        self._group.append(self._groups.setdefault(group, len(self._groups)))
        self._inference_ms.append(record.inference_ms)
        self._total_ms.append(record.total_ms)
        self._tokens.append(record.input_tokens)
        self._question.append(hash(record.key[:3]))
        self._call.append(hash((record.file, record.row, record.ordering, record.prompt_sha256)))
        self._asked.append(asked(record))

    @property
    def questions(self) -> int:
        """Different questions, in whatever orders they were asked."""
        return len(np.unique(np.asarray(self._question)))

    @property
    def own(self) -> Array:
        """Positions of the answers in ordering 0."""
        return np.flatnonzero(np.asarray(self._own))

    @property
    def labelled(self) -> Array:
        """Positions of the answers in ordering 0 that have a label."""
        return np.flatnonzero((np.asarray(self._own) == 1) & (self.correct >= 0))

    @property
    def top(self) -> Array:
        """The largest probability of each."""
        return np.asarray(self._top)

    @property
    def correct(self) -> Array:
        """1 right, 0 wrong, -1 without a label."""
        return np.asarray(self._correct)

    @property
    def inference_ms(self) -> Array:
        """The engine's time for the call of each."""
        return np.asarray(self._inference_ms)

    def answers(self) -> Answers:
        """The numbers of the labelled answers (:attr:`labelled`)."""
        which = self.labelled
        top, expected, brier = (np.asarray(one)[which] for one in (self._top, self._expected, self._brier))
        return Answers(top, expected, brier, self.correct[which] == 1)

    def groups(self, place: int) -> tuple[Array, list[Any]]:
        """The group of each answer as a number, and the groups' names by number; ``place`` 0 is the type, 1 the family
        (or None), 2 the number of options, 3 the file."""
        names = list(dict.fromkeys(group[place] for group in self._groups))
        number = np.array([names.index(group[place]) for group in self._groups], dtype=np.intp)
        return (number[np.asarray(self._group)] if len(self) else number), names

    def calls(self) -> dict[str, Array]:
        """``inference_ms``, ``total_ms`` and ``input_tokens`` of each call of the engine, as its last answer has them:
        the answers of one call share its time, which must count once."""
        _, last = np.unique(np.asarray(self._call)[::-1], return_index=True)
        which = np.sort(len(self) - 1 - last)
        named = {"inference_ms": self._inference_ms, "total_ms": self._total_ms, "input_tokens": self._tokens}
        return {name: np.asarray(values)[which] for name, values in named.items()}

    def repeated(self) -> set[int]:
        """What was :func:`asked` more than once."""
        return repeated(np.asarray(self._asked))


def asked(record: Record) -> int:
    """A hash of what was asked: the prompt, the field and the order of the options."""
    return hash((record.prompt_sha256, record.field, *map(record.labels.__getitem__, record.order)))


def repeated(hashes: Array) -> set[int]:
    """The values that occur more than once."""
    ordered = np.sort(hashes)
    return set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())


def _name(record: Record) -> str:
    return f"{record.file}: row {record.row}: field {record.field}: ordering {record.ordering}"
