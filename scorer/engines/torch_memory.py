"""CUDA memory: the cap, the baseline, and giving back what a call left behind (INV-4).

On a CPU every method does nothing and there are no counters.
"""

from __future__ import annotations

import gc
from typing import Any

from scorer.engines.base import StartRefused
from shared.settings import PREFIX

__all__ = ["DeviceMemory"]

_GIB = 1 << 30
_MIB = 1 << 20


class DeviceMemory:
    """The memory of one device. ``cuda`` is the module ``torch.cuda``, or None on a CPU; ``slack_mib`` is
    RELEASE_SLACK_MIB.

    Only the inference thread calls it: another one would get CUDA state of its own, outside the cap (INV-2).
    """

    def __init__(self, cuda: Any | None, slack_mib: int) -> None:
        self._cuda = cuda
        self._slack = slack_mib * _MIB
        self._baseline = 0

    def cap(self, gib: float) -> None:
        """Cap torch's allocator at ``gib`` GiB. To be called before the weights load. Raises StartRefused for more than
        the card has.

        Only the allocator is capped: the CUDA context and the libraries' workspaces come on top (trouble.md rank 49).
        """
        if self._cuda is None:
            raise StartRefused(f"{PREFIX}VRAM_CAP_GIB is set, but {PREFIX}DEVICE is cpu")
        total = int(self._cuda.get_device_properties(0).total_memory)
        if gib * _GIB > total:
            raise StartRefused(f"{PREFIX}VRAM_CAP_GIB is {gib:g}, but the card has {total / _GIB:.2f} GiB")
        self._cuda.set_per_process_memory_fraction(gib * _GIB / total, 0)

    def settle(self) -> None:
        """Give back what is free and take what is left as the baseline, once everything permanent is loaded and
        warm."""
        self.release()
        if self._cuda is not None:
            self._baseline = int(self._cuda.memory_reserved())

    def release(self) -> None:
        """Give back everything that is free. After a failure its frames must be gone first: they own the tensors."""
        gc.collect()
        if self._cuda is not None:
            self._cuda.empty_cache()

    def trim(self, kept: int = 0) -> None:
        """Give back what a call left behind, if that is more than the slack above the baseline and the ``kept`` bytes
        that are meant to stay."""
        if self._cuda is not None and int(self._cuda.memory_reserved()) > self._baseline + self._slack + kept:
            self._cuda.empty_cache()

    def counters(self) -> dict[str, int]:
        """``allocated``, ``reserved``, ``peak_reserved`` and ``baseline`` in bytes; allocator counters only, no CUDA
        call."""
        if self._cuda is None:
            return {}
        return {
            "allocated": int(self._cuda.memory_allocated()),
            "reserved": int(self._cuda.memory_reserved()),
            "peak_reserved": int(self._cuda.max_memory_reserved()),
            "baseline": self._baseline,
        }
