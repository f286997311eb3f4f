"""The model of the ``sparrow`` engine: its file, its tokens and its arithmetic, without questions or caches of them.

The logits are the package's up to the rounding of float32. What of the first layer does not depend on the state is
worked out once a question, in float64, and kept (:class:`Rows`); over 3,000 random questions the logits were then off
exact arithmetic by 3.0e-7 in the mean, the package's own by 4.6e-7, and no probability differed from the package's by
more than 5.2e-7. No text is cut. Private names of the package are used, so :func:`load` insists on the one release they
were read in.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import sparrow_decider
from sparrow_decider.static import KINDS, StaticModel

from scorer.engines.base import StartRefused

__all__ = [
    "MODEL_NAME",
    "MODEL_SHA256",
    "PACKAGE_VERSION",
    "Floats",
    "Rows",
    "SparrowModel",
    "Words",
    "count",
    "load",
]

PACKAGE_VERSION = "0.2.0"
MODEL_NAME = "sparrow-nano-general-v1.1"
MODEL_SHA256 = "d1d3ee04cdfa58f325bb7f06b701df92bc29a3debea59743bf14a7a6215ef2e3"
MODEL_PATH = Path(sparrow_decider.__file__).parent / "models" / f"{MODEL_NAME}.sparrow"

Floats = npt.NDArray[np.float32]

#: Token ids travel as packed 16-bit numbers (the vocabulary has 16,384 entries): a text is then one join of its words'
#: ids, and numpy takes it without a copy. Lists cost 100 us more on 4 KB of text.
_ID = "H"
_ID_BYTES = array(_ID).itemsize

#: Options of a question up to which each is multiplied with the weights by itself.
_FEW_ROWS = 12

# Abramowitz and Stegun 7.1.26, as in the package: erf(z) = 1 - t P(t) exp(-z²) with t = 1/(1 + 0.3275911 z), z >= 0.
# Arrays, because a Python number is converted anew at each use, which takes as long as the arithmetic.
_ZERO, _ONE, _MINUS_HALF = (np.array(number, np.float32) for number in (0.0, 1.0, -0.5))
_SLOPE = np.array(0.3275911 / math.sqrt(2), np.float32)
_HALF_P = [
    np.array(number / 2, np.float32) for number in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
]

_LOWER = bytes(range(256)).lower()
_CONTROLS = bytes(code for code in [*range(32), 127] if code not in b"\t\n\r")
_ASCII_WORDS = re.compile(r"[a-z0-9]+|[^a-z0-9\s]")
# Not str.split: it would also split at control characters, which the package deletes, joining what is around them.
_PIECES = re.compile(r"[^ \t\n\r]+")


class Words(dict[str, bytes]):
    """Lower-case word to its packed WordPiece ids, worked out at the first use.

    Words of more than 100 characters are one ``[UNK]`` each, as in the package, and are not kept; at ``most`` words the
    table starts again from empty, so it stays under about 20 MB whatever callers send. It holds callers' words.
    """

    def __init__(self, tokenizer: Any, most: int = 32768) -> None:
        super().__init__()
        vocab: dict[str, int] = tokenizer.vocab
        self._starts = _prefixes({piece: number for piece, number in vocab.items() if not piece.startswith("##")})
        self._inner = _prefixes({piece[2:]: number for piece, number in vocab.items() if piece.startswith("##")})
        self._unknown = array(_ID, [tokenizer.unk_id]).tobytes()
        self._longest_word: int = tokenizer.max_chars
        self._most = most
        self.bytes = 0

    def __missing__(self, word: str) -> bytes:
        if len(word) > self._longest_word:
            return self._unknown
        if len(self) >= self._most:
            self.clear()
            self.bytes = 0
        ids = self[word] = self._word_piece(word)
        self.bytes += sys.getsizeof(word) + sys.getsizeof(ids)
        return ids

    def _word_piece(self, word: str) -> bytes:
        # Greedy longest match, as in the package, but growing each piece while some piece begins like that; the package
        # shrinks it from the whole rest of the word. 1 MiB of base64: 0.4 s for its 2.4; of 99-letter words 0.3 for 5.
        ids, start, pieces = array(_ID), 0, self._starts
        while start < len(word):
            number, stop = -1, start
            for end in range(start + 1, len(word) + 1):
                found = pieces.get(word[start:end])
                if found is None:
                    break
                if found >= 0:
                    number, stop = found, end
            if number < 0:
                return self._unknown
            ids.append(number)
            start, pieces = stop, self._inner
        return ids.tobytes()


def _prefixes(pieces: Mapping[str, int]) -> dict[str, int]:
    """Every beginning of every piece, with the piece's id, or -1 where it is not a piece itself."""
    prefixes = {piece[:end]: -1 for piece in pieces for end in range(1, len(piece))}
    return {**prefixes, **pieces}


