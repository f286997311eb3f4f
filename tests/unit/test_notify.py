"""What systemd is told (scorer/notify.py), over real datagram sockets: sd_notify(3); architecture.md §1.5, §1.14."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from scorer import notify
from scorer.notify import Notifier

EXTEND = "EXTEND_TIMEOUT_USEC=60000000"


class Manager:
    """The receiving end; ``notices`` takes what has come, a list of lines each."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)

    def notices(self) -> list[list[str]]:
        found = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return found

    def notifier(self, **more: str) -> Notifier:
        return Notifier.from_env({"NOTIFY_SOCKET": self.address, **more})


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(notify, "time", made)
    return made


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(os.path.relpath(tmp_path / "notify"))
    yield made
    made.socket.close()


def test_without_a_socket_nothing_is_sent_and_nothing_fails() -> None:
    for environ in ({}, {"NOTIFY_SOCKET": ""}, {"WATCHDOG_USEC": "1000"}):
        Notifier.from_env(environ).report("ready", "ready")
    Notifier().report("loading", "loading")


def test_an_abstract_socket_is_reached_by_its_name_with_an_at_sign() -> None:
    manager = Manager(f"@intern-decision-{uuid.uuid4().hex}")
    manager.notifier().report("ready", "ready")
    assert manager.notices() == [["READY=1", "STATUS=ready", "WATCHDOG=1"]]
    manager.socket.close()


def test_a_load_puts_the_start_timeout_off_and_says_neither_ready_nor_alive(manager: Manager, clock: Clock) -> None:
    notifier = manager.notifier()
    for _ in range(4):
        notifier.report("loading", "loading")
        clock.now += 5
    assert manager.notices() == [["STATUS=loading", EXTEND]] * 4


def test_ready_is_said_once_and_alive_again_and_again(manager: Manager, clock: Clock) -> None:
    notifier = manager.notifier()
    for _ in range(3):
        notifier.report("ready", "ready")
        clock.now += 5
    assert manager.notices() == [["READY=1", "STATUS=ready", "WATCHDOG=1"], *[["STATUS=ready", "WATCHDOG=1"]] * 2]


def test_a_drain_says_stopping_once_and_puts_the_stop_timeout_off(manager: Manager, clock: Clock) -> None:
    notifier = manager.notifier()
    for state in ("ready", "draining", "draining"):
        notifier.report(state, state)
        clock.now += 5
    assert manager.notices()[1:] == [
        ["STOPPING=1", "STATUS=draining", "WATCHDOG=1", EXTEND],
        ["STATUS=draining", "WATCHDOG=1", EXTEND],
    ]


def test_a_state_is_told_at_once_and_the_same_state_only_now_and_then(manager: Manager, clock: Clock) -> None:
    notifier = manager.notifier()
    for state in ("loading", "loading", "ready", "ready", "draining", "draining"):
        notifier.report(state, state)
        clock.now += 0.1
    assert len(manager.notices()) == 3


@pytest.mark.parametrize(
    ("usec", "every_s"), [("3000000", 1.0), ("30000000", 5.0), ("600000000", 5.0), ("0", 5.0), ("-1", 5.0), ("x", 5.0)]
)
def test_pings_come_at_least_three_times_in_the_managers_patience(
    manager: Manager, clock: Clock, usec: str, every_s: float
) -> None:
    notifier = manager.notifier(WATCHDOG_USEC=usec, WATCHDOG_PID=str(os.getpid()))
    notifier.report("ready", "ready")
    for _ in range(3):
        clock.now += every_s * 0.99
        notifier.report("ready", "ready")
        clock.now += every_s * 0.02
        notifier.report("ready", "ready")
    assert len(manager.notices()) == 4


def test_the_patience_for_another_process_is_not_ours(manager: Manager, clock: Clock) -> None:
    notifier = manager.notifier(WATCHDOG_USEC="3000000", WATCHDOG_PID="1")
    notifier.report("ready", "ready")
    clock.now += 2
    notifier.report("ready", "ready")
    assert len(manager.notices()) == 1


def test_a_status_of_several_lines_cannot_assign_anything(manager: Manager) -> None:
    manager.notifier().report("loading", "a\nREADY=1\r\n b")
    assert manager.notices() == [["STATUS=a READY=1 b", EXTEND]]


def test_a_notice_that_cannot_be_sent_is_made_up_for(tmp_path: Path) -> None:
    """Above all READY=1: without it the manager would end a start that went well."""
    address = os.path.relpath(tmp_path / "notify")
    notifier = Notifier.from_env({"NOTIFY_SOCKET": address})
    notifier.report("ready", "ready")
    manager = Manager(address)
    notifier.report("ready", "ready")
    assert manager.notices() == [["READY=1", "STATUS=ready", "WATCHDOG=1"]]
    manager.socket.close()


def test_a_manager_that_does_not_read_holds_nothing_up(manager: Manager, clock: Clock) -> None:
    notifier = manager.notifier()
    for _ in range(2000):  # more than the kernel keeps for a datagram socket
        notifier.report("ready", "ready")
        clock.now += 10
    assert manager.notices()[0] == ["READY=1", "STATUS=ready", "WATCHDOG=1"]


@pytest.mark.parametrize("address", ["x" * 200, "a\0b", "/nowhere/at/all"])
def test_an_impossible_address_stops_nothing(address: str) -> None:
    Notifier(address).report("ready", "ready")
