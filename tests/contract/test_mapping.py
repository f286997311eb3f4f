"""Contract § Mapping onto the model: what a request becomes before the engine sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.helpers import ordered, shared
from tests.harness import D1, Local, decision


def names(service: Local) -> list[list[str]]:
    """The field names of each call, in the order the calls ran."""
    return [list(call["questions"]) for call in service.engine.calls]


def fields(size: int) -> list[str]:
    return [f"q{number}" for number in range(1, size + 1)]


def test_decide_is_one_call_with_field_q_and_the_criteria_in_the_callers_order(service: Local) -> None:
    body = {
        "id": "route-1",
        "state": "Customer cannot log in.",
        "question": "Which queue?",
        "options": [{"id": "z", "description": "Last letter."}, {"id": "a", "description": "First letter."}],
    }
    assert service.post("/decide", body)[0] == 200
    [call] = service.engine.calls
    assert ordered(call) == ordered(
        {
            "state": "Customer cannot log in.",
            "questions": {
                "q": {
                    "type": "choice",
                    "instructions": "Which queue?",
                    "criteria": {"z": "Last letter.", "a": "First letter."},
                }
            },
        }
    )


@pytest.mark.parametrize(
    "state",
    [
        "text",
        " ",
        {"z": 1, "a": ["\u00e9", None, True, 1.5, 1.0, -0.0, 12345678901234567890]},
        [0],
        ["b", {"y": {}, "x": []}],
    ],
)
def test_the_state_reaches_the_engine_as_it_is_in_the_callers_order(service: Local, state: Any) -> None:
    assert service.post("/decide", {**D1, "state": state})[0] == 200
    [call] = service.engine.calls
    # JSON text, because 1 == 1.0 == True in Python.
    assert json.dumps(call["state"]) == json.dumps(state)


def test_decide_shared_sends_q1_to_qn_in_request_order_over_the_shared_state(service: Local) -> None:
    decisions = [decision("third", "ba"), decision("first", "xyz"), decision("second", "ab")]
    assert service.post("/decide/shared", shared(*decisions, state={"a": 1}))[0] == 200
    [call] = service.engine.calls
    assert ordered(call) == ordered(
        {
            "state": {"a": 1},
            "questions": {
                "q1": {
                    "type": "choice",
                    "instructions": "question of third?",
                    "criteria": {"b": "desc b", "a": "desc a"},
                },
                "q2": {
                    "type": "choice",
                    "instructions": "question of first?",
                    "criteria": {"x": "desc x", "y": "desc y", "z": "desc z"},
                },
                "q3": {
                    "type": "choice",
                    "instructions": "question of second?",
                    "criteria": {"a": "desc a", "b": "desc b"},
                },
            },
        }
    )


def test_decide_shared_with_one_decision_is_the_call_that_decide_makes(service: Local) -> None:
    body = decision("d", "ab")
    alone = service.post("/decide", {**body, "state": "s"})[1]
    together = service.post("/decide/shared", shared(body, state="s"))[1]["results"][0]
    one, other = service.engine.calls
    assert ordered(one) == ordered(other)
    assert names(service)[0] == ["q"]
    assert together["prompt_sha256"] == alone["prompt_sha256"]


@pytest.mark.parametrize(
    ("count", "packed"),
    [
        (1, [1]),
        (2, [2]),
        (15, [15]),
        (16, [16]),
        (17, [16, 1]),
        (18, [16, 2]),
        (32, [16, 16]),
        (33, [16, 16, 1]),
        (40, [16, 16, 8]),
        (64, [16, 16, 16, 16]),
    ],
)
def test_decide_shared_is_packed_greedily_in_request_order_into_calls_of_at_most_16(
    service: Local, count: int, packed: list[int]
) -> None:
    decisions = [decision(f"d{number}", "ab") for number in range(1, count + 1)]
    status, answer = service.post("/decide/shared", shared(*decisions))
    assert status == 200
    assert [len(call["questions"]) for call in service.engine.calls] == packed
    asked = [question["instructions"] for call in service.engine.calls for question in call["questions"].values()]
    assert asked == [f"question of d{number}?" for number in range(1, count + 1)]
    assert answer["timing"]["questions_per_call"] == packed


@pytest.mark.parametrize("count", [1, 2, 16, 17, 33, 40])
def test_field_names_are_q_alone_and_q1_to_qn_otherwise_and_restart_with_every_call(service: Local, count: int) -> None:
    assert service.post("/decide/shared", shared(*(decision(f"d{i}", "ab") for i in range(count))))[0] == 200
    assert names(service) == [
        ["q"] if len(call["questions"]) == 1 else fields(len(call["questions"])) for call in service.engine.calls
    ]


@pytest.mark.parametrize("count", [1, 2, 17, 40])
def test_results_come_back_in_request_order_with_the_call_that_scored_them(service: Local, count: int) -> None:
    decisions = [decision(f"d{number}", "ab") for number in range(count)]
    results = service.post("/decide/shared", shared(*decisions))[1]["results"]
    assert [result["id"] for result in results] == [f"d{number}" for number in range(count)]
    for result in results:
        call = service.engine.calls[result["call"]["index"]]
        assert call["questions"][result["call"]["field"]]["instructions"] == f"question of {result['id']}?"
        assert result["call"]["questions"] == len(call["questions"])
        assert set(result["call"]) == {"index", "field", "questions"}


@pytest.mark.parametrize("path", ["/decide", "/decide/shared"])
def test_decision_ids_never_appear_in_a_call(service: Local, path: str) -> None:
    marked = decision("never-seen-4711", "ab", orderings="rotations")
    marked["question"] = "Which?"
    body = {**marked, "state": "s"} if path == "/decide" else shared(marked, decision("other", "ab"))
    assert service.post(path, body)[0] == 200
    assert len(service.engine.calls) == 2
    assert "4711" not in json.dumps(service.engine.calls)


def test_option_ids_do_reach_the_engine(service: Local) -> None:
    service.post("/decide", decision("d", ["left-hand", "right-hand"], state="s"))
    assert list(service.engine.calls[0]["questions"]["q"]["criteria"]) == ["left-hand", "right-hand"]


@pytest.mark.parametrize(
    "more",
    [
        {"label": "billing"},
        {"provenance": {"secret": "x"}},
        {"images": ["/etc/passwd"]},
        {"model": "m"},
        {"type": "score"},
    ],
)
def test_names_that_the_surface_does_not_know_never_reach_the_engine(service: Local, more: dict[str, Any]) -> None:
    assert service.post("/decide", D1)[0] == 200
    options = [{**option, "weight": 3, **more} for option in D1["options"]]
    assert service.post("/decide", {**D1, **more, "options": options})[0] == 200
    nested = {"state": D1["state"], "decisions": [{**D1, **more, "options": options, "state": "another"}], **more}
    assert service.post("/decide/shared", nested)[0] == 200
    first, *others = service.engine.calls
    assert [ordered(call) for call in others] == [ordered(first)] * 2


def test_a_shared_request_over_16_questions_equals_the_same_questions_asked_chunk_by_chunk(service: Local) -> None:
    decisions = [decision(f"d{number}", "abc") for number in range(40)]
    whole = service.post("/decide/shared", shared(*decisions))[1]["results"]
    parts = [
        service.post("/decide/shared", shared(*decisions[start : start + 16]))[1]["results"] for start in (0, 16, 32)
    ]

    def plain(result: dict[str, Any]) -> dict[str, Any]:
        return {**result, "call": {**result["call"], "index": None}}

    assert [plain(result) for result in whole] == [plain(result) for part in parts for result in part]


def test_swapping_two_options_changes_what_is_asked_and_its_hash(service: Local) -> None:
    one = service.post("/decide", decision("d", "ab", state="s"))[1]
    other = service.post("/decide", decision("d", "ba", state="s"))[1]
    assert one["prompt_sha256"] != other["prompt_sha256"]
    assert other["option_ids"] == ["b", "a"]
