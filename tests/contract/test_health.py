"""``GET /health``: contract § Endpoints, § Discovery, INV-2."""

from __future__ import annotations

from typing import Any

import pytest

from shared.rundir import RunDir
from shared.slots import SlotTable
from tests.contract.helpers import hooked
from tests.harness import D1, Local
from web.app import create_app

#: The contract's own rows.
CONTRACT = {
    "status",
    "model",
    "vram_cap_gib",
    "max_tokens",
    "max_decisions",
    "max_questions_per_call",
    "chunking",
    "workloads",
    "endpoints",
    "systemone",
}


def health(service: Local) -> dict[str, Any]:
    response = service.client.get("/health")
    assert response.status_code == 200
    assert response.mimetype == "application/json"
    return dict(response.json)


def test_health_has_every_field_of_the_contract(service: Local) -> None:
    found = health(service)
    assert set(found) >= CONTRACT
    assert found["status"] == "ok"
    assert found["workloads"] == []
    assert found["max_questions_per_call"] == 16
    assert found["max_tokens"] == 8192
    assert found["max_decisions"] == 64
    assert found["vram_cap_gib"] is None
    assert isinstance(found["model"], dict)
    assert isinstance(found["chunking"], str)
    assert "16" in found["chunking"]
    assert "semif_commit" not in found


def test_health_names_the_endpoints_of_the_contract_and_openais(service: Local) -> None:
    assert health(service)["endpoints"] == ["/decide", "/decide/shared", "/v1/systemone", "/v1/decisions"]


def test_health_lists_decisions_with_its_limits_and_the_cap_in_force(service: Local) -> None:
    found = health(service)
    assert found["decisions"] == {
        "max_questions": 400,
        "max_options": 255,
        "max_levels": 10,
        "images": "not supported",
        "max_tokens": 8192,
        "max_request_tokens": None,
    }
    assert (found["max_concurrent_decisions"], found["decisions_in_progress"]) == (0, None)
    with hooked(MAX_CONCURRENT_DECISIONS="3") as capped:
        found = health(capped)
        assert (found["max_concurrent_decisions"], found["decisions_in_progress"]) == (3, 0)


def test_health_lists_systemone_as_the_contract_says_in_the_native_profile(native: Local) -> None:
    found = health(native)["systemone"]
    contract = {"max_questions": 16, "chunking": "none", "images": "not supported", "max_tokens": 8192}
    assert {name: found.get(name) for name in contract} == contract


def test_health_lists_systemone_with_the_limits_of_the_jev_profile(service: Local) -> None:
    found = health(service)["systemone"]
    assert (found["max_options"], found["max_levels"], found["images"]) == (255, 10, "not supported")
    assert found["max_questions"] > 16


def test_health_shows_the_settings_in_force() -> None:
    with hooked(MAX_TOKENS="77", MAX_DECISIONS="5", MAX_QUEUE="3") as service:
        found = health(service)
        assert (found["max_tokens"], found["max_decisions"]) == (77, 5)
        assert found["systemone"]["max_tokens"] == 77


def test_the_model_of_health_is_the_model_of_the_results(service: Local) -> None:
    assert health(service)["model"] == service.post("/decide", D1)[1]["model"]


def test_health_takes_no_slot_and_reaches_no_engine(service: Local) -> None:
    found = health(service)
    assert found["slots_in_use"] == 0
    assert service.engine.prepared == 0


def test_health_is_not_ok_without_a_scorer(service: Local) -> None:
    directory = service.dir / "empty"
    directory.mkdir(mode=0o750)
    settings = type(service.web_settings)(**{**vars(service.web_settings), "run_dir": directory})
    app = create_app(settings, slots=SlotTable(RunDir(directory).slots, 4))
    response = app.test_client().get("/health")
    assert response.status_code == 503
    assert response.json["error"]["code"] == "scorer_unavailable"
    assert "status" not in response.json


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_health_is_get_only(service: Local, method: str) -> None:
    response = service.client.open("/health", method=method)
    assert response.status_code == 405
    assert response.json["error"]["code"] == "method_not_allowed"
    assert "GET" in response.headers["Allow"]
