"""Every answer of the service is one that the OpenAPI document has, with no name that it does not tell of."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract import openai_shape
from tests.contract.helpers import hooked
from tests.harness import BEARER, D1, S1, SHARED1, Local, decision, strict_json
from tests.openapi import check_response, operations


def exchange(
    service: Local, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """One request whose answer is held against the document; status and body."""
    sent = {} if body is None else {"data": body} if isinstance(body, bytes) else {"json": body}
    response = service.client.open(path, method=method, headers=BEARER if headers is None else headers, **sent)
    parsed = strict_json(response.data)
    check_response(method, path, response.status_code, dict(response.headers), parsed)
    return response.status_code, parsed


BODIES = [
    ("/decide", D1),
    ("/decide", {**D1, "orderings": "rotations"}),
    ("/decide", {**D1, "orderings": "all"}),
    ("/decide/shared", SHARED1),
    ("/decide/shared", {"state": "s", "decisions": [decision("a", "xyz", orderings="all"), decision("b", "xy")]}),
    ("/v1/systemone", S1),
    ("/v1/decisions", openai_shape.body(openai_shape.P, openai_shape.choice("a", True), openai_shape.score("l", "h"))),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
@pytest.mark.parametrize("profile", ["service", "native"])
def test_a_result_is_as_documented(path: str, body: Any, profile: str, request: pytest.FixtureRequest) -> None:
    assert exchange(request.getfixturevalue(profile), "POST", path, body)[0] == 200


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/openapi.json"])
def test_what_is_read_is_as_documented(service: Local, path: str) -> None:
    assert exchange(service, "GET", path)[0] == 200


def of_route(path: str, status: int) -> int:
    """OpenAI's clients know a bad body as a 400."""
    return 400 if path == "/v1/decisions" and status == 422 else status


def scripted(body: dict[str, Any], **script: Any) -> dict[str, Any]:
    """The body with a state that the fake engine obeys."""
    state = {"fake": script}
    return (
        {**body, "input": [openai_shape.user(openai_shape.data(state))]}
        if "input" in body
        else {**body, "state": state}
    )


POSTS = [path for method, path, _ in operations() if method == "POST"]
REFUSED = [
    (b"{", {}, 422),
    (b"[]", {}, 422),
    (b"{}", {}, 422),
    (b"{}", {"Content-Encoding": "br"}, 415),
    (b"{}", {"Content-Type": "multipart/form-data"}, 415),
    (b'{"model":"m","input":"x","questions":[]}', {}, 422),
    (b" " * (1 << 20) + b"{}", {}, 413),
    (b"{}", {"Authorization": "Bearer no"}, 401),
]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(("body", "headers", "status"), REFUSED)
def test_a_refusal_is_as_documented(
    service: Local, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    assert exchange(service, "POST", path, body, {**BEARER, **headers})[0] == of_route(path, status)


FAULTS = [("value", 422), ("oom", 503), ("runtime", 500)]


@pytest.mark.parametrize(("path", "body"), [BODIES[0], *BODIES[3:]])
@pytest.mark.parametrize(("kind", "status"), FAULTS)
def test_a_failure_is_as_documented(service: Local, path: str, body: Any, kind: str, status: int) -> None:
    assert exchange(service, "POST", path, scripted(body, error=[kind, "why"]))[0] == of_route(path, status)


def test_a_scorer_that_is_gone_and_a_budget_that_is_over_are_as_documented() -> None:
    with hooked(REQUEST_BUDGET_S="0.2") as service:
        for path, body in BODIES[3:]:
            assert exchange(service, "POST", path, scripted(body, sleep_s=0.5))[0] == 504
        service.broker.stop()
        service._thread.join(10)
        for method, path, operation in operations():
            body = dict(BODIES).get(path)
            if "503" in operation["responses"]:
                assert exchange(service, method, path, body)[0] == 503


def test_a_strict_server_refuses_an_unknown_model_as_documented() -> None:
    with hooked(STRICT_MODEL="1") as service:
        for path, body in BODIES[5:]:
            status, answer = exchange(service, "POST", path, {**body, "model": "nobody's"})
            assert (status, answer["error"]["code"]) == (404, "model_not_found")
