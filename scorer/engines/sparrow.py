"""The embedded engine: ``sparrow-nano-general-v1.1``, a small real model inside the wheel of ``sparrow-decider``.

It takes no download and no GPU. The package silently cuts every text (state, instructions, an option) at 512 tokens and
reads the state anew for each question; here every text is read whole, up to MAX_TOKENS a call, the state once for all
questions, and what instructions and options alone decide is kept between requests. Up to 512 tokens the answers are the
package's own to 1e-6. What can be asked differs in three points:

    noul          its labels are ``no`` and ``yes``, though the texts the model reads begin "false" and "true" as in the
                  package; a side that is absent or null takes the package's default description (there, null is "")
    one option    or one level is answered with probability 1; the package refuses it
    score         criteria may be an object, whose keys are then the names of the levels; the package takes a list only

The inference thread alone calls it, loading and warm-up included, so it needs no lock.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sparrow_decider import NOUL_DEFAULT

from scorer.engines import sparrow_model
from scorer.engines.base import CallResult, NonFiniteForward, PreparedCall, Question, StartRefused, canonical_hashes
from scorer.engines.bounded_cache import BoundedCache
from scorer.engines.questions import Options, answer, check_questions, read_options
from scorer.engines.sparrow_model import (
    MODEL_NAME,
    MODEL_SHA256,
    PACKAGE_VERSION,
    Floats,
    Rows,
    SparrowModel,
    count,
)
from shared.jsonio import as_text
from shared.settings import ScorerSettings
from shared.wire import NO_TERMS, EngineInfo, Limits, Terms

__all__ = ["SparrowEngine"]

_MIB = 1 << 20
#: Characters of a text beyond which neither it nor its question is kept.
_LONGEST_KEPT = 4096
#: Options scored at once: more would gain little and, at 255 an option list, take memory.
_OPTIONS_AT_ONCE = 128
#: Names of a noul's options in the texts the model reads, in the order of the labels no and yes.
_NOUL_NAMES = ("false", "true")

_CANARY_STATE = "I was charged twice this month; please send the second payment back today. Order 4471-B, café."
_CANARY: dict[str, Question] = {
    "noul": {"type": "noul", "instructions": "Does the customer want money back?"},
    "choice": {
        "type": "choice",
        "instructions": "What is it about?",
        "criteria": {"billing": "charges and invoices", "bug": "something is broken", "other": None},
    },
    "score": {"type": "score", "instructions": "How urgent is it?", "criteria": ["can wait", "this week", "today"]},
}


class _Text:
    """A text's packed token ids and, once a call needs it, its pooled vector (D,)."""

    __slots__ = ("ids", "vector")

    def __init__(self, ids: bytes) -> None:
        self.ids = ids
        self.vector: Floats | None = None


class _Prompt:
    """A question as the model reads it: the texts of its instructions and options, and, once a call needs them, the
    rows made of their vectors, which replace them."""

    __slots__ = ("kind", "rows", "texts", "tokens")

    def __init__(self, kind: str, texts: list[_Text]) -> None:
        self.kind, self.texts = kind, texts
        self.tokens = sum(count(text.ids) for text in texts)
        self.rows: Rows | None = None


class _Asked(NamedTuple):
    options: Options
    prompt: _Prompt


class _Request:
    """The questions of a request, all its calls' in order, and the logits of those that are scored so far."""

    __slots__ = ("logits", "prompts", "text")

    def __init__(self, text: _Text) -> None:
        self.text = text
        self.prompts: list[_Prompt] = []
        self.logits: list[list[float]] = []


