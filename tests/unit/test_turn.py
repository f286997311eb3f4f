"""Taking turns (web/turn.py): one thread computes, and nobody ever depends on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import BEARER, D1, Local
from web import turn as module
from web.turn import NO_TURN, TURN, Turn, turn_of


@pytest.fixture
def lock() -> threading.Lock:
    return threading.Lock()


def test_the_next_one_has_its_turn_when_the_first_gives_it_up(
    lock: threading.Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 60)
    first, second, taken = Turn(lock), Turn(lock), threading.Event()

    def other() -> None:
        second.take()
        taken.set()

    first.take()
    thread = threading.Thread(target=other)
    thread.start()
    assert not taken.wait(0.05)
    first.give()
    assert taken.wait(10)
    thread.join(10)
    first.give()  # not its any more
    assert lock.locked()
    second.give()
    assert not lock.locked()


def test_whoever_has_waited_long_enough_goes_on_without_and_leaves_the_turn_to_its_owner(lock: threading.Lock) -> None:
    owner, impatient = Turn(lock), Turn(lock)
    owner.take()
    impatient.take()
    impatient.give()
    assert lock.locked()
    owner.give()
    assert not lock.locked()


def test_no_turn_is_everybodys() -> None:
    NO_TURN.take()
    NO_TURN.take()
    NO_TURN.give()


def test_a_requests_turn_is_found_in_its_environment(lock: threading.Lock) -> None:
    turn = Turn(lock)
    assert turn_of({TURN: turn}) is turn


# A request's turn, through the application.


@pytest.fixture(scope="module")
def service() -> Iterator[Local]:
    running = Local()
    yield running
    running.close()


def held(service: Local) -> bool:
    observed: Any = service.app.wsgi_app
    return bool(observed._computing.locked())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/decide", D1, 200), ("/decide", {**D1, "options": []}, 422), ("/decide", b"{", 422), ("/nowhere", {}, 404)],
)
def test_a_turn_ends_with_its_request_and_not_before(service: Local, path: str, body: Any, status: int) -> None:
    data = {"data": body} if isinstance(body, bytes) else {"json": body}
    with service.client.post(path, headers=dict(BEARER), buffered=False, **data) as response:
        assert response.status_code == status
        assert held(service) is (path == "/decide")
    assert not held(service)


def test_a_long_answer_is_not_sent_in_a_turn(service: Local) -> None:
    questions = {f"question {n}": {"type": "noul", "instructions": "?"} for n in range(100)}
    with service.client.post(
        "/v1/systemone", headers=dict(BEARER), json={"state": "s", "questions": questions}, buffered=False
    ) as response:
        assert response.status_code == 200
        assert len(response.data) > 8192
        assert not held(service)


def test_a_failure_below_the_application_ends_the_turn(service: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(environ: dict[str, Any], start_response: Any) -> None:
        turn_of(environ).take()
        raise RuntimeError

    monkeypatch.setattr(service.app.wsgi_app, "_app", fail)
    with pytest.raises(RuntimeError):
        service.client.post("/decide", headers=dict(BEARER), json=D1)
    assert not held(service)
