"""``GET /ready`` of real processes (architecture.md §1.7; failure tests 10, 14)."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.harness import D1, pair, wait_for
from tests.process.support import NOISE, Background, Wire, head, kill, slow, wait_running

pytestmark = pytest.mark.timeout(90)


def test_ready_follows_the_scorer_through_load_and_death() -> None:
    with pair(start=False) as service:
        service.start_web()
        wait_for(lambda: service.request("GET", "/ready")[0] == 503, 2 * NOISE, "an answer without a scorer")
        service.script(load_sleep_s=2)
        service.start_scorer()
        wait_for(lambda: "loading" in str(service.request("GET", "/ready")[2]), NOISE, "loading")
        wait_for(lambda: service.request("GET", "/ready")[::2] == (200, {"ready": True}), 2 * NOISE, "ready")
        kill(service.scorer)
        status, headers, body = service.request("GET", "/ready")
        assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
        assert "retry-after" in headers


def test_a_worker_that_shuts_down_says_so_on_its_kept_alive_connections() -> None:
    """So a balancer that polls over one connection sends nothing more here; the scorer itself is still fine."""
    with pair(WORKERS="1") as service, Wire(service) as balancer, Wire(service) as observer:
        for wire in (balancer, observer):
            assert wire.send(head("/ready", method="GET")).json() == (200, {"ready": True})
        job = Background(lambda: service.post("/decide", slow(D1, 2.0)))
        wait_running(service)
        assert service.web is not None
        service.web.send_signal(signal.SIGTERM)

        def refusal() -> Any:
            status, body = balancer.send(head("/ready", method="GET")).json()
            return None if status == 200 else (status, body)

        status, body = wait_for(refusal, NOISE, "unready")
        assert (status, body["error"]["code"]) == (503, "scorer_unavailable")
        assert observer.send(head("/health", method="GET")).json()[0] == 200
        assert job.result()[0] == 200
