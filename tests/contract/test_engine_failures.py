"""Contract § Limits and errors, INV-1 and INV-4: what a failing engine looks like to the caller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scorer.engines.base import NonFiniteForward, OutOfMemory
from tests.contract.helpers import ROUTES, assert_error, changed, shared
from tests.harness import BEARER, D1, Local, decision

OOM = {
    "OutOfMemory": OutOfMemory("CUDA out of memory"),
    "a RuntimeError whose first line says so": RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore text"),
    "in another spelling": RuntimeError("CUDA error: Out Of Memory"),
    "MemoryError": MemoryError(),
}
OTHER = {
    "RuntimeError": RuntimeError("boom"),
    "out of memory on the second line only": RuntimeError("boom\nout of memory"),
    "ArithmeticError": ArithmeticError("scaling changed the argmax"),
    "TypeError": TypeError("unhashable"),
    "KeyError": KeyError("q"),
    "AssertionError": AssertionError(),
    "a non-finite forward": NonFiniteForward("a logit is not finite"),
    "an exception without a text": Exception(),
}


def raising(service: Local, error: BaseException) -> None:
    def before(_call: Any) -> None:
        raise error

    service.engine.before = before


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("error", OOM.values(), ids=OOM)
def test_out_of_memory_is_503_out_of_memory_and_the_service_goes_on(
    service: Local, path: str, error: Exception
) -> None:
    good = service.post(path, ROUTES[path])
    raising(service, error)
    assert_error(service.post(path, ROUTES[path]), 503, "out_of_memory")
    service.engine.before = None
    again = service.post(path, ROUTES[path])
    assert (good[0], again[0]) == (200, 200)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("error", OTHER.values(), ids=OTHER)
def test_any_other_failure_is_500_scoring_failed_and_the_service_goes_on(
    service: Local, path: str, error: Exception
) -> None:
    raising(service, error)
    message = assert_error(service.post(path, ROUTES[path]), 500, "scoring_failed")
    assert "boom" not in message
    service.engine.before = None
    assert service.post(path, ROUTES[path])[0] == 200


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("where", ["prepare_error", "error"])
def test_a_value_error_keeps_its_message_and_is_422_wherever_it_was_raised(
    service: Local, path: str, where: str
) -> None:
    message = "Reserved decision marker appears in input evidence"
    body = changed(ROUTES[path], state={"fake": {where: ["value", message]}})
    assert message in assert_error(service.post(path, body), 422, "invalid_request")


TEXTS = {
    "lines": "two\nlines",
    "unicode": "\u00e9 \U0001f3af \x00",
    "14 kB": "a word " * 2000,
    "14 kB that JSON escapes": "\x01" * 14_000,
    "14 kB of 4-byte characters": "\U0001f3af" * 3500,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_value_error_is_422_whatever_its_message_looks_like(service: Local, text: str) -> None:
    body = changed(D1, state={"fake": {"error": ["value", text]}})
    message = assert_error(service.post("/decide", body), 422, "invalid_request")
    assert text[:100] in message


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("oom", 503, "out_of_memory"),
        ("runtime", 500, "scoring_failed"),
        ("non_finite", 500, "scoring_failed"),
        ("value", 422, "invalid_request"),
    ],
)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_failure_in_any_call_makes_the_whole_request_fail(
    service: Local, kind: str, status: int, code: str, index: int
) -> None:
    body = shared(
        *(decision(f"d{i}", "ab") for i in range(40)), state={"fake": {"error": [kind, "x y"], "on_call": index}}
    )
    assert_error(service.post("/decide/shared", body), status, code)
    assert len(service.engine.calls) == index + 1, "calls after the failed one were run"


def test_the_server_does_not_retry_a_call_that_ran_out_of_memory(service: Local) -> None:
    body = changed(D1, state={"fake": {"error": ["oom", "x"]}})
    assert_error(service.post("/decide", body), 503, "out_of_memory")
    assert len(service.engine.calls) == 1


def test_the_engine_is_released_after_every_failure(service: Local) -> None:
    for kind in ("oom", "runtime", "value"):
        released = service.engine.released
        service.post("/decide", changed(D1, state={"fake": {"error": [kind, "x"]}}))
        service.post("/decide", D1)  # the release follows the reply, and comes before the next call
        assert service.engine.released >= released + 1


def test_a_503_says_when_to_come_back(service: Local) -> None:
    body = changed(D1, state={"fake": {"error": ["oom", "x"]}})
    response = service.client.post("/decide", data=json.dumps(body), headers=BEARER)
    assert response.status_code == 503
    assert response.headers["Retry-After"] in "12345"


def test_a_500_on_the_jev_route_has_both_error_shapes(service: Local) -> None:
    body = changed(ROUTES["/v1/systemone"], state={"fake": {"error": ["runtime", "boom"]}})
    answer = service.post("/v1/systemone", body)
    assert_error(answer, 500, "scoring_failed")
    assert answer[1]["detail"]["error_type"] == "internal_error"
    oom = service.post("/v1/systemone", changed(body, state={"fake": {"error": ["oom", "boom"]}}))
    assert_error(oom, 503, "out_of_memory")
    assert oom[1]["detail"]["error_type"] == "overloaded_error"


def test_a_request_that_the_prompt_builder_rejects_never_reaches_the_model(service: Local) -> None:
    decisions = [decision(f"d{i}", "ab") for i in range(40)]
    body = shared(*decisions, state={"fake": {"prepare_error": ["value", "Reserved decision marker"]}})
    assert_error(service.post("/decide/shared", body), 422, "invalid_request")
    assert service.engine.calls == []
