"""Intern-Decision through the checkpoint's own ``inference.py``, fail-closed (contract, INV-1 to INV-8).

Neither the prompt nor the readout is re-implemented here. Of the file, only the interface of engine/intern-decision.md
§6.2 is touched: ``DecisionEngine``, its ``predict``, ``tokenizer`` and ``backend``, and the functions
``validate_request`` and ``compile_row``, so that the pinned file and the tiny one of :mod:`scorer.engines.intern_tiny`
both fit.

Known limit: the pinned file lets control tokens of the chat format (``<|im_end|>`` and the like) that stand in a
caller's text through to the model as such. Its bench numbers were made so, and the contract wants them untouched
(trouble.md rank 23).
"""

from __future__ import annotations

import hashlib
import logging
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, TypeVar

from scorer.engines.base import CallResult, PreparedCall, Question, StartRefused
from scorer.engines.intern_checkpoint import check_path, choose_pin, read_source, run
from scorer.engines.intern_kernels import kernels_in_use, module_of
from scorer.engines.intern_vision import drop_vision
from scorer.engines.torch_failures import shielded
from scorer.engines.torch_memory import DeviceMemory
from scorer.engines.torch_start import check_device, check_placement, go_offline, import_torch, starting
from shared import jsonio
from shared.pins import INTERN_DECISION_4B, Pin
from shared.settings import PREFIX, ScorerSettings
from shared.wire import NO_TERMS, EngineInfo, Limits, Terms

__all__ = ["InternEngine"]

_log = logging.getLogger("scorer.intern")

T = TypeVar("T")

#: The keyword arguments of ``apply_chat_template`` in the pinned file's ``HFBackend.encode`` (INV-8).
_TEMPLATE = {"tokenize": False, "add_generation_prompt": False, "enable_thinking": False, "add_vision_id": True}

#: What the pinned file takes in one question and in one call (engine/intern-decision.md §1.4).
_MAX_OPTIONS = 62
_MAX_QUESTIONS = 16

#: The warm-up and canary: one call with a question of each type.
_WARM_UP: tuple[Any, Mapping[str, Question]] = (
    {"report": "The pump stopped twice during the night shift and was restarted by hand."},
    {
        "part": {
            "type": "choice",
            "instructions": "Which part is the report about?",
            "criteria": {"pump": "The pump", "valve": "A valve", "other": "Something else"},
        },
        "stopped": {"type": "noul", "instructions": "Did the part stop?"},
        "urgency": {
            "type": "score",
            "instructions": "How soon must somebody look at it?",
            "criteria": ["some day", "this week", "today"],
        },
    },
)

# What validation and rendering raise for values that JSON has no word for, or that have no UTF-8 form.
_BLAMED = {
    TypeError: "The request holds a value of a type that the engine does not take.",
    RecursionError: "The request is nested too deeply.",
}