class Rows(NamedTuple):
    """What a question and its ``n`` options give the model, whatever the state.

    ``fixed`` is (n, H), what the first layer adds up without the state, its bias included; ``options`` is (n, 2D), for
    each option o and q*o, to be multiplied with the state (q is the question's vector).
    """

    fixed: Floats
    options: Floats


class SparrowModel:
    """The package's static model, read from ``decider``."""

    def __init__(self, decider: Any) -> None:
        static = decider.static
        self._tokenizer = static.tok
        self.words = Words(static.tok)
        # Dequantised once (8 MB): row by row these are the numbers that the package works out at each look-up.
        self._table: Floats = static.emb[:]
        self._kinds: Floats = static.w["kind.weight"]
        self._first = _FirstLayer(static.w["mlp.0.weight"][:], static.w["mlp.0.bias"])
        self._later = [(static.w[f"mlp.{i}.weight"][:].T.copy(), static.w[f"mlp.{i}.bias"]) for i in (2, 4)]
        self.temperatures: dict[str, float] = {kind: float(static.cfg["temperature_by_kind"][kind]) for kind in KINDS}
        self.dim: int = self._table.shape[1]

    def encode(self, text: str) -> bytes:
        """The token ids of the whole text, packed (:func:`count` of them); equal to the package's for any text."""
        if text.isascii():
            return self._encode_ascii(text)
        # Lower-casing and decomposition look past a character, but never past a space, so the rare words that need the
        # package's slow path can be cut out of a text of plain ones.
        encoded = []
        for plain, group in groupby(_PIECES.findall(text), str.isascii):
            part = " ".join(group)
            encoded.append(self._encode_ascii(part) if plain else self._encode_any(part))
        return b"".join(encoded)

    def _encode_ascii(self, text: str) -> bytes:
        text = text.encode("ascii").translate(_LOWER, _CONTROLS).decode("ascii")
        return b"".join(map(self.words.__getitem__, _ASCII_WORDS.findall(text)))

    def _encode_any(self, text: str) -> bytes:
        words = self._tokenizer.pretokenize(self._tokenizer.normalize(text))
        return b"".join(map(self.words.__getitem__, words))

    def pool(self, ids: bytes) -> Floats:
        """The mean embedding, (D,), of packed token ids; that of ``[PAD]`` where there is none, as in the package."""
        rows = np.frombuffer(ids, np.uint16) if ids else np.zeros(1, np.uint16)
        # What numpy's mean does, without the third of its time that goes into deciding on it.
        mean: Floats = np.add.reduce(self._table.take(rows, axis=0), axis=0) / len(rows)
        return mean

    def state(self, ids: bytes) -> Floats:
        """The unit vector, (D,), of a state's packed token ids."""
        return _unit(self.pool(ids))

    def rows(self, kind: str, instructions: Floats, options: Sequence[Floats]) -> Rows:
        """Prepare a question of type ``kind`` from the pooled vectors, (D,), of its texts."""
        return self._first.rows(_unit(instructions + self._kinds[KINDS[kind]]), _unit(np.stack(options)))

    def rows_bytes(self, options: int) -> int:
        """Memory of :meth:`rows`' result, in bytes."""
        return 4 * options * sum(self._first.state.shape)

    def logits(self, state: Floats, questions: Sequence[Rows]) -> list[list[float]]:
        """One logit an option, before temperature, for each question.

        What is worked out for all questions at once works on single elements or single options, so no neighbour shows
        in the last bit.
        """
        ends = list(accumulate(len(rows.fixed) for rows in questions))
        spans = list(zip([0, *ends[:-1]], ends, strict=True))
        options, fixed = (
            np.concatenate(arrays) for arrays in zip(*((q.options, q.fixed) for q in questions), strict=True)
        )
        hidden = _times(options * np.concatenate([state, state]), self._first.state, spans) + fixed
        for matrix, bias in self._later:
            hidden = _times(_gelu(hidden), matrix, spans) + bias
        column: list[float] = hidden[:, 0].tolist()
        return [column[start:end] for start, end in spans]


