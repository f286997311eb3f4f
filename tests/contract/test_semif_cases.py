"""The twenty cases of wire/semif.md §7, by number. ``served`` where the case is about HTTP itself.

One case differs from the page, because the design has settled it since: an empty ``images`` list counts as absent (20).
"""

from __future__ import annotations

import http.client
import json
import math
import socket
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from tests.contract.helpers import (
    ROUTES,
    assert_error,
    assert_refused,
    changed,
    hooked,
    ordered,
    set_probabilities,
    shared,
)
from tests.harness import BEARER, TOKEN, Local, Pair, pair, strict_json, wait_for

CASE_1: dict[str, Any] = {
    "id": "route-1",
    "state": "Customer cannot log in.",
    "question": "Which queue?",
    "options": [{"id": "access", "description": "Account access."}, {"id": "billing", "description": "Billing."}],
}
CALL_1 = {
    "state": "Customer cannot log in.",
    "questions": {
        "q": {
            "type": "choice",
            "instructions": "Which queue?",
            "criteria": {"access": "Account access.", "billing": "Billing."},
        }
    },
}


def given(decision_id: str, ids: str, **more: Any) -> dict[str, Any]:
    """``O(a,b,...)`` of the page: options with those ids and descriptions ``desc a``, ..."""
    options = [{"id": one, "description": f"desc {one}"} for one in ids]
    return {"id": decision_id, "question": "Which?", "options": options, **more}


def still_fine(service: Local) -> None:
    assert service.post("/decide", CASE_1)[0] == 200


def test_case_01_plain(service: Local) -> None:
    status, result = service.post("/decide", CASE_1)
    assert status == 200
    assert ordered(service.engine.calls) == ordered([CALL_1])
    assert result["option_ids"] == ["access", "billing"]
    assert result["probabilities"] == pytest.approx([2 / 3, 1 / 3], abs=1e-4)
    assert result["top"] == "access"
    assert result["confidence"] == pytest.approx(0.6667, abs=1e-4)
    assert result["call"] == {"index": 0, "field": "q", "questions": 1}
    assert result["total_seconds"] >= 0
    assert result["forward_seconds"] >= 0
    assert "option_logits" not in result
    assert ordered(result["native"]) == ordered(service.engine.answers[0]["answers"]["q"])


def test_case_02_key_order_and_unicode(service: Local) -> None:
    body = {**given("d", "ba"), "state": {"z": 1, "a": ["\u00e9", None, True]}}
    assert service.post("/decide", body)[0] == 200
    [call] = service.engine.calls
    assert ordered(call["state"]) == [("z", 1), ("a", ["\u00e9", None, True])]
    assert list(call["questions"]["q"]["criteria"]) == ["b", "a"]


def test_case_03_no_leakage(service: Local) -> None:
    body = changed(CASE_1, label="access", provenance={"secret": "x"})
    body["options"][0]["weight"] = 3
    assert service.post("/decide", body)[0] == 200
    assert ordered(service.engine.calls) == ordered([CALL_1])
    assert "route-1" not in json.dumps(service.engine.calls)


def test_case_04_loose_strings(service: Local) -> None:
    options = [{"id": "", "description": ""}, {"id": "x", "description": "X"}]
    assert service.post("/decide", changed(CASE_1, options=options, question=" "))[0] == 200


A, B = CASE_1["options"]


@pytest.mark.parametrize(
    "body",
    [
        {name: value for name, value in CASE_1.items() if name != "options"},
        changed(CASE_1, options=[A]),
        changed(CASE_1, options=[{"id": str(i), "description": "d"} for i in range(17)]),
        changed(CASE_1, options=[A, A]),
        changed(CASE_1, options=[A, {"id": "billing"}]),
        changed(CASE_1, options=[A, {**B, "description": None}]),
        changed(CASE_1, options=[A, "billing"]),
        changed(CASE_1, id=""),
        changed(CASE_1, id=7),
        changed(CASE_1, question=""),
        *(changed(CASE_1, state=state) for state in ("", {}, [], None, 5, True)),
        [],
        "x",
        b"",
    ],
)
def test_case_05_shape_errors(service: Local, body: Any) -> None:
    assert_refused(service, "/decide", body)
    assert service.engine.prepared == 0


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
def test_case_06_non_finite(service: Local, path: str, number: bytes) -> None:
    text = json.dumps(changed(ROUTES[path], state={"v": "HERE"})).encode().replace(b'"HERE"', number)
    assert_refused(service, path, text)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b"{not json",
        b'{"state":"\xff"}',
        b"[" * 200_000,
        b'{"state":[' + b"7" * 5000 + b"]}",
        b'{"state":"\\ud800"}',
    ],
    ids=["not json", "invalid UTF-8", "200000 brackets", "5000 digits", "lone surrogate"],
)
def test_case_07_hostile_json(service: Local, path: str, body: bytes) -> None:
    assert_refused(service, path, body)
    still_fine(service)