class InternEngine:
    """See the module's text. ``dtype`` is another one than the pinned file's default in tests only."""

    def __init__(self, settings: ScorerSettings, *, dtype: str = "bfloat16") -> None:
        self._settings = settings
        self._dtype = dtype
        self._torch: Any = None
        self._module: Any = None
        self._decider: Any = None  # the file's DecisionEngine
        self._memory = DeviceMemory(None, 0)
        self._info: EngineInfo | None = None

    def load(self) -> None:
        """Check, load, warm up, drop the vision tower. Raises StartRefused, naming the setting or the file, for
        anything that is not as pinned, and FatalEngineError when the device fails in a way that a restart may cure."""
        settings, started = self._settings, time.monotonic()
        pin = choose_pin(settings.pins_file)
        checkpoint = check_path(settings.checkpoint, pin)
        source = read_source(checkpoint, pin)
        go_offline()
        torch = self._torch = import_torch("intern")
        device_name = check_device(torch, settings.device)
        self._memory = DeviceMemory(torch.cuda if settings.device == "cuda" else None, settings.release_slack_mib)
        if settings.vram_cap_gib is not None:
            self._memory.cap(settings.vram_cap_gib)
        module = self._module = run(source)
        name = module.MODEL_NAME
        if name != pin.name:
            raise StartRefused(f"{source.path}: expected MODEL_NAME {pin.name}, found {name}")
        self._decider = self._starting(
            f"loading {checkpoint}",
            lambda: module.DecisionEngine(
                str(checkpoint), device=settings.device, dtype=self._dtype, max_length=settings.max_tokens
            ),
        )
        check_placement(self._decider.backend.model, settings.device)
        kernels = self._check_kernels()
        answer = self._warm_up()
        self._memory.settle()
        self._info = self._describe(pin, device_name, kernels, answer)
        _log.info(
            "intern engine loaded",
            extra={
                "fields": {
                    **self._info.model,
                    **self._memory.counters(),
                    "seconds": round(time.monotonic() - started, 2),
                }
            },
        )

    def info(self) -> EngineInfo:
        """The pins, the stack and the limits; valid after :meth:`load`."""
        if self._info is None:
            raise RuntimeError("info() before load()")
        return self._info

    def prepare(
        self, state: Any, calls: Sequence[Mapping[str, Question]], terms: Terms = NO_TERMS
    ) -> list[PreparedCall]:
        """Validate, render, hash and count every call, with the file's own functions and without any forward (INV-8).

        Raises ValueError with the file's own message for a call that it would refuse, one over MAX_TOKENS included. The
        payload of a prepared call is the request object that ``predict`` of the file takes.
        """
        requests = [{"state": state, "questions": call} for call in calls]
        return shielded(lambda: [self._prepare(request) for request in requests], None, blamed=_BLAMED)

    def predict(self, call: PreparedCall) -> CallResult:
        """The file's own ``predict`` on the prepared request; its object is passed on untouched (INV-1).

        Raises as :func:`scorer.engines.torch_failures.fresh` says: always unchained, and with the failed call's memory
        given back.
        """
        return CallResult(shielded(lambda: self._predict(call), self._memory, self._torch.OutOfMemoryError))

    def canary(self) -> bytes:
        """The warm-up's answers and token counts as JSON bytes: floats are written so that equal bytes mean equal
        bits."""
        return _fingerprint(self.predict(self._prepare_warm_up()).answer)

    def release(self) -> None:
        """Give memory back if more than the slack is held above the baseline (INV-4)."""
        self._memory.trim()

    def memory(self) -> dict[str, int]:
        """The allocator's counters in bytes; none on a CPU."""
        return self._memory.counters()

    def _prepare_warm_up(self) -> PreparedCall:
        state, questions = _WARM_UP
        return self._prepare({"state": state, "questions": questions})

    def _prepare(self, request: dict[str, Any]) -> PreparedCall:
        compiled = self._module.compile_row(self._module.validate_request(request))
        backend, tokenizer = self._decider.backend, self._decider.tokenizer
        text = tokenizer.apply_chat_template(compiled.messages, **_TEMPLATE)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        # The two checks of the file's encode(), with its messages, here for all calls before the first forward.
        if len(ids) > backend.max_length:
            raise ValueError(f"Example has {len(ids)} tokens, above {backend.max_length}; truncation is forbidden")
        if ids.count(backend.marker_id) != len(compiled.fields):
            raise ValueError("Decision marker count or position mismatch")
        return PreparedCall(len(ids), hashlib.sha256(text.encode()).hexdigest(), request)

    def _predict(self, call: PreparedCall) -> dict[str, Any]:
        answer: dict[str, Any] = self._decider.predict(call.payload)
        self._memory.trim()
        return answer

    def _starting(self, what: str, work: Callable[[], T]) -> T:
        return starting(self._torch, self._settings.vram_cap_gib, what, work)

    def _check_kernels(self) -> dict[str, bool]:
        kernels = kernels_in_use(module_of(self._decider.backend.model))
        missing = [name for name, used in kernels.items() if not used]
        if missing and self._settings.device == "cuda":
            if not self._settings.allow_slow_kernels:
                raise StartRefused(
                    f"not in use: {', '.join(missing)}; the model would run on slow reference code. Install them "
                    f"(pip install 'intern-decision-serve[cuda]') or set {PREFIX}ALLOW_SLOW_KERNELS=1"
                )
            _log.warning("slow kernels", extra={"fields": {"missing": missing}})
        return kernels

    def _warm_up(self) -> dict[str, Any]:
        """Score the warm-up; prove INV-8 on it; drop the vision tower and prove INV-7 on it. Returns its answer."""
        prepared = self._starting(
            f"rendering the warm-up at {PREFIX}MAX_TOKENS={self._settings.max_tokens}", self._prepare_warm_up
        )
        answer = self._starting("scoring the warm-up", lambda: self._predict(prepared))
        reported = answer["usage"]["input_tokens"]
        if reported != prepared.input_tokens:
            raise StartRefused(
                f"the prompt that would be hashed has {prepared.input_tokens} tokens, but predict() reports {reported} "
                "(INV-8)"
            )
        if not self._settings.keep_vision:
            drop_vision(self._torch, self._decider.backend.model)
            self._memory.release()
            again = self._starting("scoring without the vision tower", lambda: self._predict(prepared))
            if _fingerprint(again) != _fingerprint(answer):
                raise StartRefused(
                    f"the warm-up answers otherwise without the vision tower (INV-7); {PREFIX}KEEP_VISION=1 keeps it"
                )
        return answer

    def _describe(self, pin: Pin, device_name: str, kernels: dict[str, bool], answer: dict[str, Any]) -> EngineInfo:
        calibration = answer["calibration"]
        return EngineInfo(
            engine="intern",
            name=pin.name,
            revision=pin.revision,
            readout="softmax over the logits of the supplied options' symbols at each decision marker, "
            "all questions of a call in one prompt",
            prompt_version=f"{pin.name}/inference.py@{pin.sha256[:12]}",
            probability_status="conditional on the supplied options; temperature-scaled by the checkpoint "
            f"(T={calibration['temperature']})",
            default_profile="native",
            description="Intern-Decision, scored by the checkpoint's own inference.py",
            # The file names no date; this is the day the contract pinned its release.
            release_date="2026-09-30" if pin == INTERN_DECISION_4B else "",
            limits=Limits(
                questions=_MAX_QUESTIONS, options=_MAX_OPTIONS, levels=_MAX_OPTIONS, tokens=self._settings.max_tokens
            ),
            model={
                "source": pin.name,
                "revision": pin.revision,
                "inference_sha256": pin.sha256,
                "dtype": self._dtype,
                "device": self._settings.device,
                "vision": "kept" if self._settings.keep_vision else "dropped",
                "torch_version": str(self._torch.__version__),
                "transformers_version": _version("transformers"),
                "python_version": platform.python_version(),
                "kernels": dict(kernels),
            },
            calibration=dict(calibration),
            device=device_name,
            vram_cap_gib=self._settings.vram_cap_gib,
        )


def _fingerprint(answer: Mapping[str, Any]) -> bytes:
    return jsonio.dumps({"answers": answer["answers"], "usage": answer["usage"]})


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
