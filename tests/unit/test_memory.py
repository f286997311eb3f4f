"""The allocator's bounds (web/memory.py)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness import ROOT

SCRIPT = """
import os, sys, threading
from web.memory import bound_allocator
bounded = sys.argv[1] == "yes" and bound_allocator()
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
steps = [threading.Barrier(16) for _ in range(30)]
def work():
    for step in steps:
        step.wait()
        kept = [bytes([7]) * size for size in range(200_000, 3_000_000, 200_000)]
        small = [str(number) for number in range(100)]
        step.wait()  # all have theirs at once, however quick one thread is
        del kept
threads = [threading.Thread(target=work) for _ in range(16)]
before = rss()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(int(bounded), rss() - before)
"""


def grown(bounded: str) -> tuple[bool, int]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, bounded], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    worked, size = done.stdout.split()
    return worked == "1", int(size)


def test_threads_that_had_large_blocks_keep_less_of_them() -> None:
    worked, with_bounds = grown("yes")
    if not worked:
        pytest.skip("this C library has no such settings")
    _, without = grown("no")
    assert with_bounds < 16 << 20
    assert with_bounds < without / 2
