"""What every engine on torch does before its model loads: no network, torch itself, the device (INV-3, INV-5)."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from scorer.engines.base import FatalEngineError, OutOfMemory, StartRefused
from scorer.engines.torch_failures import fresh
from shared.settings import PREFIX

__all__ = ["OFFLINE", "check_device", "check_placement", "go_offline", "import_torch", "starting"]

T = TypeVar("T")

#: Read by the libraries when they are imported, so set before (INV-5). The last two keep kernels that nobody pinned out
#: of the model and progress bars out of the log.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "USE_HUB_KERNELS": "NO",
}


def go_offline() -> None:
    """Forbid the Hugging Face libraries the network, for this process (INV-5). To be called before they are imported.

    Raises StartRefused when one of them is already in memory and was imported with the network allowed.
    """
    os.environ.update(OFFLINE)
    constants: Any = sys.modules.get("huggingface_hub.constants")
    if constants is not None and not constants.HF_HUB_OFFLINE:
        raise StartRefused("huggingface_hub was imported before HF_HUB_OFFLINE=1 was set: it could use the network")


def import_torch(engine: str) -> Any:
    """The torch module, for the engine of that name. Raises StartRefused when it cannot be imported."""
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError) as error:  # OSError: a shared library of CUDA is missing
        raise StartRefused(
            f"{PREFIX}ENGINE={engine} needs torch: pip install 'intern-decision-serve[{engine}]' "
            f"({type(error).__name__}: {error})"
        ) from None


def check_device(torch: Any, device: str) -> str:
    """The device's name for people, or "cpu". Raises StartRefused unless a CUDA card is there whose ``sm_XY`` this
    torch was built for (INV-3). ``device`` is the setting, so "cpu" was asked for."""
    if device == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise StartRefused(
            f"{PREFIX}DEVICE=cuda: torch {torch.__version__} finds no CUDA device; {PREFIX}DEVICE=cpu uses the CPU"
        )
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability(0))
    built_for = torch.cuda.get_arch_list()
    name = str(torch.cuda.get_device_name(0))
    if arch not in built_for:
        raise StartRefused(
            f"{PREFIX}DEVICE=cuda: {name} is {arch}, but torch {torch.__version__} is built for "
            f"{' '.join(built_for) or 'no card'}"
        )
    return name


def check_placement(model: Any, device: str) -> None:
    """INV-3: the model sits on the device, all of it. Raises StartRefused."""
    found = {parameter.device.type for parameter in model.parameters()}
    if found != {device}:
        places = ", ".join(sorted(found)) or "no device"
        raise StartRefused(f"{PREFIX}DEVICE={device}: parts of the model are on {places}")


def starting(torch: Any, cap_gib: float | None, what: str, work: Callable[[], T]) -> T:
    """``work()``'s result; a failure becomes StartRefused, or FatalEngineError where it may be the device's. ``what``
    reads on after "while"; ``cap_gib`` is the setting VRAM_CAP_GIB."""
    try:
        return work()
    except StartRefused:
        raise
    except Exception as error:  # whatever the libraries raise while they load a model
        failure = fresh(error, torch.OutOfMemoryError)
        if isinstance(failure, FatalEngineError):
            raise failure from None
        if isinstance(failure, OutOfMemory):
            limit = "the card has no room" if cap_gib is None else f"{PREFIX}VRAM_CAP_GIB={cap_gib:g} is too small"
            raise StartRefused(f"{limit}: out of memory while {what}") from None
        # No caller has sent anything yet, so the message may be quoted.
        raise StartRefused(f"{what} failed: {type(error).__name__}: {error}") from None
