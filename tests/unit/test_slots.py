"""Admission by kernel locks (shared/slots.py): architecture.md §1.1, strict variant; contract § Limits, admission;
failure test 17."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from shared import slots
from shared.slots import Slot, SlotFileError, SlotTable

ROOT = Path(__file__).resolve().parents[2]


def job(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slots"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., SlotTable]]:
    """Tables on one path, each as another process would open it; closed at the end."""
    with ExitStack() as stack:

        def make(size: int | None = None) -> SlotTable:
            table = SlotTable(path, size)
            stack.callback(table.close)
            return table

        yield make


def taken(table: SlotTable, number: int) -> Slot:
    slot = table.acquire(job(number))
    assert slot is not None
    return slot


# -- admission ---


def test_exactly_size_slots_are_given_and_the_next_is_refused(opened: Callable[..., SlotTable]) -> None:
    web = opened(3)
    held = [taken(web, n) for n in range(3)]
    assert sorted(slot.index for slot in held) == [0, 1, 2]
    assert web.acquire(job(9)) is None
    assert web.in_use() == 3
    held[1].close()
    assert web.in_use() == 2
    assert taken(web, 9).index == 1


def test_a_slot_freed_here_is_the_first_to_be_tried(
    opened: Callable[..., SlotTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    web = opened(40)
    held = [taken(web, n) for n in range(40)]
    tried: list[int] = []
    lock = slots._lock

    def count(fd: int, kind: int, offset: int) -> bool:
        tried.append(offset)
        return lock(fd, kind, offset)

    held[33].close()
    held[35].close()
    monkeypatch.setattr(slots, "_lock", count)
    assert [taken(web, 50).index, taken(web, 51).index] == [35, 33]
    assert len(tried) == 2
    assert web.acquire(job(52)) is None


def test_a_slot_freed_here_and_taken_by_another_process_is_passed_over(opened: Callable[..., SlotTable]) -> None:
    web, other = opened(2), opened(2)
    for slot in [taken(web, 1), taken(web, 2)]:
        slot.close()  # web will try 1 first
    with taken(other, 3), taken(other, 4):
        assert web.acquire(job(5)) is None
    with taken(web, 6) as one, taken(other, 7) as two:
        assert {one.index, two.index} == {0, 1}
        assert web.acquire(job(8)) is None


def test_what_is_remembered_of_freed_slots_does_not_grow(opened: Callable[..., SlotTable]) -> None:
    web, other = opened(3), opened(3)
    for number in range(50):
        with taken(web, number), taken(other, number), taken(web, number):
            pass
        assert len(web._freed) <= 2


def test_two_tables_on_one_file_share_the_slots(opened: Callable[..., SlotTable]) -> None:
    first, second = opened(2), opened(2)
    a, b = taken(first, 1), taken(second, 2)
    assert {a.index, b.index} == {0, 1}
    assert first.acquire(job(3)) is None
    assert second.acquire(job(3)) is None
    assert first.in_use() == second.in_use() == 2
    a.close()
    b.close()
    assert first.in_use() == second.in_use() == 0


def test_leaving_the_block_frees_the_slot_whatever_was_raised(opened: Callable[..., SlotTable]) -> None:
    web = opened(1)
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        slot = taken(web, 1)
        assert web.in_use() == 1
        with pytest.raises(error), slot:
            raise error
        assert web.in_use() == 0


def test_closing_a_slot_twice_frees_only_that_slot(opened: Callable[..., SlotTable]) -> None:
    web = opened(2)
    first = taken(web, 1)
    first.close()
    second = taken(web, 2)  # likely to get the same file descriptor number
    first.close()
    assert web.in_use() == 1
    second.close()


def test_a_refusal_leaks_no_file_descriptor(opened: Callable[..., SlotTable]) -> None:
    web = opened(1)
    with taken(web, 1):
        before = os.listdir("/proc/self/fd")
        for _ in range(50):
            assert web.acquire(job(2)) is None
        assert len(os.listdir("/proc/self/fd")) == len(before)


def test_unrelated_opens_and_closes_of_the_file_do_not_free_a_slot(
    opened: Callable[..., SlotTable], path: Path
) -> None:
    web = opened(1)
    with taken(web, 1):
        os.close(os.open(path, os.O_RDWR))  # would drop a POSIX lock of this process
        path.read_bytes()
        assert web.acquire(job(2)) is None


def test_threads_never_hold_more_than_size_slots_nor_the_same_one(opened: Callable[..., SlotTable]) -> None:
    web, guard = opened(4), threading.Lock()
    held: set[int] = set()
    counts: Counter[str] = Counter()
    together = threading.Barrier(12)

    def work(thread: int) -> None:
        together.wait()
        for turn in range(200):
            slot = web.acquire(job(1000 * thread + turn))
            if slot is None:
                counts["refused"] += 1
                continue
            with guard:
                assert slot.index not in held, "one slot was given twice"
                held.add(slot.index)
                assert len(held) <= 4
                counts["given"] += 1
            with guard:
                held.remove(slot.index)
            slot.close()

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))
    assert counts["given"] >= 200  # somebody always gets one
    assert web.in_use() == 0
    everything = [taken(web, n) for n in range(4)]
    for slot in everything:
        slot.close()


def test_all_of_a_burst_of_threads_beyond_the_size_are_refused(opened: Callable[..., SlotTable]) -> None:
    web = opened(8)
    together = threading.Barrier(40)

    def ask(number: int) -> Slot | None:
        together.wait()
        return web.acquire(job(number))

    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(ask, range(40)))
    given = [slot for slot in answers if slot is not None]
    assert len(given) == 8
    assert {slot.index for slot in given} == set(range(8))
    for slot in given:
        slot.close()


_HOLDER = """
import sys
from pathlib import Path
from shared.slots import SlotTable
table = SlotTable(Path(sys.argv[1]), int(sys.argv[2]))
held = [table.acquire(bytes([n]) * 16) for n in range(int(sys.argv[3]))]
print(sum(slot is not None for slot in held), flush=True)
sys.stdin.read()
"""


class Holder:
    """Another process that takes ``count`` slots and keeps them until its standard input ends or it is killed."""

    def __init__(self, path: Path, size: int, count: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(path), str(size), str(count)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.held = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_processes_share_the_slots_and_sigkill_of_a_holder_frees_its_slots(
    opened: Callable[..., SlotTable], path: Path
) -> None:
    web = opened(4)
    mine = taken(web, 1)
    holder = Holder(path, 4, 5)
    try:
        assert holder.held == 3
        assert web.in_use() == 4
        assert web.acquire(job(2)) is None
    finally:
        holder.kill()
    assert web.in_use() == 1
    again = [taken(web, n) for n in range(3)]
    assert web.acquire(job(9)) is None
    for slot in (mine, *again):
        slot.close()


def test_a_killed_worker_does_not_free_a_slot_that_the_scorer_still_works_for(
    opened: Callable[..., SlotTable], path: Path
) -> None:
    web, scorer = opened(2), opened()
    holder = Holder(path, 2, 1)
    try:
        lease = scorer.begin_work(0, b"\x00" * 16)
    finally:
        holder.kill()
    assert lease is not None
    assert not lease.wanted()
    assert web.in_use() == 1
    with taken(web, 1) as other:
        assert other.index == 1
        assert web.acquire(job(2)) is None, "the true count would be 3"
    lease.close()
    assert web.in_use() == 0
    with taken(web, 3) as one, taken(web, 4) as two:
        assert {one.index, two.index} == {0, 1}


# -- the scorer's side ---


def test_a_held_slot_with_this_job_is_worked_on_and_a_second_scorer_cannot(opened: Callable[..., SlotTable]) -> None:
    web, scorer, second = opened(2), opened(), opened()
    with taken(web, 1) as slot:
        with scorer.begin_work(slot.index, job(1)) as lease:
            assert lease.wanted()
            assert second.begin_work(slot.index, job(1)) is None
            assert web.in_use() == 1
        assert second.begin_work(slot.index, job(1)) is not None


def test_a_job_whose_request_is_gone_is_skipped(opened: Callable[..., SlotTable]) -> None:
    web, scorer = opened(2), opened()
    slot = taken(web, 1)
    slot.close()
    assert scorer.begin_work(slot.index, job(1)) is None
    assert web.in_use() == 0, "the refusal kept the work lock"


def test_a_stale_job_id_is_skipped_when_another_request_has_the_slot(opened: Callable[..., SlotTable]) -> None:
    web, scorer = opened(1), opened()
    taken(web, 1).close()
    with taken(web, 2):
        assert scorer.begin_work(0, job(1)) is None
        lease = scorer.begin_work(0, job(2))
        assert lease is not None
        assert lease.wanted()
        lease.close()


def test_a_running_job_learns_that_its_request_has_gone(opened: Callable[..., SlotTable]) -> None:
    web, scorer = opened(1), opened()
    slot = taken(web, 1)
    with scorer.begin_work(0, job(1)) as lease:
        assert lease.wanted()
        slot.close()
        assert not lease.wanted()
        assert web.acquire(job(2)) is None
        assert not lease.wanted(), "a request that was refused wrote over the record"


@pytest.mark.parametrize("index", [-1, 2, 10**6, 1 << 40])
def test_a_slot_that_does_not_exist_is_skipped(opened: Callable[..., SlotTable], index: int) -> None:
    web, scorer = opened(2), opened()
    with taken(web, 1):
        assert scorer.begin_work(index, job(1)) is None


class Steps:
    """Calls ``meanwhile`` once, before step ``at`` of the system calls that one side makes on its own thread.

    The other side's whole turn thereby happens between two chosen steps: every interleaving of one turn in another is
    tried.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, meanwhile: Callable[[], None]) -> None:
        self.trace: list[str] = []
        self._at, self._meanwhile, self._inside = at, meanwhile, False
        for module, name in ((slots, "_lock"), (slots, "_locked_by_other"), (os, "pwrite"), (os, "pread")):
            monkeypatch.setattr(module, name, self._wrapped(name, getattr(module, name)))

    def _wrapped(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object) -> object:
            if self._inside:
                return function(*args)
            if len(self.trace) == self._at:
                self._inside = True
                self._meanwhile()
                self._inside = False
            self.trace.append(name)
            return function(*args)

        return step


