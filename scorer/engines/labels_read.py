"""Forward passes of the ``labels`` engine: a prefix once, then the questions behind it, several in one batch.

Rows are padded on the right: under causal attention nothing that a row is read at can see the padding, so neither a
mask nor positions are passed and a row means what it means alone. A prefix is kept as keys and values; a read joins its
own behind them layer by layer and stores nothing, so that no read can change a prefix that others share.

Imports torch and transformers: to be imported once the process is offline.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from scorer.engines.base import NonFiniteForward
from scorer.engines.labels_request import CHUNK

__all__ = ["Prefix", "Reader", "Reading"]

# Not as statements: with one set of types or another, or with none, mypy has to say the same.
torch: Any = importlib.import_module("torch")
cache_utils: Any = importlib.import_module("transformers.cache_utils")


class Reading(NamedTuple):
    """One prompt read at its end: the logits of its labels (float32 values), how much probability they hold of the
    whole vocabulary, and whether the most probable token is one of them."""

    logits: list[float]
    label_mass: float
    argmax_is_label: bool


class Prefix(NamedTuple):
    """Keys and values of a prefix, each (1, heads, tokens, width), layer by layer."""

    layers: list[tuple[Any, Any]]

    @property
    def bytes(self) -> int:
        """Device memory that it takes."""
        return sum(part.nbytes for layer in self.layers for part in layer)


class _Grown(cache_utils.DynamicLayer):  # type: ignore[misc]
    """A cache layer that begins with a prefix's keys and values."""

    def __init__(self, keys: Any, values: Any) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True


class _Behind(_Grown):
    """One that gives them with a read's own behind them, but keeps only the prefix's."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Both joined, one row each for every row of the read."""
        rows = key_states.shape[0]
        return (
            torch.cat([self.keys.expand(rows, -1, -1, -1), key_states], dim=-2),
            torch.cat([self.values.expand(rows, -1, -1, -1), value_states], dim=-2),
        )


class Reader:
    """See the module's text. ``model`` is a causal LM in evaluation mode, wholly on ``device``.

    ``forwarded`` counts the tokens that went through it, padding included.
    """

    def __init__(self, model: Any, device: str) -> None:
        self.model, self._device = model, device
        self._ends: Any = None
        self.forwarded = 0
        head = model.get_output_embeddings()
        if head is not None:
            head.register_forward_pre_hook(self._at_the_ends)

    def can_share(self) -> bool:
        """Whether every layer of the model keeps plain keys and values. A sliding window or a state-space layer keeps a
        state that does not part at a token."""
        return all(
            type(layer) is cache_utils.DynamicLayer
            for layer in cache_utils.DynamicCache(config=self.model.config).layers
        )

    def prefix(self, ids: Sequence[int]) -> Prefix:
        """Forward a prefix of at least one token."""
        return self._behind(None, ids)

    def _behind(self, prefix: Prefix | None, ids: Sequence[int]) -> Prefix:
        """The prefix and ``ids`` behind it, forwarded in chunks."""
        cache = cache_utils.DynamicCache()
        if prefix is not None:
            # Joining makes new tensors, so the prefix's own stay as they are.
            cache.layers = [_Grown(*layer) for layer in prefix.layers]
        with torch.inference_mode():
            for start in range(0, len(ids), CHUNK):
                chunk = torch.tensor([ids[start : start + CHUNK]], device=self._device)
                self.forwarded += chunk.numel()
                self.model(input_ids=chunk, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return Prefix([(layer.keys, layer.values) for layer in cache.layers])

    def read(
        self, prefix: Prefix | None, rows: Sequence[Sequence[int]], labels: Sequence[Sequence[int]]
    ) -> list[Reading]:
        """Forward ``rows`` (token ids, behind the prefix if there is one) as one batch and read each at its end, at the
        ids of its ``labels``. Raises :class:`NonFiniteForward`."""
        if prefix is not None and len(rows) == 1 and len(rows[0]) > CHUNK:
            # A long question is taken as more prefix, all but its end.
            prefix, rows = self._behind(prefix, rows[0][:-CHUNK]), [rows[0][-CHUNK:]]
        with torch.inference_mode():
            at_end = self._forward(prefix, rows).float()
            most = max(map(len, labels))
            index = torch.tensor([[*own, *[own[0]] * (most - len(own))] for own in labels], device=self._device)
            picked = at_end.gather(1, index).tolist()
            whole = at_end.logsumexp(dim=-1).tolist()
            top = at_end.argmax(dim=-1).tolist()
        return [
            _reading(values[: len(own)], total, best in own)
            for values, total, best, own in zip(picked, whole, top, labels, strict=True)
        ]

    def _forward(self, prefix: Prefix | None, rows: Sequence[Sequence[int]]) -> Any:
        """Logits (rows, vocabulary) at the end of each row."""
        width = max(map(len, rows))
        # Token 0 is as good as any: nobody sees it.
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=self._device)
        self.forwarded += ids.numel()
        cache = None
        if prefix is not None:
            cache = cache_utils.DynamicCache()
            cache.layers = [_Behind(*layer) for layer in prefix.layers]
        ends = torch.tensor([len(row) - 1 for row in rows], device=self._device)
        every = torch.arange(len(rows), device=self._device)
        self._ends = (every, ends)
        try:
            logits = self.model(input_ids=ids, past_key_values=cache, use_cache=cache is not None).logits
        finally:
            self._ends = None
        # One position is left where the hook saw the head's input; a head that is called another way keeps them all.
        return logits[:, 0] if logits.shape[1] == 1 else logits[every, ends]

    def _at_the_ends(self, module: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Give the head the ends of the rows alone: the logits of every position would be the largest tensor of all."""
        if self._ends is None or not args:
            return None
        return (args[0][self._ends].unsqueeze(1), *args[1:])


def _reading(logits: list[float], total: float, argmax_is_label: bool) -> Reading:
    if not all(map(math.isfinite, [*logits, total])):
        raise NonFiniteForward("a logit is not finite")
    # The sum of float32 roundings may pass 1 by a hair.
    mass = min(1.0, math.fsum(math.exp(logit - total) for logit in logits))
    return Reading(logits, mass, argmax_is_label)
