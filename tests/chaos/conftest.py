"""Fixtures of the chaos tests, and the tables that `make chaos` ends with."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tests.chaos.coverage import ARCHITECTURE, TROUBLE, Entry
from tests.chaos.table import Fault, render_faults, render_list
from tests.harness import Pair, pair
from tests.process.support import (
    GONE,
    Load,
    baseline,
    invariants,
    is_own,
    own_decision,
    revive,
    settle,
    wait_slots,
    warm,
)

QUEUE = 16

_faults: list[Fault] = []
#: Outcomes of each test function, by "file::function".
_outcomes: defaultdict[str, list[bool]] = defaultdict(list)


def await_200(service: Pair, seconds: float = 30.0) -> None:
    """Wait until a new request is answered with 200, and its own answer."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        asked = own_decision()
        try:
            status, answer = service.post("/decide", asked, timeout=10)
        except GONE:
            status, answer = 0, {}
        if status == 200:
            assert is_own(asked, answer)
            return
        time.sleep(0.01)
    raise AssertionError(f"no 200 within {seconds} s")


class Recorder:
    """What a test adds to its fault's line while it runs."""

    def __init__(self, service: Pair, fault: Fault, cuts: bool) -> None:
        self._service, self.fault, self._cuts = service, fault, cuts
        self._since = 0.0

    def hit(self) -> None:
        """The fault is done once more; the time to the recovery runs from now."""
        self.fault.repeats += 1
        self._since = time.monotonic()

    def restart(self) -> None:
        """The time runs from here instead: the test looked at the broken service before it starts what is missing."""
        self._since = time.monotonic()

    def recovered(self) -> None:
        """Wait until the service answers a new request with 200."""
        await_200(self._service)
        self.fault.recoveries.append(time.monotonic() - self._since)

    def load(self, load: Load) -> None:
        """Count a load that is over; it must hold no wrong answer and no lost request."""
        self.fault.add(load.outcomes, load.errors, len(load.strangers), self._cuts)
        assert not load.strangers, load.strangers[:2]
        assert not self.fault.lost, (load.outcomes, load.errors[:3])


Record = Callable[..., AbstractContextManager[Recorder]]


@pytest.fixture
def record() -> Record:
    """``with record(service, name, cuts) as seen``: one line of the table. It survived if the block ends well."""

    @contextmanager
    def recording(service: Pair, name: str, cuts: bool = False) -> Iterator[Recorder]:
        fault = Fault(name)
        _faults.append(fault)
        yield Recorder(service, fault, cuts)
        invariants(service)
        fault.survived = True

    return recording


@pytest.fixture(scope="module")
def warm_pool() -> Iterator[Any]:
    with pair(MAX_QUEUE=str(QUEUE)) as running:
        warm(running, QUEUE)
        yield running, baseline(running)


@pytest.fixture
def service(warm_pool: Any) -> Iterator[Pair]:
    """Both tiers with full pools, before and after; the whole invariant set is checked after each test."""
    running, before = warm_pool
    yield running
    running.script()
    revive(running)
    wait_slots(running, 0)
    invariants(running)
    settle(running, before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember how each test ended; a test passed if no part of it failed."""
    name = report.nodeid.partition("[")[0]
    if report.when == "call" and not report.skipped:
        _outcomes[name].append(report.passed)
    elif report.failed:
        _outcomes[name].append(False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The tables. That of the two documents only when the long tests were asked for."""
    if not _faults:
        return
    terminalreporter.section("faults")
    for line in render_faults(_faults):
        terminalreporter.write_line(line)
    if terminalreporter.config.option.markexpr == "not chaos":
        return
    for title, entries in (("architecture.md §4", ARCHITECTURE), ("trouble.md", TROUBLE)):
        terminalreporter.write_line("")
        for line in render_list(title, {f"{number} {entry.fault}": _told(entry) for number, entry in entries.items()}):
            terminalreporter.write_line(line)


def _told(entry: Entry) -> tuple[int, int, str]:
    results = [result for test in entry.tests for result in _outcomes[test]]
    return sum(results), len(results), entry.instead or "not part of this run"