@pytest.mark.parametrize("at", range(5))
def test_the_web_locks_then_writes_its_id_then_probes_so_a_stale_job_never_runs_beside_it(
    opened: Callable[..., SlotTable], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    web, scorer = opened(1), opened()
    taken(web, 1).close()  # request 1 has gone; its job still waits in the scorer's queue
    leases = []
    steps = Steps(monkeypatch, at, lambda: leases.append(scorer.begin_work(0, job(1))))
    slot = web.acquire(job(2))
    monkeypatch.undo()
    assert [step for step in steps.trace if step != "pread"][:3] == ["_lock", "pwrite", "_locked_by_other"]
    lease = leases[0] if leases else None
    assert slot is None or lease is None, "the stale job runs while another request was admitted to its slot"
    if slot is not None:
        assert scorer.begin_work(0, job(1)) is None
        fresh = scorer.begin_work(0, job(2))
        assert fresh is not None
        assert fresh.wanted()


@pytest.mark.parametrize("at", range(4))
def test_the_scorer_locks_then_checks_so_a_job_whose_request_leaves_meanwhile_never_runs_beside_the_next(
    opened: Callable[..., SlotTable], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    web, scorer = opened(1), opened()
    first = taken(web, 1)
    second: list[Slot | None] = []

    def meanwhile() -> None:
        first.close()
        second.append(web.acquire(job(2)))

    steps = Steps(monkeypatch, at, meanwhile)
    lease = scorer.begin_work(0, job(1))
    monkeypatch.undo()
    if not second:
        assert steps.trace == ["_lock", "_locked_by_other", "pread"]
        meanwhile()
    assert second[0] is None or lease is None, (
        "the job of a request that left runs while another was admitted to its slot"
    )
    assert lease is None or not lease.wanted()


def test_the_scorer_may_open_the_file_before_the_web_tier_has_sized_it(opened: Callable[..., SlotTable]) -> None:
    scorer = opened()
    assert scorer.size == 0
    assert scorer.in_use() == 0
    assert scorer.begin_work(0, job(1)) is None
    web = opened(3)
    slots_held = [taken(web, n) for n in range(3)]
    for slot in slots_held:
        lease = scorer.begin_work(slot.index, job(slot.index))
        assert lease is not None
        assert lease.wanted()
        lease.close()
    assert scorer.size == 3


def test_the_scorer_follows_a_web_tier_that_came_back_with_more_slots(opened: Callable[..., SlotTable]) -> None:
    opened(1)
    scorer = opened()
    web = opened(4)
    held = [taken(web, n) for n in range(4)]
    assert scorer.begin_work(3, job(3)) is not None
    for slot in held:
        slot.close()


# -- the file ---


def test_the_file_is_private(opened: Callable[..., SlotTable], path: Path) -> None:
    opened(1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_size_stands_in_the_header_and_a_table_without_one_takes_it(opened: Callable[..., SlotTable]) -> None:
    opened(7)
    assert opened().size == 7


def test_the_same_size_agrees_while_requests_are_in_progress(opened: Callable[..., SlotTable]) -> None:
    first = opened(2)
    with taken(first, 1):
        assert opened(2).size == 2


def test_another_size_is_refused_while_a_request_is_in_progress_and_both_numbers_are_named(
    opened: Callable[..., SlotTable],
) -> None:
    first = opened(2)
    with taken(first, 1), pytest.raises(SlotFileError, match=r"MAX_QUEUE is 5 .*MAX_QUEUE=2"):
        opened(5)
    assert opened().size == 2, "the refused size was written"


def test_a_refusal_names_the_setting_that_the_table_is_for(path: Path) -> None:
    table = SlotTable(path, 2, "MAX_CONCURRENT_DECISIONS")
    with taken(table, 1), pytest.raises(SlotFileError, match=r"MAX_CONCURRENT_DECISIONS is 5 .*DECISIONS=2"):
        SlotTable(path, 5, "MAX_CONCURRENT_DECISIONS")
    SlotTable(path, 3, "MAX_CONCURRENT_DECISIONS").close()
    with pytest.raises(SlotFileError, match=r"^MAX_CONCURRENT_DECISIONS in .* is no longer 2"):
        table.acquire(job(2))
    table.close()


def test_another_size_is_refused_while_the_scorer_still_works(opened: Callable[..., SlotTable]) -> None:
    first, scorer = opened(2), opened()
    slot = taken(first, 1)
    lease = scorer.begin_work(slot.index, job(1))
    slot.close()
    with pytest.raises(SlotFileError):
        opened(3)
    assert lease is not None
    lease.close()
    assert opened(3).size == 3


def test_another_size_is_taken_when_nothing_is_in_progress(opened: Callable[..., SlotTable]) -> None:
    opened(2)
    web = opened(3)
    held = [taken(web, n) for n in range(3)]
    assert web.acquire(job(9)) is None
    for slot in held:
        slot.close()


def test_two_limits_are_never_in_force_at_once_even_when_the_new_one_came_in_an_idle_moment(
    opened: Callable[..., SlotTable],
) -> None:
    old = opened(4)  # workers of the old setting, idle, not yet gone: a reload with a new MAX_QUEUE
    new = opened(2)
    held = [slot for n in range(4) if (slot := acquire_or_refuse(old, n)) is not None]
    held += [slot for n in range(4) if (slot := acquire_or_refuse(new, n)) is not None]
    assert len(held) <= 2
    for slot in held:
        slot.close()


def acquire_or_refuse(table: SlotTable, number: int) -> Slot | None:
    try:
        return table.acquire(job(number))
    except SlotFileError:
        return None


def test_tables_opened_at_the_same_moment_agree(path: Path) -> None:
    together = threading.Barrier(16)

    def open_one(_: int) -> SlotTable:
        together.wait()
        return SlotTable(path, 5)

    with ThreadPoolExecutor(16) as pool:
        tables = list(pool.map(open_one, range(16)))
    assert {table.size for table in tables} == {5}
    for table in tables:
        table.close()


@pytest.mark.parametrize("size", [None, 4])
def test_a_file_that_is_no_slot_file_is_refused_by_name(path: Path, size: int | None) -> None:
    path.write_bytes(b"something else entirely, at least 12 bytes")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SlotFileError, match="slots is not a slot file"):
        SlotTable(path, size)
    assert len(os.listdir("/proc/self/fd")) == before
    assert path.read_bytes().startswith(b"something"), "somebody else's file was written to"


def test_after_the_file_was_deleted_nothing_is_admitted(opened: Callable[..., SlotTable], path: Path) -> None:
    web = opened(2)
    path.unlink()
    with pytest.raises(SlotFileError, match="gone; restart the web tier"):
        web.acquire(job(1))
    assert not path.exists()


def test_after_the_file_was_replaced_the_old_table_admits_nothing(opened: Callable[..., SlotTable], path: Path) -> None:
    old = opened(2)
    path.unlink()
    new = opened(2)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SlotFileError, match="replaced; restart the web tier"):
        old.acquire(job(1))
    assert len(os.listdir("/proc/self/fd")) == before
    taken(new, 1).close()


def test_the_scorer_finds_a_replaced_file_by_itself(opened: Callable[..., SlotTable], path: Path) -> None:
    opened(2)
    scorer = opened()
    path.unlink()
    assert scorer.begin_work(0, job(1)) is None  # gone: the job's request cannot be checked, so it is skipped
    web = opened(6)
    held = [taken(web, n) for n in range(6)]
    for slot in held:
        lease = scorer.begin_work(slot.index, job(slot.index))
        assert lease is not None
        assert lease.wanted()
        lease.close()
        slot.close()
    assert web.in_use() == 0


def test_a_file_cut_short_under_a_running_service_never_admits_without_limit(
    opened: Callable[..., SlotTable], path: Path
) -> None:
    web = opened(2)
    os.truncate(path, 0)
    held = [slot for n in range(5) if (slot := acquire_or_refuse(web, n)) is not None]
    assert len(held) <= 2
    for slot in held:
        slot.close()


def test_a_file_cut_short_makes_the_scorer_skip_jobs_and_not_fail(opened: Callable[..., SlotTable], path: Path) -> None:
    web, scorer = opened(2), opened()
    os.truncate(path, 0)
    assert scorer.begin_work(0, job(1)) is None
    slot = acquire_or_refuse(web, 1)
    assert scorer.begin_work(0, job(9)) is None  # an exception here would end the inference thread
    if slot is not None:
        slot.close()


def test_the_lock_structure_fits_this_platform(path: Path) -> None:
    # A wrong layout would lock nothing, or everything, in silence.
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    try:
        for offset in (1 << 30, (1 << 30) + 1, 1 << 31, 1 << 32):
            assert slots._lock(first, slots.fcntl.F_WRLCK, offset)
            assert slots._locked_by_other(second, offset)
            assert not slots._locked_by_other(first, offset)
            assert not slots._locked_by_other(second, offset + 1)
            assert not slots._lock(second, slots.fcntl.F_WRLCK, offset)
            assert slots._lock(first, slots.fcntl.F_UNLCK, offset)
            assert not slots._locked_by_other(second, offset)
    finally:
        os.close(first)
        os.close(second)
