"""What the C library's allocator may keep for itself in a web worker."""

from __future__ import annotations

import ctypes

__all__ = ["bound_allocator"]

#: glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: With glibc's 128 KiB for both, reading a large body was two to three times as slow: memory came and went each time.
_LARGE, _TRIM = 256 << 10, 1 << 20
_ARENAS = 2


def bound_allocator() -> bool:
    """Have large blocks given back to the system when they are freed; call it before any thread starts, and workers
    inherit it. Returns False where the C library has no such settings.

    By default each of a worker's threads gets a heap of its own, and after the first large body glibc takes such
    bodies from these heaps instead of from the system, so that each heap grows to its largest body and stays there.
    With bodies of up to 1 MiB among small ones a worker grew from 37 to 50 MiB in 25 s and went on to 65; with these
    settings it stays at 40.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    wanted = ((_M_ARENA_MAX, _ARENAS), (_M_MMAP_THRESHOLD, _LARGE), (_M_TRIM_THRESHOLD, _TRIM))
    worked = [mallopt(name, value) == 1 for name, value in wanted]
    return all(worked)
