"""The faults of the soak: each is done to a running service whose processes somebody else starts again.

:data:`FAULTS` has one line a fault. Those that script the engine need the fake one.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from tests.harness import D1, TOKEN, Pair, wait_for
from tests.process.support import GONE, Wire, alive, at_once, frozen, head, own_decision, slow, whole

__all__ = ["FAULTS", "Kind", "Supervisor"]


class Supervisor(threading.Thread):
    """Starts each tier again as soon as it has ended, whatever its exit code, as a service manager does."""

    def __init__(self, service: Pair) -> None:
        super().__init__(daemon=True)
        self._service = service
        self._over = threading.Event()
        self.exits: list[tuple[str, int]] = []

    def run(self) -> None:
        while not self._over.wait(0.05):
            for name, start in (("scorer", self._service.start_scorer), ("web", self._service.start_web)):
                process = getattr(self._service, name)
                code = process.poll()
                if code is not None:
                    self.exits.append((name, code))
                    start()

    def stop(self) -> None:
        self._over.set()
        self.join(10)


@dataclass(frozen=True)
class Kind:
    """``cuts``: it ends web processes, and with them the connections that they hold. ``retires``: it ends them in
    order, so that only a kept connection may close, and only between two requests."""

    name: str
    do: Callable[[Pair, random.Random], Any]
    cuts: bool = False
    retires: bool = False
    scripted: bool = False


def _ends(tier: str, number: int) -> Callable[[Pair, random.Random], None]:
    def do(service: Pair, _dice: random.Random) -> None:
        process = getattr(service, tier)
        before = service.worker_pids()
        process.send_signal(number)
        process.wait(30)
        if tier == "web":
            wait_for(lambda: not any(map(alive, before)), 30, "its workers gone")

    return do


def _reload(service: Pair, _dice: random.Random) -> None:
    assert service.web is not None
    before = set(service.worker_pids())
    service.web.send_signal(signal.SIGHUP)
    wait_for(lambda: service.worker_pids() and not before & set(service.worker_pids()), 40, "new workers only")


def _kill_worker(service: Pair, dice: random.Random) -> None:
    with contextlib.suppress(ProcessLookupError, IndexError):
        os.kill(dice.choice(service.worker_pids()), signal.SIGKILL)


def _freeze(service: Pair, dice: random.Random) -> None:
    with frozen(service.scorer):
        time.sleep(1 + 5 * dice.random())  # the freeze itself


def _post(service: Pair, body: Any) -> None:
    with contextlib.suppress(*GONE):
        service.post("/decide", body)


def _hang(service: Pair, _dice: random.Random) -> None:
    scorer = service.scorer
    assert scorer is not None
    _post(service, slow(D1, 600))
    scorer.wait(60)


def _memory(service: Pair, _dice: random.Random) -> None:
    at_once([lambda: _post(service, own_decision(error=["oom", "no room"]))] * 10)


def _fatal(service: Pair, _dice: random.Random) -> None:
    _post(service, own_decision(error=["fatal", "as scripted"]))


def _storm(service: Pair, dice: random.Random) -> None:
    """Callers that leave: before, in and after their body, politely or with a reset."""

    def leave() -> None:
        with contextlib.suppress(*GONE):
            data = whole(own_decision(sleep_s=0.02))
            wire = Wire(service).send(data[: dice.randrange(1, len(data) + 1)])
            time.sleep(0.2 * dice.random())  # they leave at any moment
            wire.reset() if dice.random() < 0.5 else wire.close()

    for _ in range(5):
        at_once([leave] * 16)


def _oversize(service: Pair, dice: random.Random) -> None:
    def send() -> None:
        size = dice.randrange(2 << 20, 8 << 20)
        with contextlib.suppress(*GONE):
            service.post("/decide", b" " * size, {"Authorization": f"Bearer {dice.choice([TOKEN, 'no'])}"})

    at_once([send] * 6)


def _http_garbage(service: Pair, dice: random.Random) -> None:
    for _ in range(40):
        with contextlib.suppress(*GONE), Wire(service) as wire:
            prefix = dice.choice([b"", head("/decide", 100), b"GET /health HTTP/1.1\r\n", b"\x16\x03\x01"])
            wire.send(prefix + dice.randbytes(dice.randrange(1, 300)))


def _wire_garbage(service: Pair, dice: random.Random) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.DEALER) as stranger:
        stranger.linger = 500
        stranger.connect(f"ipc://{service.dir}/scorer.sock")
        for _ in range(500):
            frames = [dice.randbytes(dice.randrange(60)) for _ in range(dice.choice([1, 2, 3, 4, 40]))]
            with contextlib.suppress(zmq.Again):
                stranger.send_multipart([b"", *frames], zmq.DONTWAIT)
    context.term()


def _burst(service: Pair, _dice: random.Random) -> None:
    at_once([lambda: _post(service, own_decision(sleep_s=0.01))] * 48)


FAULTS = (
    Kind("SIGKILL of a web worker", _kill_worker, cuts=True),
    Kind("SIGKILL of the gunicorn master", _ends("web", signal.SIGKILL), cuts=True),
    Kind("SIGTERM of the web tier", _ends("web", signal.SIGTERM), cuts=True),
    Kind("SIGHUP of the web tier", _reload, retires=True),
    Kind("SIGKILL of the scorer", _ends("scorer", signal.SIGKILL)),
    Kind("SIGTERM of the scorer", _ends("scorer", signal.SIGTERM)),
    Kind("SIGSTOP, then SIGCONT of the scorer", _freeze),
    Kind("a call that hangs", _hang, scripted=True),
    Kind("out of memory", _memory, scripted=True),
    Kind("a fatal device error", _fatal, scripted=True),
    Kind("callers that leave", _storm),
    Kind("bodies of 2 to 8 MiB", _oversize),
    Kind("garbage instead of HTTP", _http_garbage),
    Kind("garbage at the scorer's socket", _wire_garbage),
    Kind("three times as many callers as slots", _burst),
)
