"""``make soak MINUTES=10``: mixed load over all surfaces with a random fault every 20 s, then a report.

It stops by itself and exits 1 on a wrong answer, a lost request, an answer that nothing explains, a slot that stays
taken, a leaked descriptor or thread, or a process that grows by more than 5 % after its first minute.

    python -m tests.chaos.soak --minutes 10 [--seed 1] [--every 20] [--engine fake|sparrow]
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import psutil

from tests.chaos.mix import Caller, Ledger
from tests.chaos.table import Fault, columns, render_faults
from tests.chaos.weather import FAULTS, Kind, Supervisor
from tests.harness import Pair, pair, wait_for
from tests.process.support import GONE, HealthWatch, at_once, own_decision, pids_by_role, swollen

__all__ = ["main"]

QUEUE = 16
SETTINGS = {"MAX_QUEUE": str(QUEUE), "REQUEST_BUDGET_S": "5", "BODY_DEADLINE_S": "3", "HANG_S": "8"}
CALLERS = 8
#: A process's size is compared with what it had at this age.
FIRST_MINUTE_S = 60.0
MOST_GROWTH = 0.05
WINDOW_S = 30.0
SAMPLE_S = 5.0
#: A connection counts as cut by a fault until this long after the recovery: its callers notice late.
AFTERWARDS_S = 2.0


@dataclass(frozen=True)
class Sample:
    """One look at one process: ``at`` seconds of the soak, ``age`` seconds of the process."""

    at: float
    age: float
    role: str
    pid: int
    rss: int
    fds: int
    threads: int


@dataclass(frozen=True)
class Growth:
    """``base`` bytes at the end of the first minute, and by which share it was larger later: for half a minute, and for
    one moment."""

    role: str
    pid: int
    life_s: float
    base: float
    lasting: float
    peak: float


class Sampler(threading.Thread):
    """Looks at every process of both tiers now and then."""

    def __init__(self, service: Pair) -> None:
        super().__init__(daemon=True)
        self._service = service
        self._over = threading.Event()
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    def run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            # A process may end at any moment.
            with contextlib.suppress(OSError, psutil.Error, ValueError):
                roles = pids_by_role(self._service)
                assert self._service.web is not None
                roles["master"] = [self._service.web.pid]
                for role, pids in roles.items():
                    for pid in pids:
                        self._look(role, pid)

    def _look(self, role: str, pid: int) -> None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            with process.oneshot():
                self.samples.append(
                    Sample(
                        time.monotonic() - self._began,
                        time.time() - process.create_time(),
                        role,
                        pid,
                        process.memory_info().rss,
                        process.num_fds(),
                        process.num_threads(),
                    )
                )

    def stop(self) -> None:
        self._over.set()
        self.join(30)


def growth(samples: Sequence[Sample]) -> list[Growth]:
    """Of every process that lived on for at least half a minute after its first one.

    A look may fall on a moment at which megabytes of requests are in flight, so the size is that of half a minute: the
    median of its looks. The greatest of these after the first minute is compared with the last one within it.
    """
    by_pid: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_pid[sample.pid].append(sample)
    found = []
    for pid, looks in by_pid.items():
        early = [look.rss for look in looks if FIRST_MINUTE_S - WINDOW_S <= look.age <= FIRST_MINUTE_S]
        late = [look for look in looks if look.age > FIRST_MINUTE_S]
        if early and late and late[-1].age >= FIRST_MINUTE_S + WINDOW_S:
            base = median(early)
            sizes = [
                median(look.rss for look in late if end - WINDOW_S <= look.age <= end)
                for end in (look.age for look in late)
                if end >= FIRST_MINUTE_S + WINDOW_S
            ]
            peak = max(look.rss for look in late)
            found.append(Growth(looks[0].role, pid, late[-1].age, base, max(sizes) / base - 1, peak / base - 1))
    return sorted(found, key=lambda one: (one.role, one.pid))


def trend(samples: Sequence[Sample]) -> list[str]:
    """By role and minute: the most memory, descriptors and threads of a process."""
    rows = [("role", "minute", "processes", "most RSS MiB", "most descriptors", "most threads")]
    grouped: defaultdict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        grouped[sample.role, int(sample.at // 60) + 1].append(sample)
    for (role, minute), looks in sorted(grouped.items()):
        rows.append(
            (
                role,
                str(minute),
                str(len({look.pid for look in looks})),
                f"{max(look.rss for look in looks) / (1 << 20):.1f}",
                str(max(look.fds for look in looks)),
                str(max(look.threads for look in looks)),
            )
        )
    return columns(rows)


class Soak:
    """One run. ``problems`` says what must not be, in sentences."""

    def __init__(self, service: Pair, seed: int, every_s: float, engine: str) -> None:
        self._service, self._every_s = service, every_s
        self._dice = random.Random(seed)
        self._kinds = [kind for kind in FAULTS if engine == "fake" or not kind.scripted]
        self._bag: list[Kind] = []
        self.windows: list[tuple[float, float, Kind]] = []
        self.faults = {kind.name: Fault(kind.name, survived=True) for kind in self._kinds}
        self.ledger = Ledger()
        self.problems: list[str] = []
        self.supervisor = Supervisor(service)
        self.sampler = Sampler(service)
        self.watch = HealthWatch(service, 0.25)

    def run(self, minutes: float) -> None:
        """The load, the faults, and at the end a quiet service to look at."""
        callers = [Caller(self._service, self.ledger, number, 0.04, keep=number % 2 == 0) for number in range(CALLERS)]
        self.supervisor.start()
        self.sampler.start()
        with self.watch:
            for caller in callers:
                caller.start()
            end = time.monotonic() + 60 * minutes
            following = time.monotonic() + self._every_s / 2
            while time.monotonic() < end:
                # A full house now and then, so that every process has its threads and connections in its first minute.
                at_once([self._quietly] * (2 * QUEUE))
                if time.monotonic() >= following:
                    self._strike()
                    following = max(following + self._every_s, time.monotonic())
                time.sleep(max(0.0, min(2.0, end - time.monotonic())))
            for caller in callers:
                caller.stop()
        self.sampler.stop()
        self._look_at_the_end()
        self.supervisor.stop()

    def _quietly(self) -> None:
        with contextlib.suppress(*GONE):
            self._service.post("/decide", own_decision(sleep_s=0.005))

    def next_kind(self) -> Kind:
        """The next fault: in random order, each once before one comes again."""
        if not self._bag:
            self._bag = self._dice.sample(self._kinds, len(self._kinds))
        return self._bag.pop()

    def _strike(self) -> None:
        kind = self.next_kind()
        fault = self.faults[kind.name]
        fault.repeats += 1
        began = time.monotonic()
        kind.do(self._service, self._dice)
        # A signal's effect comes a moment after it: the recovery is a 200 from then on.
        time.sleep(0.1)
        try:
            wait_for(lambda: self._service.post("/decide", own_decision())[0] == 200, 30, "a 200")
        except AssertionError:
            fault.survived = False
            self.problems.append(f"no 200 within 30 s of: {kind.name}")
        ended = time.monotonic()
        fault.recoveries.append(ended - began)
        if kind.cuts or kind.retires:
            self.windows.append((began, ended + AFTERWARDS_S, kind))

    def _look_at_the_end(self) -> None:
        for when, surface, kept, error in self.ledger.broken:
            kind = self.cut_by(when, kept)
            if kind is not None and not isinstance(error, TimeoutError):
                self.faults[kind.name].cut += 1
            else:
                self.problems.append(f"a lost request: {surface}: {error!r}")
        self.problems += [f"a wrong answer: {wrong}" for wrong in self.ledger.wrong]
        self.problems += [f"an answer that nothing explains: {odd}" for odd in self.ledger.unexpected]
        if self.watch.most_slots > QUEUE:
            self.problems.append(f"{self.watch.most_slots} slots in use of {QUEUE}")
        try:
            self._service.wait_ready()
            wait_for(lambda: self._service.slots_in_use() == 0, 15, "every slot free")
            wait_for(lambda: not swollen(self._service), 15, "descriptors and threads within their pools")
        except AssertionError as error:
            self.problems.append(f"at rest: {error}")
        for name in ("scorer", "web"):
            told = [
                line for line in self._service.log(name).splitlines() if "Traceback" in line or "unexpected" in line
            ]
            self.problems += [f"in the {name}'s log: {line[:200]}" for line in told]
        for one in growth(self.sampler.samples):
            if one.lasting > MOST_GROWTH:
                self.problems.append(f"{one.role} {one.pid} grew by {one.lasting:.1%} after its first minute")

    def cut_by(self, when: float, kept: bool) -> Kind | None:
        """The fault that explains a connection which broke at ``when``, if there is one."""
        for began, ended, kind in self.windows:
            if began <= when <= ended and (kind.cuts or kept):
                return kind
        return None

    def report(self) -> list[str]:
        """The report, line by line."""
        counts = self.ledger.counts
        lines = [f"{sum(counts.values())} requests", ""]
        outcomes = sorted({outcome for _, outcome in counts})
        rows = [("surface", *outcomes)]
        for surface in sorted({surface for surface, _ in counts}):
            rows.append((surface, *(str(counts[surface, outcome]) for outcome in outcomes)))
        lines += [*columns(rows), ""]
        lines += [*self._faults_table(), ""]
        lines += [*trend(self.sampler.samples), ""]
        rows = [("role", "process", "lived s", "MiB at 60 s", "most growth after", "for one moment")]
        for one in growth(self.sampler.samples):
            mib = one.base / (1 << 20)
            rows.append(
                (one.role, str(one.pid), f"{one.life_s:.0f}", f"{mib:.1f}", f"{one.lasting:+.1%}", f"{one.peak:+.1%}")
            )
        lines += [*columns(rows), ""]
        exits = Counter(self.supervisor.exits)
        lines.append("exits: " + ", ".join(f"{name} {code} x{count}" for (name, code), count in sorted(exits.items())))
        lines.append(f"wrong answers: {len(self.ledger.wrong)}; most slots in use: {self.watch.most_slots} of {QUEUE}")
        lines += self.problems[:40] or ["nothing leaked, nothing lost, nothing wrong"]
        return lines

    def _faults_table(self) -> list[str]:
        return render_faults(fault for fault in self.faults.values() if fault.repeats)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=20, help="seconds between two faults")
    parser.add_argument("--engine", choices=("fake", "sparrow"), default="fake")
    args = parser.parse_args(argv)
    with pair(ENGINE=args.engine, **SETTINGS) as service:
        soak = Soak(service, args.seed, args.every, args.engine)
        soak.run(args.minutes)
        print("\n".join(soak.report()), flush=True)
        return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