def _times(rows: Floats, matrix: Floats, spans: Sequence[tuple[int, int]]) -> Floats:
    """``rows @ matrix``, with the bits that each of the ``spans`` gets alone.

    The last bits of a product depend on the shapes of the matrices, so the rows of two questions cannot share one. A
    stack of single rows is multiplied row by row, which takes half the time of a product for each question: a product
    begins by copying its whole matrix into another order. From about a dozen rows on, that pays.
    """
    if max(end - start for start, end in spans) <= _FEW_ROWS:
        return _one_by_one(rows, matrix)
    own = [rows[start:end] for start, end in spans]
    return np.concatenate([some @ matrix if len(some) > _FEW_ROWS else _one_by_one(some, matrix) for some in own])


def _one_by_one(rows: Floats, matrix: Floats) -> Floats:
    return (rows[:, np.newaxis] @ matrix)[:, 0]


def _gelu(x: Floats) -> Floats:
    """The package's ``gelu``, x/2 (1 + erf(x/√2)), as max(x, 0) - |x| t P(t)/2 exp(-x²/2): the same by its formula for
    erf, in fewer and cheaper steps, which is what counts for the few numbers of a question."""
    size = np.abs(x)
    t = size * _SLOPE
    t += _ONE
    np.divide(_ONE, t, out=t)
    tail = t * _HALF_P[0]
    for number in _HALF_P[1:]:
        tail += number
        tail *= t
    fall = x * x
    fall *= _MINUS_HALF
    tail *= np.exp(fall, out=fall)
    tail *= size
    result: Floats = np.maximum(x, _ZERO)
    result -= tail
    return result


class _FirstLayer:
    """The first layer, taken apart by what depends on the state.

    An option's features are o, s*o, q*o, s*q*o, o - m and (s - m)*o: s is the state, q the question, m the mean of the
    options, all of them unit vectors or means of such. So with the layer's six blocks W1 to W6 it adds up
    o W1 + (q*o) W3 + (o - m) W5 - (m*o) W6, the same for every state, and (s*o)(W2 + W6) + (s*q*o) W4: a third of the
    numbers to read for each question of a request, and it is the reading that takes the time.
    """

    def __init__(self, weight: Floats, bias: Floats) -> None:
        """``weight`` is (H, 6D), ``bias`` (H,); ``state`` is then (2D, H), what s*o and s*q*o are multiplied with."""
        blocks = np.split(weight.T.astype(np.float64), 6)
        self._fixed = [blocks[0], blocks[2], blocks[4], -blocks[5]]
        self._bias = bias
        self.state: Floats = np.concatenate([blocks[1] + blocks[5], blocks[3]]).astype(np.float32)

    def rows(self, question: Floats, options: Floats) -> Rows:
        """Of a question's vector, (D,), and those of its options, (n, D)."""
        exact = options.astype(np.float64)
        mean = exact.mean(0)
        parts = (exact, question * exact, exact - mean, mean * exact)
        fixed = sum(part @ block for part, block in zip(parts, self._fixed, strict=True)) + self._bias
        return Rows(fixed.astype(np.float32), np.concatenate([options, question * options], axis=1))


def count(ids: bytes) -> int:
    """Tokens in packed ids."""
    return len(ids) // _ID_BYTES


def load(path: Path = MODEL_PATH) -> Any:
    """The package's ``Decider`` on its bundled model, wherever ``SPARROW_MODELS`` points.

    Raises :class:`StartRefused` unless the package is the pinned release and the loaded bytes have the pinned hash.
    """
    if sparrow_decider.__version__ != PACKAGE_VERSION:
        raise StartRefused(f"sparrow-decider: expected {PACKAGE_VERSION}, found {sparrow_decider.__version__}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StartRefused(f"{path}: expected the model file, found: {error.strerror}") from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != MODEL_SHA256:
        raise StartRefused(f"{path}: expected sha256 {MODEL_SHA256}, found {digest}")
    # The package loads by path only; a file in memory makes it load the very bytes that were hashed.
    descriptor = os.memfd_create(MODEL_NAME)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        return sparrow_decider.Decider.load(f"/proc/self/fd/{descriptor}")


def _unit(vectors: Floats) -> Floats:
    unit: Floats = StaticModel._n(vectors)
    return unit
