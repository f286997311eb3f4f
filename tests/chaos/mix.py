"""The callers of the soak: every surface, good requests and bad ones, each able to tell its own answer from another's.

A surface is one line of :data:`SURFACES`.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.harness import BEARER, Pair, decision, strict_json
from tests.process.support import is_own, own_decision

__all__ = ["SURFACES", "Caller", "Ledger", "Surface"]

_serial = itertools.count()

#: What may come back beside 200 while faults are about; everything else is unexpected.
TROUBLE_CODES = {
    "429 busy",
    "503 scorer_unavailable",
    "503 out_of_memory",
    "504 deadline_exceeded",
    # The same three on /v1/decisions.
    "429 rate_limit_exceeded",
    "503 overloaded",
    "504 timeout",
}


@dataclass(frozen=True)
class Asked:
    """One request. ``expected`` is its status on a service without faults; ``own`` says whether a 200's body answers
    this very request."""

    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: dict(BEARER))
    expected: int = 200
    own: Callable[[Any], bool] = lambda answer: True


def _post(path: str, body: Any, own: Callable[[Any], bool] = lambda answer: True, expected: int = 200) -> Asked:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Asked("POST", path, data, expected=expected, own=own)


def _decide() -> Asked:
    body = own_decision()
    return _post("/decide", body, lambda answer: is_own(body, answer))


def _large() -> Asked:
    """Most of the body limit."""
    body = {**own_decision(), "state": "x" * 700_000}
    return _post("/decide", body, lambda answer: is_own(body, answer) if "id" in answer else False)


def _shared() -> Asked:
    name = f"shared-{next(_serial)}"
    orderings = ["none", "rotations", "all"]
    asked = [decision(f"{name}-{n}", [f"{name}-{n}-{o}" for o in "abc"], orderings=orderings[n % 3]) for n in range(9)]

    def own(answer: Any) -> bool:
        return [(found["id"], found["option_ids"]) for found in answer["results"]] == [
            (one["id"], [option["id"] for option in one["options"]]) for one in asked
        ]

    return _post("/decide/shared", {"state": f"state of {name}", "decisions": asked}, own)


def _systemone() -> Asked:
    name = f"asked-{next(_serial)}"
    questions = {
        f"{name}-choice": {
            "type": "choice",
            "instructions": "Which?",
            "criteria": {f"{name}-a": "A", f"{name}-b": "B"},
        },
        f"{name}-noul": {"type": "noul", "instructions": "Is it?"},
        f"{name}-score": {"type": "score", "instructions": "How much?", "criteria": ["none", "some", "much"]},
    }

    def own(answer: Any) -> bool:
        found = answer["answers"]
        return list(found) == list(questions) and set(found[f"{name}-choice"]["probabilities"]) == {
            f"{name}-a",
            f"{name}-b",
        }

    return _post("/v1/systemone", {"model": "jev-latest", "state": f"state of {name}", "questions": questions}, own)


def _decisions() -> Asked:
    name = f"openai-{next(_serial)}"
    questions: list[dict[str, Any]] = [
        {"type": "choice", "instructions": "Which?", "choices": [{"value": f"{name}-a"}, {"value": f"{name}-b"}]},
        {"type": "predicate", "instructions": "Is it?"},
        {"type": "score", "instructions": "How much?", "levels": [{"label": f"{name}-low"}, {"label": f"{name}-high"}]},
    ]
    for number, question in enumerate(questions):
        question["name"] = f"{name}-{number}"

    def own(answer: Any) -> bool:
        choice, _, score = found = answer["answers"]
        return (
            [one["name"] for one in found] == [one["name"] for one in questions]
            and [one["value"] for one in choice["probabilities"]] == [f"{name}-a", f"{name}-b"]
            and [one["label"] for one in score["probabilities"]] == [f"{name}-low", f"{name}-high"]
        )

    return _post("/v1/decisions", {"model": "m", "input": f"state of {name}", "questions": questions}, own)


@dataclass(frozen=True)
class Surface:
    """``weight`` is how often it is asked, relative to the others. A 200's body must be JSON unless ``text``."""

    name: str
    weight: int
    make: Callable[[], Asked]
    text: bool = False