class SparrowEngine:
    """See the module's text."""

    def __init__(self, settings: ScorerSettings) -> None:
        self._limits = Limits(tokens=settings.max_tokens)
        self._model: SparrowModel
        # Callers' instructions and options live on as keys here, and their words in the model's word table: in memory
        # only, and within these bounds.
        self._texts: BoundedCache[str, _Text] = BoundedCache(8192, 16 * _MIB, _MIB)
        self._prompts: BoundedCache[tuple[str | tuple[str, ...], ...], _Prompt] = BoundedCache(2048, 32 * _MIB, _MIB)

    def load(self) -> None:
        """Load the pinned model and answer the canary, which must come out as the package answers it.

        Raises :class:`StartRefused`.
        """
        decider = sparrow_model.load()
        self._model = SparrowModel(decider)
        for name, probabilities in self.canary().items():
            expected = decider.probs(_CANARY_STATE, _CANARY[name])[3].tolist()
            if any(abs(ours - its) > 1e-6 for ours, its in zip(probabilities, expected, strict=True)):
                raise StartRefused(f"sparrow: warm-up {name}: expected {expected}, found {list(probabilities)}")

    def info(self) -> EngineInfo:
        """The model, its pins and its limits; after :meth:`load`."""
        return EngineInfo(
            engine="sparrow",
            name=MODEL_NAME,
            revision=MODEL_SHA256[:12],
            readout="mean-pooled static word-piece vectors of the state, the instructions and each option, compared by "
            "a small MLP (2.2 million parameters in all): no attention, no word order, no generated text; "
            "softmax over the supplied options; without a prompt text, prompt_sha256 hashes the call's "
            "canonical JSON",
            prompt_version=f"sparrow-decider-{PACKAGE_VERSION}/static-1",
            probability_status="temperature-scaled by the package for each question type and conditional on the "
            "supplied options; measured over-confident on yes/no and hard questions and "
            "under-confident on plain intents, so not to be taken as frequencies",
            default_profile="jev",
            description="sparrow-nano: a small general decision model on the CPU",
            release_date="2026-10-23",
            limits=self._limits,
            model={
                "source": f"pypi:sparrow-decider=={PACKAGE_VERSION}",
                "revision": MODEL_SHA256[:12],
                "model_sha256": MODEL_SHA256,
                "dtype": "int8 weights, float32 arithmetic",
                "device": "cpu",
                "numpy_version": np.__version__,
            },
            calibration=self._calibration(),
        )

    def prepare(
        self, state: Any, calls: Sequence[Mapping[str, Question]], terms: Terms = NO_TERMS
    ) -> list[PreparedCall]:
        """Check and tokenise every call; nothing is pooled yet. A call's tokens are those of the whole state and, for
        each question, of its instructions and of every option as the model reads it ("name description"). Raises
        ValueError.
        """
        request = _Request(_Text(self._model.encode(as_text(state))))
        state_tokens = count(request.text.ids)
        prepared = []
        for questions, digest in zip(calls, canonical_hashes(state, calls), strict=True):
            check_questions(questions, self._limits.questions)
            asked = {name: self._ask(question, terms.cache_salt) for name, question in questions.items()}
            tokens = state_tokens + sum(item.prompt.tokens for item in asked.values())
            if tokens > self._limits.tokens:
                raise ValueError(f"Example has {tokens} tokens, above {self._limits.tokens}; truncation is forbidden")
            prepared.append(PreparedCall(tokens, digest, (request, len(request.prompts), asked)))
            request.prompts += [item.prompt for item in asked.values()]
        return prepared

    def predict(self, call: PreparedCall) -> CallResult:
        """Score one call. The first of a request pools the state, the others find it pooled: ``cached_tokens`` says so.

        Small calls of one request are scored together, so the time of the first is the time of all. Raises
        :class:`NonFiniteForward`.
        """
        request, first, asked = call.payload
        text = request.text
        started = time.perf_counter()
        cached = 0 if text.vector is None else count(text.ids)
        if text.vector is None:
            text.vector = self._model.state(text.ids)
        while len(request.logits) < first + len(asked):
            self._score_some(request, text.vector)
        scored = {
            name: self._probabilities(item.prompt, request.logits[first + index])
            for index, (name, item) in enumerate(asked.items())
        }
        elapsed = time.perf_counter() - started
        answers = {name: answer(item.options, scored[name]) for name, item in asked.items()}
        return CallResult(
            {
                "answers": answers,
                "usage": {
                    "input_tokens": call.input_tokens,
                    "output_tokens": len(answers),
                    "decision_count": len(answers),
                },
                "timing": {"inference_ms": round(1000.0 * elapsed, 2)},
                "calibration": self._calibration(),
                "model": MODEL_NAME,
                "backend": "sparrow",
            },
            cached_tokens=cached,
        )

    def canary(self) -> dict[str, tuple[float, ...]]:
        """Probabilities of a small call with a question of each type, by field, whatever MAX_TOKENS is.

        Worked out anew: the caches are emptied first, so that no entry a fault has damaged outlives the canary.
        """
        self._texts.clear()
        self._prompts.clear()
        state = self._model.state(self._model.encode(_CANARY_STATE))
        prompts = {name: self._ask(question, "").prompt for name, question in _CANARY.items()}
        logits = self._model.logits(state, [self._rows(prompt) for prompt in prompts.values()])
        return {
            name: tuple(self._probabilities(prompt, own))
            for (name, prompt), own in zip(prompts.items(), logits, strict=True)
        }

    def release(self) -> None:
        """Nothing to do: a request's state and vectors belong to its prepared calls and go with them."""

    def memory(self) -> dict[str, int]:
        """Bytes of the caches."""
        return {
            "text_cache_bytes": self._texts.bytes,
            "question_cache_bytes": self._prompts.bytes,
            "word_cache_bytes": self._model.words.bytes,
        }

    def _calibration(self) -> dict[str, Any]:
        temperatures = self._model.temperatures
        return {
            "method": "temperature-scaling",
            "temperature": temperatures["choice"],
            "temperature_by_type": dict(temperatures),
        }

    def _ask(self, question: Question, salt: str) -> _Asked:
        score = isinstance(question, Mapping) and question.get("type") == "score"
        options = read_options(question, self._limits.levels if score else self._limits.options)
        names, descriptions = options.labels, options.descriptions
        if options.type == "noul":
            names = _NOUL_NAMES
            descriptions = tuple(
                NOUL_DEFAULT[name] if given is None else given for name, given in zip(names, descriptions, strict=True)
            )
        # The package strips a string and indents JSON; white space at an end or beside punctuation changes no token.
        instructions, told = as_text(question.get("instructions")), tuple(map(as_text, descriptions))
        # The salt first: what one caller's questions have made quick must not tell another that they were asked.
        key = (salt, options.type, instructions, names, told)
        prompt = self._prompts.get(key)
        if prompt is None:
            texts = [instructions, *(f"{name} {text}" for name, text in zip(names, told, strict=True))]
            prompt = _Prompt(options.type, [self._text(text, keep=not salt) for text in texts])
            if max(map(len, [salt, *texts])) <= _LONGEST_KEPT:
                size = sum(map(sys.getsizeof, [salt, instructions, *names, *told])) + self._model.rows_bytes(len(names))
                self._prompts.put(key, prompt, size)
        return _Asked(options, prompt)

    def _text(self, key: str, keep: bool) -> _Text:
        text = self._texts.get(key) if keep else None
        if text is None:
            text = _Text(self._model.encode(key))
            if keep and len(key) <= _LONGEST_KEPT:
                self._texts.put(key, text, sys.getsizeof(key) + sys.getsizeof(text.ids) + 4 * self._model.dim)
        return text

    def _score_some(self, request: _Request, state: Floats) -> None:
        """Score the request's next questions, up to about :data:`_OPTIONS_AT_ONCE` options."""
        batch: list[Rows] = []
        options = 0
        for prompt in request.prompts[len(request.logits) :]:
            batch.append(self._rows(prompt))
            options += len(batch[-1].options)
            if options >= _OPTIONS_AT_ONCE:
                break
        request.logits += self._model.logits(state, batch)

    def _rows(self, prompt: _Prompt) -> Rows:
        if prompt.rows is None:
            vectors = [self._pooled(text) for text in prompt.texts]
            prompt.rows = self._model.rows(prompt.kind, vectors[0], vectors[1:])
            prompt.texts = []
        return prompt.rows

    def _probabilities(self, prompt: _Prompt, logits: list[float]) -> list[float]:
        if not all(map(math.isfinite, logits)):
            raise NonFiniteForward("a logit is not finite")
        # In Python floats: they need no rounding to add up to 1, and no array is small enough to be faster.
        temperature, top = self._model.temperatures[prompt.kind], max(logits)
        weights = [math.exp((logit - top) / temperature) for logit in logits]
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    def _pooled(self, text: _Text) -> Floats:
        if text.vector is None:
            text.vector = self._model.pool(text.ids)
        return text.vector
