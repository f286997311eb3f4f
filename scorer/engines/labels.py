"""Any causal LM with a chat template, read once a question at its single-token option labels; Granite Switch included.

A question's prompt is rendered (:mod:`scorer.engines.labels_prompt`), read at its end, and answered by the softmax over
the float32 logits of its labels alone. What all prompts of a request begin with, the state above all, is forwarded
once, and its keys and values are kept for later requests too, within a bound and apart for each ``cache_salt``: so a
state stays in memory after its request.

Usage counts every prompt in full, once for each 128 options; what was not forwarded again counts as cached.
"""

from __future__ import annotations

import logging
import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from scorer.engines import labels_adapter, labels_model
from scorer.engines.base import CallResult, PreparedCall, Question, StartRefused
from scorer.engines.bounded_cache import BoundedCache
from scorer.engines.labels_chat import Chat
from scorer.engines.labels_describe import CALIBRATION, QUESTION_TOKENS, REQUEST_TOKENS, describe
from scorer.engines.labels_prompt import breakable
from scorer.engines.labels_prompts import Prompts
from scorer.engines.labels_request import Read, Request
from scorer.engines.questions import Options, answer
from scorer.engines.torch_failures import shielded
from scorer.engines.torch_memory import DeviceMemory
from scorer.engines.torch_start import check_device, check_placement, go_offline, import_torch, starting
from shared.setting import PREFIX
from shared.settings import ScorerSettings
from shared.wire import NO_TERMS, EngineInfo, Limits, Terms

__all__ = ["LabelsEngine"]

_log = logging.getLogger("scorer.labels")

T = TypeVar("T")

_MIB = 1 << 20

_CANARY_STATE = "The pump stopped twice during the night shift and was restarted by hand."
_CANARY: tuple[Mapping[str, Question], ...] = (
    {"q": {"type": "noul", "instructions": "Did it stop?"}},
    {"q": {"type": "choice", "instructions": "What is it about?", "criteria": {"pump": "The pump", "valve": None}}},
    {"q": {"type": "score", "instructions": "How urgent is it?", "criteria": ["some day", "today"]}},
)

#: How far the logits of a prompt that is read behind its prefix may be from those of the whole prompt, as a share of
#: the greatest logit: rounding of float32 stays far below the one, rounding of 16-bit numbers below the other.
_TOLERANCE, _TOLERANCE_16_BIT = 1e-3, 0.1

_BLAMED: dict[type[Exception], str] = {
    RecursionError: "The request is nested too deeply.",
}


class _Memory(DeviceMemory):
    """Device memory that after a failure gives up the prefixes too: nothing that a fault has damaged may outlive it."""

    def __init__(self, cuda: Any | None, slack_mib: int, prefixes: BoundedCache[Any, Any]) -> None:
        super().__init__(cuda, slack_mib)
        self._prefixes = prefixes

    def release(self) -> None:
        """Forget the prefixes and give back everything that is free."""
        self._prefixes.clear()
        super().release()