def test_case_08_17_decisions(service: Local) -> None:
    status, answer = service.post("/decide/shared", shared(*(given(f"d{i}", "ab") for i in range(1, 18))))
    assert status == 200
    names = [list(call["questions"]) for call in service.engine.calls]
    assert names == [[f"q{i}" for i in range(1, 17)], ["q"]]
    assert answer["results"][16]["call"] == {"index": 1, "field": "q", "questions": 1}
    assert [result["id"] for result in answer["results"]] == [f"d{i}" for i in range(1, 18)]
    timing = answer["timing"]
    assert (timing["batch_size"], timing["calls"], timing["questions_per_call"]) == (17, 2, [16, 1])
    assert len(timing["input_tokens"]) == 2
    assert not set(timing) & {
        "prefix_tokens",
        "prefill_seconds",
        "replicate_seconds",
        "suffix_forward_seconds",
        "true_suffix_tokens",
        "padded_suffix_tokens",
        "encode_seconds",
    }


def test_case_09_40_decisions(service: Local) -> None:
    status, answer = service.post("/decide/shared", shared(*(given(f"d{i}", "ab") for i in range(1, 41))))
    assert status == 200
    assert answer["timing"]["questions_per_call"] == [16, 16, 8]
    assert next(iter(service.engine.calls[1]["questions"])) == "q1"
    assert answer["results"][32]["call"] == {"index": 2, "field": "q1", "questions": 8}


@pytest.mark.parametrize("decisions", [[given("d", "ab")] * 2, [], {}])
def test_case_10_duplicate_decision_ids_or_an_empty_list(service: Local, decisions: Any) -> None:
    assert_refused(service, "/decide/shared", {"state": "s", "decisions": decisions})


def test_case_11_rotations_cancel(service: Local) -> None:
    body = {**given("route-1", "abc"), "state": "s"}
    service.post("/decide", body)
    plain, service.engine.calls = service.engine.calls[0], []
    status, result = service.post("/decide", {**body, "orderings": "rotations"})
    assert status == 200
    assert [list(call["questions"]) for call in service.engine.calls] == [["q"]] * 3
    assert {next(iter(call["questions"]["q"]["criteria"])) for call in service.engine.calls} == {"a", "b", "c"}
    assert [one["id"] for one in result["orderings"]] == ["route-1#o0", "route-1#o1", "route-1#o2"]
    assert ordered(service.engine.calls[0]) == ordered(plain)
    combined = result["combined"]
    assert len(set(combined["probabilities"])) == 1
    assert combined["probabilities"][0] == pytest.approx(1 / 3)
    assert combined["top"] == "a"
    assert combined["agreement"] == 1 / 3
    for spread in combined["spread"]:
        assert spread == {"min": pytest.approx(0.1), "max": pytest.approx(0.6)}


def test_case_12_all(service: Local) -> None:
    assert len(service.post("/decide", {**given("d", "ab"), "state": "s", "orderings": "all"})[1]["orderings"]) == 2
    orders = [
        one["option_ids"]
        for one in service.post("/decide", {**given("d", "abcd"), "state": "s", "orderings": "all"})[1]["orderings"]
    ]
    assert len(orders) == len({tuple(order) for order in orders}) == 24
    assert orders[0] == list("abcd")
    assert_refused(service, "/decide", {**given("d", "abcde"), "state": "s", "orderings": "all"})


