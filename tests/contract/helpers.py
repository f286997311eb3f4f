"""What the contract tests share: an engine with hooks, and the assertions that many rules have in common."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from shared.settings import ScorerSettings
from tests.harness import BEARER, D1, S1, SHARED1, Local, RecordingEngine, strict_json, wait_for

#: Every POST route with a body that it answers.
ROUTES: dict[str, dict[str, Any]] = {"/decide": D1, "/decide/shared": SHARED1, "/v1/systemone": S1}


class HookedEngine(RecordingEngine):
    """The recording fake engine with two hooks: ``before`` meets every prepared call, and may block or raise; ``edit``
    may change every answer object. ``answers`` are the answer objects that left it, ``prepared`` counts the requests
    it met, ``terms`` are theirs."""

    def __init__(self, settings: ScorerSettings) -> None:
        super().__init__(settings)
        self.reset()

    def reset(self) -> None:
        """As new, but loaded."""
        self.before: Callable[[Any], None] | None = None
        self.edit: Callable[[dict[str, Any]], None] | None = None
        self.calls = []
        self.answers: list[dict[str, Any]] = []
        self.prepared = 0
        self.terms: list[Any] = []

    def prepare(self, state: Any, calls: Sequence[Mapping[str, Any]], *terms: Any) -> Any:
        self.prepared += 1
        self.terms += terms
        return super().prepare(state, calls, *terms)

    def predict(self, call: Any) -> Any:
        if self.before is not None:
            self.before(call)
        result = super().predict(call)
        if self.edit is not None:
            self.edit(result.answer)
        self.answers.append(result.answer)
        return result


@contextmanager
def hooked(**settings: str) -> Iterator[Local]:
    """Both tiers in this process with a :class:`HookedEngine` and these settings, for the length of a block."""
    service = Local(HookedEngine, **settings)
    try:
        yield service
    finally:
        service.close()
        # Or the collector closes them, and Python warns.
        idle = service.app.extensions["decision"].scorer._idle
        while idle:
            idle.pop().close()


class Gate:
    """A ``before`` hook that holds every call until :meth:`open`; ``entered`` counts the calls that came to it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.entered = 0

    def __call__(self, _call: Any) -> None:
        self.entered += 1
        assert self._event.wait(30)

    def open(self) -> None:
        """Let everything through."""
        self._event.set()

    def wait_entered(self, count: int = 1) -> None:
        """Until so many calls are held."""
        wait_for(lambda: self.entered >= count, what=f"{count} calls at the gate")


@contextmanager
def gated(service: Local) -> Iterator[Gate]:
    """Hold every call of the service inside the engine for the length of a block."""
    gate = Gate()
    service.engine.before = gate
    try:
        yield gate
    finally:
        gate.open()
        service.engine.before = None


@contextmanager
def in_background(service: Local) -> Iterator[Callable[[str, Any], Future[tuple[int, Any]]]]:
    """A function that POSTs in a thread of its own, on a client of its own; all are joined at the end."""

    def post(path: str, body: Any) -> tuple[int, Any]:
        response = service.app.test_client().post(path, data=json.dumps(body).encode(), headers=BEARER)
        return response.status_code, strict_json(response.data)

    with ThreadPoolExecutor(64) as pool:
        yield lambda path, body: pool.submit(post, path, body)


def wait_until_in_use(service: Local, slots: int) -> None:
    """Until so many POSTs are admitted."""
    wait_for(lambda: service.client.get("/health").json["slots_in_use"] == slots, what=f"{slots} slots in use")


def changed(body: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A deep copy of a body with some top-level names set anew."""
    return {**deepcopy(dict(body)), **changes}


def without(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A deep copy of a body that lacks one top-level name."""
    return {key: value for key, value in deepcopy(dict(body)).items() if key != name}


def shared(*decisions: Mapping[str, Any], state: Any = "the state", **more: Any) -> dict[str, Any]:
    """A ``/decide/shared`` body."""
    return {"state": state, "decisions": [dict(decision) for decision in decisions], **more}


def asking(**questions: Any) -> dict[str, Any]:
    """A ``/v1/systemone`` body."""
    return {"model": "jev-latest", "state": "Refund me", "questions": questions}


NOUL = {"type": "noul", "instructions": "Refund?"}


def assert_error(answer: tuple[int, Any], status: int, code: str) -> str:
    """The contract's error body ``{error: {code, message}}``; returns the message."""
    found, body = answer
    assert (found, body.get("error", {}).get("code")) == (status, code), body
    message = body["error"]["message"]
    assert set(body["error"]) == {"code", "message"}
    assert isinstance(message, str)
    assert message
    return message


def assert_refused(service: Local, path: str, body: Any) -> str:
    """422 ``invalid_request`` without a forward pass; returns the message."""
    scored = len(service.engine.calls)
    message = assert_error(service.post(path, body), 422, "invalid_request")
    assert len(service.engine.calls) == scored, "a refused request reached the model"
    return message


def assert_details(body: Any) -> list[dict[str, Any]]:
    """Jev's 422: a nonempty ``detail`` list whose items have ``loc`` (from ``body`` on), ``msg`` and ``type``."""
    assert isinstance(body["detail"], list)
    assert body["detail"]
    for item in body["detail"]:
        assert isinstance(item["loc"], list)
        assert item["loc"][0] == "body"
        assert isinstance(item["msg"], str)
        assert isinstance(item["type"], str)
    return list(body["detail"])


def ordered(value: Any) -> Any:
    """A value with its objects as lists of pairs, so that ``==`` compares the order of names too."""
    if isinstance(value, Mapping):
        return [(name, ordered(item)) for name, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [ordered(item) for item in value]
    return value


def set_probabilities(answer: dict[str, Any], by_label: Mapping[str, float]) -> None:
    """Give every choice of an answer object these numbers, and the winner that follows (a tie: the smaller label)."""
    for item in answer["answers"].values():
        item["probabilities"] = {label: by_label[label] for label in item["probabilities"]}
        item["choice"] = item["decision"] = min(by_label, key=lambda label: (-by_label[label], label))
        item["confidence"] = by_label[item["choice"]]