class LabelsEngine:
    """See the module's text. ``share=False`` reads every prompt whole: the reference of the tests and the benchmark."""

    def __init__(self, settings: ScorerSettings, *, share: bool = True) -> None:
        self._settings = settings
        self._share = share
        total = settings.labels_cache_mib * _MIB
        self._prefixes: BoundedCache[tuple[str, bytes], Any] = BoundedCache(1 << 20, total, total)
        self._memory = _Memory(None, 0, self._prefixes)
        self._torch: Any = None
        self._prompts: Prompts
        #: The forward passes (:class:`scorer.engines.labels_read.Reader`), after :meth:`load`.
        self.reader: Any = None
        self._sharing = False
        self._info: EngineInfo | None = None

    def load(self) -> None:
        """Load the model, check that prompts, labels and adapter are what they must be, and warm up.

        Raises StartRefused, naming the setting or the file, and FatalEngineError when the device fails in a way that a
        restart may cure.
        """
        settings, started = self._settings, time.monotonic()
        marker = settings.labels_marker or ""
        if marker and not breakable(marker):
            raise StartRefused(f"{PREFIX}LABELS_MARKER={marker}: it could not be broken where a caller's text has it")
        renderer = labels_model.load_renderer(settings.labels_renderer)
        system = labels_model.read_system_prompt(settings.labels_system_prompt_file)
        go_offline()
        torch = self._torch = import_torch("labels")
        device = settings.device
        device_name = check_device(torch, device)
        self._memory = _Memory(torch.cuda if device == "cuda" else None, settings.release_slack_mib, self._prefixes)
        if settings.vram_cap_gib is not None:
            self._memory.cap(settings.vram_cap_gib)
        dtype = settings.labels_dtype
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        loaded = labels_model.load(settings.checkpoint, dtype)
        adapter = labels_adapter.choose_adapter(loaded.config, settings.labels_adapter, marker)
        chat = Chat(loaded.tokenizer, system, **({"adapter_name": adapter} if adapter else {}))
        prompts = self._prompts = self._starting("rendering a prompt", lambda: Prompts(chat, renderer, marker))
        if len(prompts.letters) < 2:
            raise StartRefused(f"{PREFIX}CHECKPOINT: of the labels A, B, ... fewer than two are one token of the model")
        if adapter:
            ids = chat.ids(prompts.probe)
            labels_adapter.check_activation(loaded.config, adapter, marker, ids, prompts.before_question)
        model = self._starting("moving the model to its device", lambda: loaded.model.to(device))
        check_placement(model, device)
        # Only now: it imports torch and transformers, which have to find the process offline.
        from scorer.engines.labels_read import Reader

        self.reader = Reader(model, device)
        self._starting("checking how prompts share a beginning", lambda: self._check_sharing(dtype))
        self._info = describe(
            settings,
            loaded.config,
            letters=len(prompts.letters),
            torch_version=str(torch.__version__),
            architecture=type(model).__name__,
            adapter=adapter,
            dtype=dtype,
            device=device_name,
            sharing=self._sharing,
        )
        self._starting("scoring the warm-up", self.canary)
        self._memory.settle()
        fields = {**self._info.model, "seconds": round(time.monotonic() - started, 2)}
        _log.info("labels engine loaded", extra={"fields": fields})

    def info(self) -> EngineInfo:
        """The model, how it is read, and the limits; valid after :meth:`load`."""
        if self._info is None:
            raise RuntimeError("info() before load()")
        return self._info

    def prepare(
        self, state: Any, calls: Sequence[Mapping[str, Question]], terms: Terms = NO_TERMS
    ) -> list[PreparedCall]:
        """Check, render, tokenise and count every question. Raises ValueError as
        :meth:`scorer.engines.labels_prompts.Prompts.request` says."""
        limits = self.info().limits
        most = limits.long_request_tokens if terms.long_context else limits.request_tokens
        return shielded(lambda: self._prepare(state, calls, terms.cache_salt, limits, most or 0), None, blamed=_BLAMED)

    def predict(self, call: PreparedCall) -> CallResult:
        """Answer the questions of one call, each by a read of its own; the first call of a batch reads all of it.

        Raises as :func:`scorer.engines.torch_failures.fresh` says, with the failed read's memory given back.
        """
        return shielded(lambda: self._predict(call), self._memory, self._torch.OutOfMemoryError)

    def canary(self) -> tuple[tuple[float, ...], ...]:
        """The label logits of a small request, read from an empty cache, whatever the settings limit."""
        self._prefixes.clear()
        calls = self._warm_up()
        for call in calls:
            self._predict(call)
        self._prefixes.clear()
        return tuple(tuple(read.reading.logits) for read in calls[0].payload[0].reads)

    def release(self) -> None:
        """Give memory back if a request left more than the slack behind; the kept prefixes are no leavings."""
        self._memory.trim(self._prefixes.bytes)

    def memory(self) -> dict[str, int]:
        """The allocator's counters on CUDA, and the size of the kept prefixes, in bytes."""
        return {**self._memory.counters(), "prefix_cache_bytes": self._prefixes.bytes}

    def _starting(self, what: str, work: Callable[[], T]) -> T:
        return starting(self._torch, self._settings.vram_cap_gib, what, work)

    def _warm_up(self) -> list[PreparedCall]:
        return self._prepare(_CANARY_STATE, _CANARY, "", Limits(tokens=QUESTION_TOKENS), REQUEST_TOKENS)

    def _prepare(
        self, state: Any, calls: Sequence[Mapping[str, Question]], salt: str, limits: Limits, most: int
    ) -> list[PreparedCall]:
        prepared = self._prompts.request(state, calls, salt, limits, most)
        request: Request = prepared[0].payload[0]
        request.part(self._sharing, self._settings.labels_batch_tokens)
        return prepared

    def _predict(self, call: PreparedCall) -> CallResult:
        request, first, asked = call.payload
        started = time.perf_counter()
        cached, answers = 0, {}
        for index, (name, options) in enumerate(asked.items(), first):
            read = request.reads[index]
            if read.reading is None:
                self._score(request, request.batch_of[index])
            if self._sharing:
                cached += len(request.shared) if request.cached else 0
                request.cached = True
            cached += (read.times - 1) * read.tokens
            answers[name] = _answer(options, read)
        elapsed = time.perf_counter() - started
        info = self.info()
        return CallResult(
            {
                "answers": answers,
                "usage": {
                    "input_tokens": call.input_tokens,
                    "output_tokens": 0,
                    "decision_count": len(answers),
                },
                "timing": {"inference_ms": round(1000.0 * elapsed, 2)},
                "calibration": dict(CALIBRATION),
                "model": info.name,
                "backend": info.engine,
            },
            cached_tokens=cached,
        )

    def _score(self, request: Request, batch: Sequence[int]) -> None:
        """Read a batch; the first of a request finds or forwards the prefix."""
        reads = [request.reads[index] for index in batch]
        labels = [read.labels for read in reads]
        try:
            if not self._sharing:
                readings = self.reader.read(None, [[*request.shared, *read.ids] for read in reads], labels)
            else:
                if request.prefix is None:
                    request.prefix = self._prefix(request)
                readings = self.reader.read(request.prefix, [read.ids for read in reads], labels)
        except BaseException:
            request.prefix = None  # the memory has to come back before the failure is told
            raise
        for read, reading in zip(reads, readings, strict=True):
            read.reading = reading

    def _prefix(self, request: Request) -> Any:
        key = (request.salt, array("I", request.shared).tobytes())
        prefix = self._prefixes.get(key)
        request.cached = prefix is not None
        if prefix is None:
            prefix = self.reader.prefix(request.shared)
            self._prefixes.put(key, prefix, prefix.bytes + len(key[1]))
        return prefix

    def _check_sharing(self, dtype: str) -> None:
        """Whether a prompt may be read behind its prefix: the model's layers must be of a kind that can, and the logits
        must come out the same. Otherwise every prompt is read whole."""
        request = self._warm_up()[0].payload[0]
        labels = [read.labels for read in request.reads]
        if self._share and request.shared and self.reader.can_share():
            behind = self.reader.read(self.reader.prefix(request.shared), [read.ids for read in request.reads], labels)
            whole = [self.reader.read(None, [[*request.shared, *read.ids]], [read.labels])[0] for read in request.reads]
            ours = [logit for reading in behind for logit in reading.logits]
            theirs = [logit for reading in whole for logit in reading.logits]
            bound = max(1.0, *map(abs, theirs)) * (_TOLERANCE if dtype == "float32" else _TOLERANCE_16_BIT)
            self._sharing = max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) <= bound
        if self._share and not self._sharing:
            _log.warning("prompts of this model cannot share a beginning, so each is read whole")


def _answer(options: Options, read: Read) -> dict[str, Any]:
    """The answer object, with the two diagnostics of contract/granite-switch-decision.md beside it."""
    reading = read.reading
    top = max(reading.logits)
    # In Python floats: they need no rounding to add up to 1.
    weights = [math.exp(logit - top) for logit in reading.logits]
    total = math.fsum(weights)
    return {
        **answer(options, [weight / total for weight in weights]),
        "label_mass": reading.label_mass,
        "argmax_is_label": reading.argmax_is_label,
    }