SURFACES = (
    Surface("/decide", 40, _decide),
    Surface("/decide, large", 2, _large),
    Surface("/decide/shared", 15, _shared),
    Surface("/v1/systemone", 20, _systemone),
    Surface("/v1/decisions", 15, _decisions),
    Surface("/health", 8, lambda: Asked("GET", "/health", headers={})),
    Surface("/ready", 4, lambda: Asked("GET", "/ready", headers={})),
    Surface("/metrics", 2, lambda: Asked("GET", "/metrics"), text=True),
    Surface("/openapi.json", 1, lambda: Asked("GET", "/openapi.json", headers={})),
    Surface("/v1/models", 4, lambda: Asked("GET", "/v1/models")),
    Surface("bad JSON", 3, lambda: _post("/decide", b'{"id": 1,', expected=422)),
    Surface("too few options", 3, lambda: _post("/decide", decision("x", ["only"], state="s"), expected=422)),
    Surface("wrong token", 3, lambda: Asked("POST", "/decide", b"{}", {"Authorization": "Bearer no"}, 401)),
    Surface("too large", 2, lambda: _post("/decide", b" " * (2 << 20), expected=413)),
    Surface("no such path", 2, lambda: Asked("GET", "/nope", expected=404)),
)


class Ledger:
    """What all callers met: ``counts`` by surface and outcome, ``wrong`` and ``unexpected`` answers in full, ``broken``
    connections with the time at which they broke and whether they had carried an earlier request."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.wrong: list[Any] = []
        self.unexpected: list[Any] = []
        self.broken: list[tuple[float, str, bool, BaseException]] = []

    def answer(self, surface: Surface, asked: Asked, status: int, body: Any) -> None:
        code = "" if status == 200 or not isinstance(body, dict) else str(body.get("error", {}).get("code"))
        outcome = f"{status} {code}".strip()
        with self._guard:
            self.counts[surface.name, outcome] += 1
            if status == 200 == asked.expected:
                try:
                    own = asked.own(body)
                except (KeyError, TypeError, AttributeError, ValueError):
                    own = False
                if not own:
                    self.wrong.append((surface.name, asked.body[:300], body))
            elif status != asked.expected and outcome not in TROUBLE_CODES:
                self.unexpected.append((surface.name, outcome, body))

    def breaks(self, surface: Surface, kept: bool, error: BaseException) -> None:
        with self._guard:
            self.counts[surface.name, "connection broken"] += 1
            self.broken.append((time.monotonic(), surface.name, kept, error))


class Caller(threading.Thread):
    """Asks one request after the other on a kept connection, or on a new one each, until told to stop."""

    def __init__(self, service: Pair, ledger: Ledger, seed: int, pause_s: float, keep: bool) -> None:
        super().__init__(daemon=True)
        self._service, self._ledger, self._pause_s, self._keep = service, ledger, pause_s, keep
        self._dice = random.Random(seed)
        self._over = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self._used = False

    def run(self) -> None:
        weights = [surface.weight for surface in SURFACES]
        while not self._over.is_set():
            (surface,) = self._dice.choices(SURFACES, weights)
            try:
                self.ask(surface)
            except (OSError, http.client.HTTPException) as error:
                self._ledger.breaks(surface, self._used, error)
                self.stop_connection()
                self._over.wait(0.1)
            self._over.wait(self._pause_s * self._dice.random())
        self.stop_connection()

    def ask(self, surface: Surface) -> None:
        asked = surface.make()
        connection = self._connection
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._service.port, timeout=30)
        elif _closed(connection):
            # An idle connection that the server has closed is no broken request.
            connection.close()
        self._connection = connection
        self._used = connection.sock is not None
        connection.request(asked.method, asked.path, asked.body or None, asked.headers)
        response = connection.getresponse()
        data = response.read()
        kept = self._keep and not response.will_close
        self._ledger.answer(
            surface, asked, response.status, data.decode() if surface.text and response.status == 200 else _json(data)
        )
        if not kept:
            self.stop_connection()

    def stop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def stop(self) -> None:
        self._over.set()
        self.join(60)
        assert not self.is_alive(), "a caller hangs"


def _json(data: bytes) -> Any:
    try:
        return strict_json(data)
    except (ValueError, AssertionError):
        return data[:200]


def _closed(connection: http.client.HTTPConnection) -> bool:
    if connection.sock is None:
        return False
    try:
        return connection.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
