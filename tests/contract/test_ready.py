"""``GET /ready`` (design.md §5; architecture.md §1.7): what a balancer asks."""

from __future__ import annotations

import pytest

from shared.rundir import RunDir
from shared.slots import SlotTable
from tests.contract.helpers import gated, hooked, in_background
from tests.harness import D1, Local
from web.app import create_app
from web.surfaces.ready import STOPPING


def test_ready_is_open_and_says_so_in_one_word(service: Local) -> None:
    response = service.client.get("/ready")
    assert (response.status_code, response.mimetype, response.json) == (200, "application/json", {"ready": True})
    assert "X-Request-ID" in response.headers


def test_ready_takes_no_slot_and_reaches_no_engine(service: Local) -> None:
    assert service.client.get("/ready").status_code == 200
    assert service.engine.prepared == 0


def test_a_full_queue_is_no_reason_to_be_unready() -> None:
    service = Local(MAX_QUEUE="1")
    try:
        slot = SlotTable(RunDir(service.dir).slots, 1).acquire(b"x" * 16)
        assert slot is not None
        with slot:
            assert service.post("/decide", D1)[0] == 429
            assert service.client.get("/ready").status_code == 200
    finally:
        service.close()


def test_ready_is_answered_while_a_call_runs(service: Local) -> None:
    with in_background(service) as post, gated(service) as gate:
        post("/decide", D1)
        gate.wait_entered()
        assert service.client.get("/ready").status_code == 200


def test_not_ready_without_a_scorer(service: Local) -> None:
    directory = service.dir / "nobody"
    directory.mkdir(mode=0o750)
    settings = type(service.web_settings)(**{**vars(service.web_settings), "run_dir": directory})
    response = create_app(settings).test_client().get("/ready")
    assert (response.status_code, response.json["error"]["code"]) == (503, "scorer_unavailable")
    assert int(response.headers["Retry-After"]) > 0
    assert "ready" not in response.json


def test_not_ready_while_the_scorer_drains() -> None:
    with hooked() as service, in_background(service) as post, gated(service) as gate:
        post("/decide", D1)
        gate.wait_entered()
        service.broker.stop()
        response = service.client.get("/ready")
        assert (response.status_code, response.json["error"]["code"]) == (503, "scorer_unavailable")
        assert "draining" in response.json["error"]["message"]


def test_a_worker_that_is_shutting_down_is_not_ready_though_the_scorer_is(service: Local) -> None:
    service.app.extensions[STOPPING] = lambda: True
    try:
        response = service.client.get("/ready")
        assert (response.status_code, response.json["error"]["code"]) == (503, "scorer_unavailable")
        assert service.client.get("/health").status_code == 200
    finally:
        del service.app.extensions[STOPPING]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_ready_is_get_only(service: Local, method: str) -> None:
    assert service.client.open("/ready", method=method).status_code == 405
