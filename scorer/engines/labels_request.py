"""The questions of one request of the ``labels`` engine, as token ids, and in which batches they are read. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CHUNK", "LABELS_A_READ", "Read", "Request", "batches"]

#: Labels of one read, as vLLM takes no more in one request (contract/granite-switch-decision.md, C15, C16). Here one
#: forward gives every logit, so a further read of the same prompt costs nothing. It is counted all the same, so that
#: usage means what it means there, and all its tokens count as cached.
LABELS_A_READ = 128
#: Tokens of a prefix, or of one question, that are forwarded at once. Granite Switch makes two float32 masks of as many
#: rows as tokens: 16,384 at once took 3.2 GB on a tiny model.
CHUNK = 2048


@dataclass
class Read:
    """One question. ``ids`` follow the request's shared ones; ``labels`` are the ids of its options' labels; ``tokens``
    counts the whole prompt; ``reading`` is None until it is scored."""

    ids: Sequence[int]
    labels: Sequence[int]
    tokens: int
    reading: Any = None

    @property
    def times(self) -> int:
        """Reads that the question counts as."""
        return -(-len(self.labels) // LABELS_A_READ)


@dataclass
class Request:
    """``shared`` begins every prompt; ``salt`` parts what requests may share. ``batch_of`` gives, for the index of each
    question, the indices that are read with it. ``prefix`` holds the keys and values of ``shared`` once they are there;
    ``cached`` says that the next answer's shared tokens were read before: by an earlier request or for an earlier
    answer."""

    shared: Sequence[int]
    salt: str
    reads: list[Read]
    batch_of: dict[int, list[int]] = field(default_factory=dict)
    prefix: Any = None
    cached: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of the request, the shared ones once."""
        return len(self.shared) + sum(len(read.ids) for read in self.reads)

    def part(self, sharing: bool, budget: int) -> None:
        """Part the questions into batches, each read behind the shared prefix or, without ``sharing``, whole."""
        lengths = [len(read.ids) if sharing else read.tokens for read in self.reads]
        plan = batches(lengths, len(self.shared) if sharing else 0, budget)
        self.batch_of = {index: batch for batch in plan for index in batch}


def batches(lengths: Sequence[int], shared: int, budget: int) -> list[list[int]]:
    """Indices of ``lengths`` (tokens behind the ``shared`` ones), parted into batches.

    A batch takes rows times (``shared`` + its longest) up to ``budget``, and at least one row. Rows of like length come
    together, the longest at most half as long again as the shortest, so that padding stays small. The parting depends
    on nothing but the arguments: a request that is repeated is read alike.
    """
    out: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        batch = out[-1] if out else []
        # A row that is read in chunks is read alone.
        fits = (len(batch) + 1) * (shared + lengths[index]) <= budget and lengths[index] <= CHUNK
        if batch and fits and 2 * lengths[index] <= 3 * lengths[batch[0]]:
            batch.append(index)
        else:
            out.append([index])
    return out