def test_case_13_mixed_waves(service: Local) -> None:
    x, y, z = given("X", "abc"), given("Y", "ab"), given("Z", "ab")
    plain = service.post("/decide/shared", shared(x, y, z))[1]
    first, service.engine.calls = service.engine.calls[0], []
    mixed = service.post("/decide/shared", shared({**x, "orderings": "rotations"}, y, {**z, "orderings": "all"}))[1]
    assert mixed["timing"]["batch_size"] == 6
    assert mixed["timing"]["questions_per_call"] == [3, 2, 1]
    inner = {one["id"]: one["call"] for result in mixed["results"] for one in result.get("orderings", [])}
    assert inner["X#o1"] == {"index": 1, "field": "q1", "questions": 2}
    assert inner["Z#o1"] == {"index": 1, "field": "q2", "questions": 2}
    assert inner["X#o2"] == {"index": 2, "field": "q", "questions": 1}
    assert ordered(service.engine.calls[0]) == ordered(first)
    assert json.dumps(mixed["results"][1]) == json.dumps(plain["results"][1])


def test_case_14_row_cap(service: Local) -> None:
    rotated = [given(f"d{i}", "abcdefghijklmnop", orderings="rotations") for i in range(4)]
    assert service.post("/decide/shared", shared(*rotated))[0] == 200
    assert_refused(service, "/decide/shared", shared(*rotated, given("e", "ab")))


def test_case_14_row_cap_of_2_holds_on_decide() -> None:
    with hooked(MAX_DECISIONS="2") as service:
        assert_refused(service, "/decide", {**given("d", "abc"), "state": "s", "orderings": "rotations"})


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (({"a": 0.8, "b": 0.2}, {"a": 0.5, "b": 0.5}), [2 / 3, 1 / 3]),
        (({"a": 1.0, "b": 0.0}, {"a": 0.9, "b": 0.1}), [1.0, 3.33e-151]),
    ],
)
def test_case_15_geometric_mean_and_floor(
    service: Local, rows: tuple[dict[str, float], ...], expected: list[float]
) -> None:
    left = list(rows)
    service.engine.edit = lambda answer: set_probabilities(answer, left.pop(0))
    status, result = service.post("/decide", {**given("d", "ab"), "state": "s", "orderings": "all"})
    assert status == 200
    assert result["combined"]["probabilities"] == pytest.approx(expected, rel=2e-3, abs=1e-160)
    if expected[1] > 0.1:
        assert result["combined"]["probabilities"] == pytest.approx(expected, abs=1e-12)
    assert all(map(math.isfinite, result["combined"]["probabilities"]))


def test_case_16_ties(service: Local) -> None:
    tie = {"b": 0.4, "a": 0.4, "c": 0.2}
    service.engine.edit = lambda answer: set_probabilities(answer, tie)
    assert service.post("/decide", {**given("d", "bac"), "state": "s"})[1]["top"] == "a"
    combined = service.post("/decide", {**given("d", "bac"), "state": "s", "orderings": "rotations"})[1]["combined"]
    assert (combined["top"], combined["agreement"]) == ("b", 0)


def test_case_17_broken_engine_answers(service: Local) -> None:
    def failing(status: int, code: str, script: dict[str, Any]) -> str:
        message = assert_error(service.post("/decide", changed(CASE_1, state={"fake": script})), status, code)
        still_fine(service)
        return message

    failing(500, "scoring_failed", {"drop_option": True})
    failing(500, "scoring_failed", {"nan": True})
    text = "Example has 9000 tokens, above 8192; truncation is forbidden"
    assert text in failing(422, "invalid_request", {"error": ["value", text]})
    failing(503, "out_of_memory", {"error": ["runtime", "CUDA out of memory. Tried"]})
    failing(500, "scoring_failed", {"error": ["runtime", "something else"]})


@pytest.mark.parametrize("header", [None, b"Bearer wrong", b"Basic " + TOKEN.encode(), b"Bearer caf\xe9"])
def test_case_18_auth(served: Pair, header: bytes | None) -> None:
    line = b"" if header is None else b"Authorization: " + header + b"\r\n"
    body = json.dumps(CASE_1).encode()
    reply = served.raw(
        b"POST /decide HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        + line
        + b"Content-Length: %d\r\n\r\n" % len(body)
        + body
    )
    assert reply.startswith(b"HTTP/1.1 401 "), reply[:100]
    assert_error((401, strict_json(reply.partition(b"\r\n\r\n")[2])), 401, "unauthorized")
    status, _, health = served.request("GET", "/health", headers={})
    assert (status, health["workloads"], health["max_questions_per_call"]) == (200, [], 16)


