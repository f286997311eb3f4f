"""Contract § Endpoints and § Tests, Validation: SemIf's rules; a violation is a 422 and costs no forward pass."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.helpers import ROUTES, assert_error, assert_refused, changed, shared, without
from tests.harness import D1, SHARED1, Local, decision

A, B = D1["options"]


def options(count: int) -> list[dict[str, str]]:
    return [{"id": f"o{i}", "description": f"desc {i}"} for i in range(count)]


BAD_DECISIONS: dict[str, dict[str, Any]] = {
    "id missing": without(D1, "id"),
    "question missing": without(D1, "question"),
    "options missing": without(D1, "options"),
    "id empty": changed(D1, id=""),
    "id a number": changed(D1, id=7),
    "id null": changed(D1, id=None),
    "id true": changed(D1, id=True),
    "id a list": changed(D1, id=["d1"]),
    "question empty": changed(D1, question=""),
    "question null": changed(D1, question=None),
    "question a number": changed(D1, question=5),
    "question an object": changed(D1, question={"a": "b"}),
    "options null": changed(D1, options=None),
    "options an object": changed(D1, options={"a": "A", "b": "B"}),
    "options a string": changed(D1, options="ab"),
    "no option": changed(D1, options=[]),
    "1 option": changed(D1, options=[A]),
    "17 options": changed(D1, options=options(17)),
    "duplicate option ids": changed(D1, options=[A, B, {**A, "description": "another"}]),
    "option null": changed(D1, options=[A, None]),
    "option a string": changed(D1, options=[A, "tech"]),
    "option a list": changed(D1, options=[A, ["tech", "Bugs"]]),
    "option without id": changed(D1, options=[A, without(B, "id")]),
    "option without description": changed(D1, options=[A, without(B, "description")]),
    "option id a number": changed(D1, options=[A, {**B, "id": 1}]),
    "option id null": changed(D1, options=[A, {**B, "id": None}]),
    "description null": changed(D1, options=[A, {**B, "description": None}]),
    "description a number": changed(D1, options=[A, {**B, "description": 5}]),
    "description true": changed(D1, options=[A, {**B, "description": True}]),
    "description an object": changed(D1, options=[A, {**B, "description": {}}]),
    "workload": changed(D1, workload="wanli"),
    "workload empty": changed(D1, workload=""),
    "workload false": changed(D1, workload=False),
    "workload 0": changed(D1, workload=0),
    "workload an empty list": changed(D1, workload=[]),
}
BAD_STATES: dict[str, Any] = {
    "empty string": "",
    "empty object": {},
    "empty array": [],
    "null": None,
    "number": 5,
    "zero": 0,
    "true": True,
    "false": False,
}


@pytest.mark.parametrize("body", BAD_DECISIONS.values(), ids=BAD_DECISIONS)
def test_decide_refuses(service: Local, body: dict[str, Any]) -> None:
    assert_refused(service, "/decide", body)


@pytest.mark.parametrize("body", BAD_DECISIONS.values(), ids=BAD_DECISIONS)
@pytest.mark.parametrize("position", [0, 2])
def test_decide_shared_refuses_whichever_decision_is_bad(service: Local, body: dict[str, Any], position: int) -> None:
    decisions = [decision("first", "ab"), decision("last", "ab")]
    decisions.insert(position, without(body, "state"))
    message = assert_refused(service, "/decide/shared", shared(*decisions))
    assert f"decisions.{position}" in message, "the message does not say which decision"


@pytest.mark.parametrize("path", ["/decide", "/decide/shared"])
@pytest.mark.parametrize("state", BAD_STATES.values(), ids=BAD_STATES)
def test_state_must_be_a_nonempty_string_object_or_array(service: Local, path: str, state: Any) -> None:
    assert_refused(service, path, changed(ROUTES[path], state=state))


@pytest.mark.parametrize("path", ["/decide", "/decide/shared"])
def test_state_is_required(service: Local, path: str) -> None:
    assert_refused(service, path, without(ROUTES[path], "state"))


@pytest.mark.parametrize("path", ["/decide", "/decide/shared"])
@pytest.mark.parametrize("state", ["  ", [0], [""], [[]], {"a": None}, {"": ""}, "0", "null"])
def test_states_that_only_look_empty_are_taken(service: Local, path: str, state: Any) -> None:
    assert service.post(path, changed(ROUTES[path], state=state))[0] == 200
    assert json.dumps(service.engine.calls[0]["state"]) == json.dumps(state)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("where", ["in the state", "in a name nobody reads"])
def test_every_body_must_be_finite_json(service: Local, path: str, number: str, where: str) -> None:
    marked = changed(ROUTES[path], **({"state": {"v": [0]}} if where == "in the state" else {"unread": [0]}))
    text = json.dumps(marked).replace("[0]", f"[{number}]")
    assert number in text
    assert_refused(service, path, text.encode())


@pytest.mark.parametrize("decisions", [[], {}, "x", None, 5, [None], [[]], ["d1"]])
def test_decisions_must_be_a_nonempty_list_of_objects(service: Local, decisions: Any) -> None:
    assert_refused(service, "/decide/shared", {"state": "s", "decisions": decisions})


def test_decisions_are_required(service: Local) -> None:
    assert_refused(service, "/decide/shared", {"state": "s"})


def test_decision_ids_are_unique_within_a_request(service: Local) -> None:
    assert_refused(service, "/decide/shared", shared(decision("d", "ab"), decision("e", "ab"), decision("d", "xy")))


def test_ids_differ_by_case_and_by_every_character(service: Local) -> None:
    ids = ["d", "D", "d ", "\u00e9", "e\u0301", "d#o0"]
    status, answer = service.post("/decide/shared", shared(*(decision(one, ["x", "X", "x "]) for one in ids)))
    assert status == 200
    assert [result["id"] for result in answer["results"]] == ids


def test_an_inner_id_may_collide_with_another_decisions_id(service: Local) -> None:
    body = shared(decision("d", "ab", orderings="rotations"), decision("d#o0", "ab"))
    assert [result["id"] for result in service.post("/decide/shared", body)[1]["results"]] == ["d", "d#o0"]


@pytest.mark.parametrize("count", [2, 16])
def test_2_and_16_options_are_taken(service: Local, count: int) -> None:
    status, result = service.post("/decide", changed(D1, options=options(count)))
    assert status == 200
    assert len(result["probabilities"]) == count


@pytest.mark.parametrize("path", ["/decide", "/decide/shared"])
def test_option_ids_and_descriptions_may_be_empty_and_texts_blank(service: Local, path: str) -> None:
    loose = {"id": " ", "question": " ", "options": [{"id": "", "description": ""}, {"id": " ", "description": " "}]}
    body = {**loose, "state": "s"} if path == "/decide" else shared(loose)
    assert service.post(path, body)[0] == 200
    assert service.engine.calls[0]["questions"]["q"]["criteria"] == {"": "", " ": " "}


@pytest.mark.parametrize("text", ["5", "true", "null", "\U0001f3af", "\u202e", "\x00", "a\nb", "</think>"])
def test_strings_are_passed_and_echoed_unchanged(service: Local, text: str) -> None:
    body = {"id": text, "state": text, "question": text, "options": [{"id": text, "description": text}, B]}
    status, result = service.post("/decide", body)
    assert status == 200
    assert (result["id"], result["option_ids"]) == (text, [text, "tech"])
    [call] = service.engine.calls
    assert call["state"] == text
    assert call["questions"]["q"]["instructions"] == text
    assert next(iter(call["questions"]["q"]["criteria"].items())) == (text, text)


@pytest.mark.parametrize("path", ["/decide", "/decide/shared"])
def test_workload_null_counts_as_absent(service: Local, path: str) -> None:
    assert service.post(path, changed(ROUTES[path], workload=None))[0] == 200


@pytest.mark.parametrize("workload", ["wanli", "", False, 0, [], {}])
def test_any_non_null_workload_is_422_at_the_top_of_decide_shared_and_inside_a_decision(
    service: Local, workload: Any
) -> None:
    assert_refused(service, "/decide/shared", changed(SHARED1, workload=workload))
    assert_refused(service, "/decide/shared", shared(decision("d", "ab", workload=workload)))


NOT_A_REQUEST: dict[str, bytes] = {
    "empty": b"",
    "white space": b" \n",
    "array": b"[]",
    "string": b'"x"',
    "number": b"5",
    "null": b"null",
    "true": b"true",
    "an open brace": b"{",
    "two values": b'{"a":1}{"b":2}',
    "no JSON": b"{not json",
    "single quotes": b"{'a':1}",
    "a trailing comma": b'{"a":1,}',
    "a comment": b'{"a":1}//',
    "not UTF-8": b'{"state":"\xe9"}',
    "a NUL byte": b"\x00",
    "an empty object": b"{}",
    "a form": b"a=1&b=2",
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("body", NOT_A_REQUEST.values(), ids=NOT_A_REQUEST)
def test_malformed_json_and_other_shapes_are_422(service: Local, path: str, body: bytes) -> None:
    assert_refused(service, path, body)


@pytest.mark.parametrize("path", ROUTES)
def test_a_value_error_of_the_engine_is_422_with_its_message(service: Local, path: str) -> None:
    state = {"fake": {"prepare_error": ["value", "Example has 9000 tokens, above 8192; truncation is forbidden"]}}
    message = assert_refused(service, path, changed(ROUTES[path], state=state))
    assert "Example has 9000 tokens, above 8192; truncation is forbidden" in message


def test_all_problems_of_a_body_are_reported(service: Local) -> None:
    message = assert_refused(
        service, "/decide", {"id": "", "question": 5, "options": [A, {"id": 1, "description": None}]}
    )
    for name in ("id", "question", "state", "options.1.id", "options.1.description"):
        assert name in message


@pytest.mark.parametrize("path", ["/decide", "/decide/shared"])
def test_the_error_body_of_the_semif_surface_is_exactly_the_contracts(service: Local, path: str) -> None:
    answer = service.post(path, b"[]")
    assert_error(answer, 422, "invalid_request")
    assert set(answer[1]) == {"error"}
