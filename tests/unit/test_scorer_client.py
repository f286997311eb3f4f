"""The web tier's side of the scorer's socket against a scorer that leaves (web/scorer_client.py; architecture.md
§1.3, §1.5)."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from shared import jsonio, wire
from shared.wire import CallItem, Job, Reply
from tests.harness import short_dir, wait_for
from web.errors import ApiError
from web.scorer_client import ScorerClient
from web.turn import NO_TURN, Turn

JOB = Job("state", [{"type": "noul", "instructions": "?"}], [[CallItem("q", 0)]])
BOOT = "b" * 32


@pytest.fixture
def endpoint() -> str:
    return f"ipc://{short_dir()}/scorer.sock"


@pytest.fixture
def client(endpoint: str) -> Iterator[ScorerClient]:
    made = ScorerClient(endpoint)
    yield made
    made.close()


class Scorer(threading.Thread):
    """A scorer for as many jobs as ``answers`` has entries: each is a status to answer with, or None for no answer.
    Then it is gone, socket and all, as at the end of a process."""

    def __init__(self, endpoint: str, *answers: str | None) -> None:
        super().__init__(daemon=True)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 2000
        self._socket.bind(endpoint)
        self._answers = answers
        self.seen: list[wire.Request] = []
        self.start()

    def run(self) -> None:
        for status in self._answers:
            peer, empty, header, _ = self._socket.recv_multipart()
            request = wire.decode_request(header)
            self.seen.append(request)
            if status is not None:
                body = jsonio.dumps({"calls": [{"answer": {}}]})
                self._socket.send_multipart([peer, empty, wire.encode_reply(Reply(request.id, BOOT, status)), body])
        self._socket.close()
        self._context.term()


def ask(client: ScorerClient, seconds: float = 10.0, turn: Turn = NO_TURN) -> Any:
    return client.ask(
        JOB,
        slot=0,
        job_id=bytes(range(16)),
        boot_id=BOOT,
        deadline=time.monotonic() + seconds,
        request_id="r",
        turn=turn,
    )


def test_others_have_the_turn_while_the_scorer_is_at_work(
    client: ScorerClient, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, held = threading.Lock(), []
    encode = wire.encode_reply
    monkeypatch.setattr(wire, "encode_reply", lambda reply: held.append(lock.acquire(timeout=10)) or encode(reply))
    Scorer(endpoint, wire.OK)
    turn = Turn(lock)
    turn.take()
    asked = threading.Thread(target=lambda: held.append(ask(client, turn=turn).calls))
    asked.start()
    # The caller has its answer, and goes on only once the turn is its again, or after a while.
    wait_for(lambda: held[:1] == [True], 10, "the scorer's turn")
    lock.release()
    asked.join(10)
    assert held[1:] == [[{"answer": {}}]]


@pytest.mark.parametrize("status", [wire.OK, wire.FAILED])
def test_the_last_answer_of_a_scorer_that_exits_reaches_a_caller_that_wakes_up_late(
    client: ScorerClient, endpoint: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = Scorer(endpoint, status)
    poll = select.poll

    class Late:
        """A busy machine: the thread gets its turn when the scorer has long gone and its connection with it."""

        def __init__(self) -> None:
            self._poll = poll()
            self.register, self.unregister = self._poll.register, self._poll.unregister

        def poll(self, timeout: Any = None) -> Any:
            scorer.join(10)
            time.sleep(0.05)
            return self._poll.poll(timeout)

    monkeypatch.setattr(select, "poll", Late)
    if status == wire.OK:
        assert ask(client).calls == [{"answer": {}}]
    else:
        with pytest.raises(ApiError) as caught:
            ask(client)
        assert caught.value.kind == "scoring_failed"


def test_a_scorer_that_leaves_without_an_answer_is_told_at_once(client: ScorerClient, endpoint: str) -> None:
    Scorer(endpoint, None)
    with pytest.raises(ApiError) as caught:
        ask(client, 60)
    assert caught.value.kind == "scorer_unavailable"


def test_without_a_scorer_nothing_is_sent_and_the_next_one_gets_no_old_job(client: ScorerClient, endpoint: str) -> None:
    for _ in range(3):
        with pytest.raises(ApiError) as caught:
            ask(client, 60)
        assert caught.value.kind == "scorer_unavailable"
    scorer = Scorer(endpoint, wire.OK)
    ask(client)
    scorer.join(10)
    assert len(scorer.seen) == 1


def test_a_kept_connection_to_a_scorer_that_left_is_not_used_again(client: ScorerClient, endpoint: str) -> None:
    for _ in range(3):
        scorer = Scorer(endpoint, wire.OK, wire.OK)
        ask(client)
        ask(client)
        scorer.join(10)


def test_a_listener_that_never_shakes_hands_is_unavailable_soon(client: ScorerClient, endpoint: str) -> None:
    """The kernel of a frozen scorer takes connections for it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(endpoint.removeprefix("ipc://"))
        listener.listen(8)
        began = time.monotonic()
        with pytest.raises(ApiError) as caught:
            ask(client, 60)
        assert caught.value.kind == "scorer_unavailable"
        assert time.monotonic() - began < 10


def test_a_connection_that_fails_is_503_and_is_not_kept(
    client: ScorerClient, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = Scorer(endpoint, wire.FAILED)
    with monkeypatch.context() as broken:

        def fail(*_: Any) -> None:
            raise zmq.ZMQError(zmq.EFSM)

        broken.setattr("web.scorer_client.send", fail)
        with pytest.raises(ApiError) as refused:
            ask(client)
    assert refused.value.kind == "scorer_unavailable"
    assert not client._idle
    with pytest.raises(ApiError) as answered:
        ask(client)
    assert answered.value.kind == "scoring_failed"
    scorer.join(5)