@pytest.mark.parametrize("path", ["/decide", "/decide/shared"])
def test_case_18_workload(service: Local, path: str) -> None:
    assert service.post(path, changed(ROUTES[path], workload=None))[0] == 200
    for workload in ("", False, 0, "wanli"):
        assert_refused(service, path, changed(ROUTES[path], workload=workload))


@pytest.fixture(scope="module")
def one_slot() -> Iterator[Pair]:
    with pair(MAX_QUEUE="1") as service:
        yield service


def answer_of(connection: socket.socket) -> tuple[int, Any]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, strict_json(response.read())


HEAD = f"POST /decide HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode()


def test_case_19_limits(one_slot: Pair) -> None:
    port = one_slot.port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(HEAD + b"Content-Length: 2097152\r\n\r\n")
        assert_error(answer_of(connection), 413, "request_too_large")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(17):
            connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        assert_error(answer_of(connection), 413, "request_too_large")
    reply = one_slot.raw(HEAD + b"Connection: close\r\nContent-Length: \xc2\xb2\r\n\r\n{}", timeout=3)
    assert b" 500 " not in reply.partition(b"\r\n")[0]
    assert one_slot.post("/decide", CASE_1)[0] == 200


def test_case_19_queue(one_slot: Pair) -> None:
    slow = json.dumps(changed(CASE_1, state={"fake": {"sleep_s": 1.0}})).encode()
    with (
        socket.create_connection(("127.0.0.1", one_slot.port), timeout=10) as blocked,
        socket.create_connection(("127.0.0.1", one_slot.port), timeout=10) as refused,
    ):
        blocked.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(slow) + slow)
        wait_for(lambda: one_slot.slots_in_use() == 1, what="the blocked request")
        refused.sendall(HEAD + b"Content-Length: 300\r\n\r\n")  # its body is never sent
        assert_error(answer_of(refused), 429, "busy")
        assert one_slot.request("GET", "/health")[0] == 200
        assert answer_of(blocked)[0] == 200


SYSTEM_ONE = {
    "state": {"t": "x"},
    "model": "jev-latest",
    "questions": {
        "u": {"type": "noul", "instructions": "Urgent?"},
        "d": {"type": "choice", "instructions": "Team?", "criteria": {"billing": "B", "tech": None}},
        "s": {"type": "score", "instructions": "How bad?", "criteria": ["low", "high"]},
    },
}


def test_case_20_system_one(native: Local) -> None:
    status, answer = native.post("/v1/systemone", SYSTEM_ONE)
    assert status == 200
    assert ordered(native.engine.calls) == ordered([{name: SYSTEM_ONE[name] for name in ("state", "questions")}])
    assert answer["answers"] == native.engine.answers[0]["answers"]
    assert answer["model"] == "fake@0"
    native.engine.reset()
    many = {f"q{i}": SYSTEM_ONE["questions"]["u"] for i in range(17)}
    assert_refused(native, "/v1/systemone", changed(SYSTEM_ONE, questions=many))
    assert "images not supported" in assert_refused(native, "/v1/systemone", changed(SYSTEM_ONE, images=["x"]))
    odd = deepcopy(SYSTEM_ONE)
    odd["questions"]["u"]["type"] = ["noul"]
    assert_refused(native, "/v1/systemone", odd)
    assert_refused(native, "/v1/systemone", json.dumps(SYSTEM_ONE).replace('"d":', '"u":').encode())
    assert native.engine.prepared == 0


# The page's further cases, and what its §5 asks for.


@pytest.mark.parametrize("state", ["Did they say (really)?", {"a": {"b": {"c": {}}}}, [[{}]], '{"a": {"b": "}"}}'])
def test_states_that_semifs_shared_mode_refused_are_served_by_both_endpoints(service: Local, state: Any) -> None:
    assert service.post("/decide", {**given("d", "ab"), "state": state})[0] == 200
    assert service.post("/decide/shared", shared(given("d", "ab"), given("e", "ab"), state=state))[0] == 200
    assert [call["state"] for call in service.engine.calls] == [state] * 2


def test_a_client_that_offers_an_h2c_upgrade_is_answered_over_http_1(served: Pair) -> None:
    headers = {
        **BEARER,
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    }
    assert served.request("POST", "/decide", CASE_1, headers)[0] == 200
