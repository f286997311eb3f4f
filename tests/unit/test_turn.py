"""Taking turns (web/turn.py): one thread computes, and nobody ever depends on it."""

from __future__ import annotations

import threading

import pytest

from web import turn as module
from web.turn import NO_TURN, TURN, Turn, turn_of


@pytest.fixture
def lock() -> threading.Lock:
    return threading.Lock()


def test_the_next_one_has_its_turn_when_the_first_gives_it_up(
    lock: threading.Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 60)
    first, taken = Turn(lock), threading.Event()

    def second() -> None:
        with Turn(lock):
            taken.set()

    with first:
        other = threading.Thread(target=second)
        other.start()
        assert not taken.wait(0.05)
        first.give()
        assert taken.wait(10)
        other.join(10)
        first.take()
        assert lock.locked()
    assert not lock.locked()


def test_whoever_has_waited_long_enough_goes_on_without_and_leaves_the_turn_to_its_owner(lock: threading.Lock) -> None:
    with Turn(lock) as owner:
        with Turn(lock) as impatient:
            impatient.give()
        assert lock.locked()
        owner.give()
        assert not lock.locked()
        owner.give()  # once more changes nothing


def test_a_failure_gives_the_turn_up(lock: threading.Lock) -> None:
    with pytest.raises(KeyError), Turn(lock):
        raise KeyError
    assert not lock.locked()


def test_no_turn_is_everybodys() -> None:
    with NO_TURN, NO_TURN:
        NO_TURN.give()
        NO_TURN.take()


def test_a_requests_turn_is_found_in_its_environment(lock: threading.Lock) -> None:
    turn = Turn(lock)
    assert turn_of({TURN: turn}) is turn
