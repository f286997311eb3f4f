"""Contract § POST /v1/systemone, the ``native`` profile: the contract to the letter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.helpers import (
    NOUL,
    asking,
    assert_details,
    assert_error,
    assert_refused,
    changed,
    hooked,
    ordered,
    without,
)
from tests.harness import BEARER, S1, Local

PATH = "/v1/systemone"


@pytest.fixture(scope="module")
def wide() -> Iterator[Local]:
    """The option cap raised to 62."""
    with hooked(SYSTEMONE_PROFILE="native", NATIVE_MAX_OPTIONS="62") as service:
        yield service


def choice(size: int) -> dict[str, Any]:
    return {"type": "choice", "instructions": "?", "criteria": {f"o{i}": f"desc {i}" for i in range(size)}}


def score(size: int) -> dict[str, Any]:
    return {"type": "score", "instructions": "?", "criteria": [f"level {i}" for i in range(size)]}


def test_the_request_goes_straight_to_the_engine_in_one_call_under_the_callers_ids(native: Local) -> None:
    body = {
        "state": {"z": 1, "a": [None]},
        "model": "jev-latest",
        "questions": {
            "zeta": {"type": "noul", "instructions": "Urgent?"},
            "alpha 7": {
                "type": "choice",
                "instructions": {"q": "Team?"},
                "criteria": {"z": "Z", "a": None, "10": {"x": [1]}},
            },
            "\uc9c8\ubb38": {"type": "score", "instructions": None, "criteria": ["low", {"label": "high"}]},
            "map": {"type": "score", "instructions": "?", "criteria": {"2.5": "mid", "-3": "neg"}},
        },
    }
    assert native.post(PATH, body)[0] == 200
    [call] = native.engine.calls
    assert ordered(call) == ordered({"state": body["state"], "questions": body["questions"]})


def test_16_questions_are_one_call_without_chunking(native: Local) -> None:
    questions = {f"id-{i}": NOUL for i in range(16)}
    status, answer = native.post(PATH, asking(**questions))
    assert status == 200
    assert [list(call["questions"]) for call in native.engine.calls] == [list(questions)]
    assert list(answer["answers"]) == list(questions)


def test_17_questions_are_422_with_a_clear_message_and_never_reach_the_engine(native: Local) -> None:
    message = assert_refused(native, PATH, asking(**{f"id-{i}": NOUL for i in range(17)}))
    assert "16" in message
    assert "17" in message
    assert native.engine.prepared == 0


def test_no_questions_are_422(native: Local) -> None:
    for questions in ({}, [], None, "x"):
        assert_refused(native, PATH, changed(S1, questions=questions))
    assert_refused(native, PATH, without(S1, "questions"))


def test_the_answers_are_the_engines_own_unmodified_and_in_its_order(native: Local) -> None:
    response = native.client.post(PATH, data=json.dumps(S1).encode(), headers=BEARER)
    assert ordered(json.loads(response.data)["answers"]) == ordered(native.engine.answers[0]["answers"])


def test_extra_engine_fields_ride_along_at_every_level(native: Local) -> None:
    def edit(answer: dict[str, Any]) -> None:
        answer.update(
            timing={"inference_ms": 1.25}, calibration={"method": "t", "temperature": 2.0}, backend="hf", new=[1]
        )
        answer["answers"]["urgent"]["extra"] = {"b": 1, "a": 2}

    native.engine.edit = edit
    answer = native.post(PATH, S1)[1]
    sent = native.engine.answers[0]
    assert {name: value for name, value in answer.items() if name != "model"} == {
        name: value for name, value in sent.items() if name != "model"
    }
    assert ordered(answer["answers"]["urgent"]) == ordered(sent["answers"]["urgent"])


def test_usage_is_whatever_the_engine_reports(native: Local) -> None:
    native.engine.edit = lambda answer: answer.update(
        usage={"input_tokens": 506, "output_tokens": 3, "decision_count": 3}
    )
    assert native.post(PATH, S1)[1]["usage"] == {"input_tokens": 506, "output_tokens": 3, "decision_count": 3}


@pytest.mark.parametrize("usage", [None, {}, "absent"])
def test_usage_is_an_empty_object_when_the_engine_reports_nothing(native: Local, usage: Any) -> None:
    def edit(answer: dict[str, Any]) -> None:
        answer["usage"] = usage
        if usage == "absent":
            del answer["usage"]

    native.engine.edit = edit
    assert native.post(PATH, S1)[1]["usage"] == {}


def test_model_is_the_string_name_at_revision_of_the_model_that_serves(native: Local) -> None:
    assert native.post(PATH, S1)[1]["model"] == "fake@0"
    native.engine.edit = lambda answer: answer.update(model={"name": "an", "revision": "object"})
    assert native.post(PATH, S1)[1]["model"] == "fake@0"


@pytest.mark.parametrize("model", ["jev-latest", "no-such-model", "", None, 7, {"a": 1}, ["x"], True])
def test_model_is_accepted_with_any_value_and_ignored(native: Local, model: Any) -> None:
    plain = native.post(PATH, without(S1, "model"))
    assert plain[0] == 200
    status, answer = native.post(PATH, changed(S1, model=model))
    assert status == 200, answer
    assert answer["answers"] == plain[1]["answers"]


@pytest.mark.parametrize("images", [["x"], "x", "", 0, False, True, {}, {"a": 1}, [None], [[]]])
def test_images_present_are_422_images_not_supported(native: Local, images: Any) -> None:
    assert "images not supported" in assert_refused(native, PATH, changed(S1, images=images))
    assert native.engine.prepared == 0


@pytest.mark.parametrize("images", [None, []])
def test_images_null_or_an_empty_list_count_as_absent(native: Local, images: Any) -> None:
    assert native.post(PATH, changed(S1, images=images))[0] == 200
    assert set(native.engine.calls[0]) == {"state", "questions"}


@pytest.mark.parametrize("state", ["", {}, [], None, 5, True])
def test_state_must_be_a_nonempty_string_object_or_array(native: Local, state: Any) -> None:
    assert_refused(native, PATH, changed(S1, state=state))
    assert native.engine.prepared == 0


def test_state_is_required(native: Local) -> None:
    assert_refused(native, PATH, without(S1, "state"))


@pytest.mark.parametrize(
    "question",
    [
        {"instructions": "?"},
        {"type": None, "instructions": "?"},
        {"type": "boolean", "instructions": "?"},
        {"type": ["noul"], "instructions": "?"},
        {"type": {"a": 1}, "instructions": "?"},
        {"type": "Noul", "instructions": "?"},
        {"type": 5, "instructions": "?"},
        {"type": "box", "instructions": "dog"},
        None,
        "noul",
        [],
        5,
    ],
)
def test_type_must_be_noul_choice_or_score(native: Local, question: Any) -> None:
    message = assert_refused(native, PATH, asking(good=NOUL, bad=question))
    assert "bad" in message


@pytest.mark.parametrize("criteria", [["a", "b"], "ab", None, 5, True])
def test_choice_criteria_must_be_an_object(native: Local, criteria: Any) -> None:
    assert_refused(native, PATH, asking(q={"type": "choice", "instructions": "?", "criteria": criteria}))
    assert_refused(native, PATH, asking(q={"type": "choice", "instructions": "?"}))


@pytest.mark.parametrize("criteria", ["ab", None, 5, True, {"low": "Low"}, {"nan": "x"}, {"inf": "x", "1": "y"}])
def test_score_criteria_must_be_a_list_or_an_object_of_finite_numbers(native: Local, criteria: Any) -> None:
    assert_refused(native, PATH, asking(q={"type": "score", "instructions": "?", "criteria": criteria}))
    assert_refused(native, PATH, asking(q={"type": "score", "instructions": "?"}))


def test_score_criteria_may_be_an_object_and_its_keys_are_the_values(native: Local) -> None:
    question = {"type": "score", "instructions": "?", "criteria": {"1": "low", "2.5": "mid", "-3": "neg"}}
    status, answer = native.post(PATH, asking(q=question))
    assert status == 200
    assert list(answer["answers"]["q"]["probabilities"]) == ["1", "2.5", "-3"]
    assert answer["answers"]["q"]["score"] == pytest.approx(1 * 0.6 + 2.5 * 0.3 - 3 * 0.1)


def test_every_level_of_a_legend_is_text_as_the_pinned_engine_writes_it(native: Local) -> None:
    # wire/systemone.md §10 row 12: the engine emits str(level). A null there breaks the official SDK (§7, 4).
    question = {"type": "score", "instructions": "?", "criteria": ["Calm", None, {"label": "Angry"}]}
    status, answer = native.post(PATH, asking(q=question))
    assert status == 200
    assert all(isinstance(level, str) for level in answer["answers"]["q"]["legend"].values()), answer["answers"]["q"][
        "legend"
    ]


@pytest.mark.parametrize("question", [choice(1), choice(16), score(1), score(16)], ids=["c1", "c16", "s1", "s16"])
def test_1_to_16_options_are_taken(native: Local, question: dict[str, Any]) -> None:
    status, answer = native.post(PATH, asking(q=question))
    assert status == 200
    assert len(answer["answers"]["q"]["probabilities"]) == len(question["criteria"])


@pytest.mark.parametrize(
    "question",
    [
        choice(0),
        choice(17),
        score(0),
        score(17),
        {**score(0), "criteria": {str(i): "x" for i in range(17)}},
    ],
    ids=["c0", "c17", "s0", "s17", "map17"],
)
def test_0_and_17_options_are_422(native: Local, question: dict[str, Any]) -> None:
    assert_refused(native, PATH, asking(q=question))


def test_a_setting_raises_the_option_cap(wide: Local) -> None:
    wide.engine.reset()
    assert wide.post(PATH, asking(q=choice(62)))[0] == 200
    assert_refused(wide, PATH, asking(q=choice(63)))
    assert wide.client.get("/health").json["systemone"]["max_options"] == 62


def test_field_names_are_unique_and_a_doubled_one_is_422_naming_it(native: Local) -> None:
    one = b'"team":{"type":"noul","instructions":"a"}'
    text = b'{"state":"s","questions":{' + one + b"," + one + b"}}"
    assert "team" in assert_refused(native, PATH, text)


def test_field_names_are_nonempty(native: Local) -> None:
    assert_refused(native, PATH, {"state": "s", "questions": {"": NOUL}})


@pytest.mark.parametrize("criteria", [{}, None, {"true": "asks for money"}, {"false": None}, {"yes": "y", "no": "n"}])
def test_a_noul_question_needs_no_criteria(native: Local, criteria: Any) -> None:
    assert native.post(PATH, asking(q=NOUL))[0] == 200
    assert native.post(PATH, asking(q={**NOUL, "criteria": criteria}))[0] == 200


@pytest.mark.parametrize(
    "question",
    [
        {"type": "noul"},
        {"type": "noul", "instructions": ""},
        {"type": "noul", "instructions": None, "criteria": {}},
        {"type": "noul", "criteria": {"true": None, "false": None}},
    ],
)
def test_a_noul_with_neither_instructions_nor_a_described_side_is_422(native: Local, question: dict[str, Any]) -> None:
    assert_refused(native, PATH, asking(q=question))


def test_a_value_error_of_the_engines_own_validation_is_422_with_its_message(native: Local) -> None:
    message = assert_refused(native, PATH, asking(q={"type": "choice", "instructions": "?"}))
    assert "Choice criteria must be an object." in message


def test_over_max_tokens_is_422_before_the_forward_pass(native: Local) -> None:
    assert "truncation is forbidden" in assert_refused(native, PATH, changed(S1, state="w " * 9000))


def test_unknown_names_at_the_top_are_ignored(native: Local) -> None:
    assert native.post(PATH, changed(S1, x_nonce="n", seed=7, workload="wanli"))[0] == 200
    assert set(native.engine.calls[0]) == {"state", "questions"}


def test_semif_and_systemone_use_different_calls(native: Local) -> None:
    question = {"type": "choice", "instructions": "Which?", "criteria": {"a": "desc a", "b": "desc b"}}
    native.post(PATH, {"state": "s", "questions": {"team": question}})
    native.post(
        "/decide",
        {
            "id": "team",
            "state": "s",
            "question": "Which?",
            "options": [{"id": "a", "description": "desc a"}, {"id": "b", "description": "desc b"}],
        },
    )
    assert [list(call["questions"]) for call in native.engine.calls] == [["team"], ["q"]]


def test_a_422_carries_both_error_shapes_and_names_the_question(native: Local) -> None:
    answer = native.post(PATH, asking(good=NOUL, bad={"type": "boolean", "instructions": "?"}))
    assert_error(answer, 422, "invalid_request")
    assert any("bad" in item["loc"] for item in assert_details(answer[1]))


def test_get_is_405(native: Local) -> None:
    response = native.client.get(PATH)
    assert response.status_code == 405
    assert response.json["error"]["code"] == "method_not_allowed"
    assert response.json["detail"]["error_type"] == "api_usage_error"


def test_the_default_profile_is_the_engines_own(service: Local) -> None:
    # The fake engine's is jev; intern's is native (tests/intern).
    assert service.client.get("/health").json["systemone"]["profile"] == "jev"
