"""A fake torch and a fake ``inference.py`` for the ``intern`` engine's tests: no torch, no model, every step on
record."""

from __future__ import annotations

import gc
import hashlib
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from scorer.engines import intern_checkpoint, torch_start
from scorer.engines.intern import InternEngine
from shared.pins import Pin, dump_pin
from shared.settings import ScorerSettings

__all__ = [
    "GIB",
    "INFERENCE",
    "MIB",
    "QUESTION",
    "FakeTensor",
    "FakeTorch",
    "Snapshot",
    "answer",
    "fake_snapshot",
    "fake_torch",
]

GIB, MIB = 1 << 30, 1 << 20
REVISION = "ab" * 20
QUESTION = {"q": {"type": "noul", "instructions": "Is it so?"}}

INFERENCE = """
from __future__ import annotations

from dataclasses import dataclass

import torch

MODEL_NAME = "Fake-Decision"


@dataclass
class CompiledExample:  # fails unless the module is in sys.modules while it runs
    messages: list[dict[str, str]]
    fields: tuple[str, ...]


def validate_request(request):
    torch.events.append("validate")
    if request["state"] == "bad":
        raise ValueError("the rule")
    return request


def compile_row(row):
    marks = " ".join("<decision>" for _ in row["questions"])
    return CompiledExample([{"role": "user", "content": f"{row['state']} {marks}"}], tuple(row["questions"]))


def wrapped(package, is_new_implementation):
    def function():
        return package, is_new_implementation
    return function


chunk_gated_delta_rule = wrapped("fla", torch.fla_in_use)
causal_conv1d_fn = wrapped("causal_conv1d", torch.conv_in_use)


class Parameter:
    def __init__(self, kind):
        self.device = torch.device(kind)


class Inner:
    visual = "the tower"


class Model:
    def __init__(self, device):
        self.model = Inner()
        self._device = device

    def parameters(self):
        return [Parameter(kind) for kind in torch.placement or (self._device,)]


class Tokenizer:
    def apply_chat_template(self, messages, **arguments):
        torch.template_arguments = arguments
        return " ".join(message["content"] for message in messages)

    def __call__(self, text, add_special_tokens):
        assert add_special_tokens is False
        return {"input_ids": [7 if word == "<decision>" else 1 for word in text.split()]}


class Backend:
    marker_id = 7

    def __init__(self, device, max_length):
        self.device, self.max_length, self.model = torch.device(device), max_length, Model(device)


class DecisionEngine:
    def __init__(self, checkpoint, **arguments):
        torch.events.append("construct")
        torch.constructed_with = (checkpoint, arguments)
        torch.construct()
        self.backend = Backend(arguments["device"], arguments["max_length"])
        self.tokenizer = Tokenizer()

    def predict(self, request):
        torch.events.append("predict")
        return torch.forward(self, request)
"""


class FakeTensor:
    """Something whose death can be seen."""


class FakeTorch(ModuleType):
    """A torch of a card with 80 GiB. ``events`` is what was called, in order; tests replace ``forward`` and
    ``construct``."""

    class OutOfMemoryError(RuntimeError):
        """torch's own class."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.__version__ = "0+fake"
        self.events: list[Any] = []
        self.tensors: weakref.WeakSet[FakeTensor] = weakref.WeakSet()
        self.alive_at_empty_cache: list[int] = []
        self.reserved = 9 * GIB
        self.fla_in_use = self.conv_in_use = True
        self.placement: tuple[str, ...] = ()
        self.template_arguments: dict[str, Any] = {}
        self.constructed_with: tuple[str, dict[str, Any]] = ("", {})
        self.nn = SimpleNamespace(Module=type("Module", (), {"__call__": lambda self, *a: self.forward(*a)}))
        self.device = lambda kind: SimpleNamespace(type=kind)
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            get_device_capability=lambda index: (9, 0),
            get_arch_list=lambda: ["sm_80", "sm_90"],
            get_device_name=lambda index: "Fake Card",
            get_device_properties=lambda index: SimpleNamespace(total_memory=80 * GIB),
            set_per_process_memory_fraction=lambda fraction, device: self.events.append(("cap", fraction)),
            memory_allocated=lambda: 8 * GIB,
            memory_reserved=lambda: self.reserved,
            max_memory_reserved=lambda: 10 * GIB,
            empty_cache=self._empty_cache,
        )
        self.construct: Any = lambda: None
        self.forward: Any = answer

    def tensor(self) -> FakeTensor:
        """A new tensor, watched."""
        tensor = FakeTensor()
        self.tensors.add(tensor)
        return tensor

    def _empty_cache(self) -> None:
        self.events.append("empty_cache")
        self.alive_at_empty_cache.append(len(self.tensors))


def answer(decider: Any, request: dict[str, Any], **other: Any) -> dict[str, Any]:
    """What the fake file's predict() answers: every question 0.25 and 0.75."""
    tokens = len(str(request["state"]).split()) + len(request["questions"])
    answers = {
        name: {"type": "noul", "probabilities": {"no": 0.25, "yes": 0.75}, "noul": 0.75}
        for name in request["questions"]
    }
    return {
        "answers": answers,
        "usage": {"input_tokens": tokens},
        "timing": {"inference_ms": 1.0},
        "calibration": {"method": "temperature-scaling", "temperature": 2.0},
        "model": "Fake-Decision",
        "backend": "hf",
        **other,
    }


class Snapshot:
    """A snapshot directory with the fake file, its pins file, and engines that serve it."""

    def __init__(self, root: Path, torch: FakeTorch) -> None:
        self.root = root
        self.torch = torch
        self.path = root / "snapshots" / REVISION
        self.path.mkdir(parents=True)
        self.pins = root / "pins.json"
        self.write(INFERENCE)

    def write(self, text: str, name: str = "Fake-Decision") -> None:
        """Make ``text`` the file, and pin it."""
        (self.path / "inference.py").write_text(text)
        self.pins.write_bytes(dump_pin(Pin(name, REVISION, hashlib.sha256(text.encode()).hexdigest())))

    def engine(self, **changes: str) -> InternEngine:
        """An engine that is not loaded; ``changes`` are settings in lower case, as text."""
        settings = {"checkpoint": str(self.path), "pins_file": str(self.pins), **changes}
        return InternEngine(ScorerSettings.from_env({f"INTERN_DECISION_{k.upper()}": v for k, v in settings.items()}))

    def loaded(self, **changes: str) -> InternEngine:
        """A loaded engine; what loading did is off the record."""
        engine = self.engine(**changes)
        engine.load()
        self.torch.events.clear()
        self.torch.alive_at_empty_cache.clear()
        return engine


@pytest.fixture(name="torch")
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTorch]:
    """The fake torch, in place of a real one."""
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, intern_checkpoint.MODULE_NAME, ModuleType("nothing yet"))
    for name in torch_start.OFFLINE:
        monkeypatch.setenv(name, "")
    # As the worker does after load: a full collection, of which every failure has one, walks only what came after.
    gc.collect()
    gc.freeze()
    yield fake
    # Never unfrozen: the collector shall not meet here what other tests left behind.
    fake.events.clear()


@pytest.fixture(name="snapshot")
def fake_snapshot(tmp_path: Path, torch: FakeTorch) -> Snapshot:
    """A snapshot of the fake file."""
    return Snapshot(tmp_path, torch)
