"""``POST /v1/systemone`` in the ``jev`` profile: wire/systemone.md §2 to §4 and its RULE lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
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
from web.scorer_client import Description

PATH = "/v1/systemone"


@pytest.fixture(scope="module")
def strict() -> Iterator[Local]:
    """STRICT_MODEL=1."""
    with hooked(STRICT_MODEL="1") as service:
        yield service


def choice(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(names), **more}


def score(*levels: Any, **more: Any) -> dict[str, Any]:
    return {"type": "score", "instructions": "How?", "criteria": list(levels), **more}


def answered(service: Local, **questions: Any) -> dict[str, Any]:
    status, answer = service.post(PATH, asking(**questions))
    assert status == 200, answer
    return dict(answer["answers"])


# -- independence ------------------------------------------------------------------------------------------------


def test_every_question_is_a_call_of_its_own_under_a_positional_name(service: Local) -> None:
    assert service.post(PATH, S1)[0] == 200
    assert [list(call["questions"]) for call in service.engine.calls] == [["q"]] * 3
    assert [call["questions"]["q"]["type"] for call in service.engine.calls] == ["choice", "noul", "score"]
    assert [call["state"] for call in service.engine.calls] == ["Payouts failed."] * 3


def test_ids_never_reach_the_model(service: Local) -> None:
    answered(service, **{"secret-4711": NOUL, "\uc9c8\ubb38": choice("x", "y")})
    assert "4711" not in json.dumps(service.engine.calls)
    assert "\uc9c8\ubb38" not in json.dumps(service.engine.calls, ensure_ascii=False)


def test_neither_ids_nor_neighbours_nor_order_change_what_is_asked(service: Local) -> None:
    question = choice("x", "y")
    answered(service, q=question)
    alone = service.engine.calls[0]
    for questions, at in (({"other": question}, 0), ({"a": NOUL, "b": question}, 1), ({"b": question, "a": NOUL}, 0)):
        service.engine.calls = []
        answered(service, **questions)
        assert ordered(service.engine.calls[at]) == ordered(alone)


def test_answer_ids_are_exactly_the_requests_in_its_order(service: Local) -> None:
    ids = ["zeta", "ticket-1", "q.2", "with space", "\uc9c8\ubb38", "\U0001f3af", "alpha", "10", "9", " "]
    assert list(answered(service, **dict.fromkeys(ids, NOUL))) == ids


def test_400_questions_are_taken_and_401_are_422(service: Local) -> None:
    assert len(answered(service, **{f"q{i}": NOUL for i in range(400)})) == 400
    assert_refused(service, PATH, asking(**{f"q{i}": NOUL for i in range(401)}))


def test_a_question_id_must_not_be_empty(service: Local) -> None:
    assert_refused(service, PATH, asking(**{"": NOUL}))


# -- what is taken -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["", "  ", {}, [], {"z": 1, "a": None}, [{"role": "user", "content": "hi"}], [None]])
def test_state_may_be_any_text_also_an_empty_one(service: Local, state: Any) -> None:
    assert service.post(PATH, changed(S1, state=state))[0] == 200
    assert json.dumps(service.engine.calls[0]["state"]) == json.dumps(state)


@pytest.mark.parametrize("state", [None, 42, 1.5, True, False])
def test_state_of_another_type_is_422(service: Local, state: Any) -> None:
    answer = service.post(PATH, changed(S1, state=state))
    assert_error(answer, 422, "invalid_request")
    [item] = assert_details(answer[1])
    assert (item["loc"], item["type"]) == (["body", "state"], "union_type")


TEXTS: dict[str, tuple[Any, str]] = {
    "a string": ("Urgent?", "Urgent?"),
    "null": (None, ""),
    "an object": ({"z": "Caf\u00e9?", "a": [1, None, True]}, '{"z":"Caf\u00e9?","a":[1,null,true]}'),
    "an array": (["x", {"y": 1}], '["x",{"y":1}]'),
    "None as text": ("None", "None"),
}


@pytest.mark.parametrize(("given", "read"), TEXTS.values(), ids=TEXTS)
def test_a_structured_text_is_read_as_compact_json_and_null_as_nothing(service: Local, given: Any, read: str) -> None:
    answered(
        service,
        n={"type": "noul", "instructions": given, "criteria": {"true": given, "false": "f"}},
        c=choice(criteria={"x": given, "y": None}, instructions=given),
        s=score("low", given if given is not None else "high", instructions=given),
    )
    noul, chosen, scored = (call["questions"]["q"] for call in service.engine.calls)
    assert [question["instructions"] for question in (noul, chosen, scored)] == [read] * 3
    assert noul["criteria"] == ({"true": read, "false": "f"} if given is not None else {"false": "f"})
    assert chosen["criteria"] == {"x": read, "y": ""}
    assert scored["criteria"] == ["low", read or "high"]
    if given != "None":
        assert "None" not in json.dumps(service.engine.calls)


@pytest.mark.parametrize(
    "criteria",
    [
        "absent",
        None,
        {},
        {"true": "t"},
        {"false": "f"},
        {"true": "t", "false": "f"},
        {"true": "t", "false": None},
        {"true": None, "false": None},
        {"true": {"a": 1}},
        {"false": [1]},
    ],
)
def test_noul_criteria_may_be_absent_null_or_either_side(service: Local, criteria: Any) -> None:
    question = {**NOUL} if criteria == "absent" else {**NOUL, "criteria": criteria}
    answer = answered(service, q=question)["q"]
    assert answer["type"] == "noul"
    assert 0 <= answer["noul"] <= 1


@pytest.mark.parametrize(
    "criteria", [{"yes": "y"}, {"true": "t", "maybe": "m"}, {"True": "t"}, ["t"], "t", 5, {"true": 5}, {"false": True}]
)
def test_other_noul_criteria_are_422(service: Local, criteria: Any) -> None:
    assert_refused(service, PATH, asking(q={**NOUL, "criteria": criteria}))


@pytest.mark.parametrize(
    "question",
    [
        {"type": "noul", "criteria": {"true": "threat"}},
        {"type": "noul", "instructions": None, "criteria": {"false": "calm"}},
        {"type": "noul", "instructions": "", "criteria": {"true": {"a": 1}}},
    ],
)
def test_a_described_side_suffices_for_a_noul(service: Local, question: dict[str, Any]) -> None:
    answered(service, q=question)


@pytest.mark.parametrize(
    "question",
    [
        {"type": "noul"},
        {"type": "noul", "instructions": None},
        {"type": "noul", "instructions": ""},
        {"type": "noul", "criteria": {}},
        {"type": "noul", "criteria": {"true": None, "false": None}},
        {"type": "noul", "instructions": {}, "criteria": None},
    ],
)
def test_a_noul_with_nothing_to_decide_is_422(service: Local, question: dict[str, Any]) -> None:
    answer = service.post(PATH, asking(q=question))
    assert_error(answer, 422, "invalid_request")
    assert all("q" in item["loc"] for item in assert_details(answer[1]))


@pytest.mark.parametrize("size", [1, 2, 26, 64, 128, 255])
def test_1_to_255_options_are_taken_and_come_back_byte_for_byte(service: Local, size: int) -> None:
    names = [f"o{i} \u00e9e\u0301\ud658\ubd88" for i in range(size)]
    answer = answered(service, q=choice(*names))["q"]
    assert list(answer["probabilities"]) == names
    assert sum(answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-6)
    assert answer["choice"] in names


@pytest.mark.parametrize("size", [1, 2, 3, 5, 10])
def test_1_to_10_levels_are_taken(service: Local, size: int) -> None:
    answer = answered(service, q=score(*(f"level {i}" for i in range(size))))["q"]
    assert list(answer["probabilities"]) == list(answer["legend"]) == [str(i) for i in range(size)]
    assert answer["score"] == pytest.approx(sum(i * p for i, p in enumerate(answer["probabilities"].values())))


@pytest.mark.parametrize("more", [{"x_note": 1}, {"unread": {"deep": [None]}}, {"images": ["/etc/passwd"]}])
def test_unknown_names_are_ignored_at_every_depth_and_never_reach_the_engine(
    service: Local, more: dict[str, Any]
) -> None:
    service.post(PATH, asking(q=NOUL))
    top = {name: value for name, value in more.items() if name != "images"}
    assert (
        service.post(PATH, {**asking(q={**NOUL, **more}), **top, "x_nonce": "n", "seed": 7, "cache_salt": "s"})[0]
        == 200
    )
    one, other = service.engine.calls
    assert ordered(one) == ordered(other)


@pytest.mark.parametrize("model", ["jev-latest", "jev-preview", "jev-1.13.0", "no-such-model", "", None])
def test_any_model_name_is_taken_and_ignored(service: Local, model: Any) -> None:
    assert service.post(PATH, changed(S1, model=model))[0] == 200
    assert service.post(PATH, without(S1, "model"))[0] == 200


@pytest.mark.parametrize(("name", "value"), [("images", None), ("images", []), ("assets", None), ("assets", {})])
def test_images_and_assets_that_hold_nothing_count_as_absent(service: Local, name: str, value: Any) -> None:
    assert service.post(PATH, changed(S1, **{name: value}))[0] == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("images", ["x"]),
        ("images", "x"),
        ("images", False),
        ("images", {"a": 1}),
        ("assets", "x"),
        ("assets", 0),
        ("assets", {"<image:a>": {"type": "image", "format": "png", "data_base64": "AA=="}}),
    ],
)
def test_images_and_assets_are_422_images_not_supported(service: Local, name: str, value: Any) -> None:
    assert "images not supported" in assert_refused(service, PATH, changed(S1, **{name: value}))


# -- what is refused, and how it is told -------------------------------------------------------------------------

INVALID: dict[str, tuple[Any, list[Any], str]] = {
    "a list": ([], ["body"], "dict_type"),
    "no state": (without(S1, "state"), ["body", "state"], "missing"),
    "no questions": (without(S1, "questions"), ["body", "questions"], "missing"),
    "empty questions": (changed(S1, questions={}), ["body", "questions"], "too_short"),
    "questions a list": (changed(S1, questions=[NOUL]), ["body", "questions"], "dict_type"),
    "a null question": (asking(q=None), ["body", "questions", "q"], "dict_type"),
    "a string question": (asking(q="noul"), ["body", "questions", "q"], "dict_type"),
    "no criteria": (
        asking(q={"type": "choice", "instructions": "?"}),
        ["body", "questions", "q", "criteria"],
        "missing",
    ),
    "no options": (asking(q=choice()), ["body", "questions", "q", "criteria"], "too_short"),
    "256 options": (asking(q=choice(*map(str, range(256)))), ["body", "questions", "q", "criteria"], "too_long"),
    "options a list": (asking(q=choice(criteria=["a", "b"])), ["body", "questions", "q", "criteria"], "dict_type"),
    "options null": (asking(q=choice(criteria=None)), ["body", "questions", "q", "criteria"], "dict_type"),
    "an option's text 5": (
        asking(q=choice(criteria={"a": 5})),
        ["body", "questions", "q", "criteria", "a"],
        "union_type",
    ),
    "no levels": (asking(q=score()), ["body", "questions", "q", "criteria"], "too_short"),
    "11 levels": (asking(q=score(*"abcdefghijk")), ["body", "questions", "q", "criteria"], "too_long"),
    "levels a map": (
        asking(q=score(criteria={"0": "Calm", "1": "Angry"})),
        ["body", "questions", "q", "criteria"],
        "list_type",
    ),
    "a null level": (asking(q=score("Calm", None)), ["body", "questions", "q", "criteria", 1], "string_type"),
    "a level 5": (asking(q=score("Calm", 5)), ["body", "questions", "q", "criteria", 1], "string_type"),
    "instructions 5": (asking(q={**NOUL, "instructions": 5}), ["body", "questions", "q", "instructions"], "union_type"),
    "instructions true": (
        asking(q=choice("a", instructions=True)),
        ["body", "questions", "q", "instructions"],
        "union_type",
    ),
}


@pytest.mark.parametrize(("body", "loc", "kind"), INVALID.values(), ids=INVALID)
def test_an_invalid_body_is_422_with_a_detail_that_says_where(
    service: Local, body: Any, loc: list[Any], kind: str
) -> None:
    answer = service.post(PATH, body)
    assert_error(answer, 422, "invalid_request")
    [item] = assert_details(answer[1])
    assert (item["loc"], item["type"]) == (loc, kind)
    assert service.engine.prepared == 0


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ({"type": "boolean", "instructions": "?"}, "union_tag_invalid"),
        ({"type": ["noul"], "instructions": "?"}, "union_tag_invalid"),
        ({"type": None, "instructions": "?"}, "union_tag_invalid"),
        ({"type": "box", "instructions": "dog"}, "union_tag_invalid"),
        ({"instructions": "?"}, "union_tag_not_found"),
        ({}, "union_tag_not_found"),
    ],
)
def test_an_unknown_or_absent_type_is_422_naming_the_question(service: Local, question: Any, kind: str) -> None:
    answer = service.post(PATH, asking(good=NOUL, bad=question))
    assert_error(answer, 422, "invalid_request")
    [item] = assert_details(answer[1])
    assert item["loc"][:3] == ["body", "questions", "bad"]
    assert item["type"] == kind


def test_bad_json_is_422_json_invalid_with_the_place(service: Local) -> None:
    answer = service.post(PATH, b"{")
    assert_error(answer, 422, "invalid_request")
    [item] = assert_details(answer[1])
    assert (item["loc"], item["type"]) == (["body", 1], "json_invalid")


def test_all_problems_are_reported_and_the_message_joins_them(service: Local) -> None:
    answer = service.post(PATH, {"state": 5, "questions": {"a": {"type": "boolean"}, "b": score("x", None), "c": NOUL}})
    message = assert_error(answer, 422, "invalid_request")
    found = assert_details(answer[1])
    assert len(found) == 3
    assert all(item["msg"] in message for item in found)


def test_a_request_that_is_too_long_is_422_max_tokens_exceeded(service: Local) -> None:
    answer = service.post(PATH, changed(S1, state="w " * 9000))
    assert_error(answer, 422, "invalid_request")
    [item] = assert_details(answer[1])
    assert (item["loc"], item["type"]) == (["body"], "max_tokens_exceeded")


def test_one_question_that_is_too_long_refuses_the_request_without_a_forward_pass(service: Local) -> None:
    assert_refused(service, PATH, asking(a=NOUL, b={**NOUL, "instructions": "w " * 9000}))


@pytest.mark.parametrize(
    "text",
    [
        b'{"state":"s","questions":{"team":{"type":"noul","instructions":"a"},"team":{"type":"noul","instructions":"b"}}}',
        b'{"state":"s","questions":{"q":{"type":"choice","instructions":"?","criteria":{"team":"x","team":"y"}}}}',
    ],
)
def test_duplicate_names_are_422_naming_the_name(service: Local, text: bytes) -> None:
    assert "team" in assert_refused(service, PATH, text)


def test_the_error_answers_carry_both_shapes(service: Local) -> None:
    answer = service.post(PATH, S1, {})
    assert_error(answer, 401, "unauthorized")
    assert set(answer[1]) == {"error", "detail"}
    assert set(answer[1]["detail"]) == {"error_type", "message"}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_only_post_is_served(service: Local, method: str) -> None:
    response = service.client.open(PATH, method=method)
    assert response.status_code == 405
    assert response.json["error"]["code"] == "method_not_allowed"
    assert response.json["detail"]["error_type"] == "api_usage_error"
    assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize("path", ["/v1/systemone/", "/v1//systemone", "//v1/systemone", "/v1", "/v1/nope"])
def test_there_is_no_redirect_and_another_path_is_404_json(service: Local, path: str) -> None:
    response = service.client.post(f"http://localhost{path}", json=S1, headers=BEARER)
    assert response.status_code == 404
    assert response.json["error"]["code"] == "not_found"


# -- the answer --------------------------------------------------------------------------------------------------


def test_the_envelope(service: Local) -> None:
    answer = service.post(PATH, S1)[1]
    assert answer["model"] == "fake@0"
    assert set(answer) >= {"model", "answers", "usage"}
    assert [name for name in answer if name not in ("model", "answers", "usage") and not name.startswith("x_")] == []


@pytest.mark.parametrize(
    ("question", "fields"),
    [
        (NOUL, {"type", "noul"}),
        (choice("x", "y"), {"type", "choice", "confidence", "probabilities"}),
        (score("x", "y"), {"type", "score", "confidence", "legend", "probabilities"}),
    ],
)
def test_an_answer_has_jevs_fields_and_all_others_begin_with_x(service: Local, question: Any, fields: set[str]) -> None:
    answer = answered(service, q=question)["q"]
    assert {name for name in answer if not name.startswith("x_")} == fields
    assert answer["type"] == question["type"]


def test_usage_has_two_whole_numbers(service: Local) -> None:
    service.engine.edit = lambda answer: answer.pop("usage")
    usage = service.post(PATH, S1)[1]["usage"]
    assert type(usage["input_tokens"]) is type(usage["output_tokens"]) is int
    assert usage["input_tokens"] > 0
    assert usage["output_tokens"] >= 0
    assert type(usage["x_cached_tokens"]) is int


def test_usage_input_tokens_count_every_question(service: Local) -> None:
    one = service.post(PATH, asking(a=NOUL))[1]["usage"]["input_tokens"]
    assert service.post(PATH, asking(a=NOUL, b=NOUL, c=NOUL))[1]["usage"]["input_tokens"] == 3 * one


def test_probabilities_are_in_the_requests_order_and_the_engines_numbers(service: Local) -> None:
    answer = answered(service, q=choice("z", "a", "10", "9", "2"))["q"]
    native = service.engine.answers[0]["answers"]["q"]
    assert list(answer["probabilities"].items()) == [
        (name, native["probabilities"][name]) for name in ("z", "a", "10", "9", "2")
    ]
    assert ordered(answer["x_native"]) == ordered(native)


def test_the_legend_is_the_levels_as_sent(service: Local) -> None:
    levels = ["Calm", {"label": "Angry", "a": [1, None]}, ["x"], "10", ""]
    legend = answered(service, q=score(*levels))["q"]["legend"]
    assert ordered(legend) == ordered({str(i): level for i, level in enumerate(levels)})


#: wire/systemone.md §3, check values: type, probabilities, confidence.
CONFIDENCES: dict[str, tuple[str, list[float], float]] = {
    "choice .88 .12 0": ("choice", [0.88, 0.12, 0.0], 0.82),
    "choice even": ("choice", [0.5, 0.5], 0.0),
    "choice uniform of 4": ("choice", [0.25] * 4, 0.0),
    "choice one-hot": ("choice", [0.0, 1.0, 0.0], 1.0),
    "choice of one": ("choice", [1.0], 1.0),
    "score 0 .95 .05": ("score", [0.0, 0.95, 0.05], 0.925),
    "score split ends": ("score", [0.5, 0.0, 0.5], 0.0),
    "score one-hot": ("score", [0.0, 0.0, 1.0], 1.0),
    "score of one": ("score", [1.0], 1.0),
    "score of two": ("score", [0.8, 0.2], 1 - 0.2 / 0.5),
    "score of ten": ("score", [0.91, *[0.01] * 9], 1 - 0.45 / 2.5),
}


@pytest.mark.parametrize(("kind", "probabilities", "confidence"), CONFIDENCES.values(), ids=CONFIDENCES)
def test_confidence_follows_jevs_formulas(
    service: Local, kind: str, probabilities: list[float], confidence: float
) -> None:
    names = [str(i) for i in range(len(probabilities))]
    question = choice(*names) if kind == "choice" else score(*names)
    script = {"fake": {"probabilities": probabilities}}
    status, answer = service.post(PATH, {"state": script, "questions": {"q": question}})
    assert status == 200
    assert answer["answers"]["q"]["confidence"] == pytest.approx(confidence, abs=1e-9)
    assert 0 <= answer["answers"]["q"]["confidence"] <= 1


def test_choice_is_the_largest_and_score_the_expectation(service: Local) -> None:
    script = {"fake": {"probabilities": [0.2, 0.5, 0.3]}}
    answers = service.post(
        PATH, {"state": script, "questions": {"c": choice("x", "y", "z"), "s": score("x", "y", "z")}}
    )[1]["answers"]
    assert answers["c"]["choice"] == "y"
    assert answers["s"]["score"] == pytest.approx(0.5 + 2 * 0.3)


def test_noul_is_the_probability_of_true(service: Local) -> None:
    status, answer = service.post(PATH, {"state": {"fake": {"probabilities": [0.2, 0.8]}}, "questions": {"q": NOUL}})
    assert status == 200
    # The fake engine's list is by option: no, yes.
    assert answer["answers"]["q"]["noul"] == 0.8


# -- headers, models, strict model -------------------------------------------------------------------------------


def test_every_response_has_a_request_id_for_the_sdk(service: Local) -> None:
    responses = [
        service.client.post(PATH, json=S1, headers=BEARER),
        service.client.post(PATH, json=S1),
        service.client.post(PATH, data=b"{", headers=BEARER),
        service.client.get(PATH),
        service.client.get("/nope"),
        service.client.get("/v1/models", headers=BEARER),
        service.client.get("/health"),
    ]
    ids = [response.headers["x-typesafe-request-id"] for response in responses]
    assert [response.status_code for response in responses] == [200, 401, 422, 405, 404, 200, 200]
    assert all(len(one) == len("req_") + 32 and one.startswith("req_") for one in ids)
    assert len(set(ids)) == len(ids)


def test_the_models_list_serves_both_kinds_of_client(service: Local) -> None:
    answer = service.client.get("/v1/models", headers=BEARER).json
    assert answer["models"]
    for model in answer["models"]:
        assert all(isinstance(model[name], str) and model[name] for name in ("name", "description", "release_date"))
    assert answer["object"] == "list"
    assert [one["id"] for one in answer["data"]] == [one["name"] for one in answer["models"]]
    assert service.post(PATH, S1)[1]["model"] in [one["name"] for one in answer["models"]]


@pytest.mark.parametrize("model", ["jev-latest", "jev-preview", "fake", "fake@0", None])
def test_a_strict_server_takes_its_own_names_and_the_aliases(strict: Local, model: Any) -> None:
    assert strict.post(PATH, changed(S1, model=model))[0] == 200
    assert strict.post(PATH, without(S1, "model"))[0] == 200


@pytest.mark.parametrize("model", ["jevcompat-no-such-model", "", "FAKE", "fake@1"])
def test_a_strict_server_refuses_other_models_with_404(strict: Local, model: str) -> None:
    strict.engine.reset()
    answer = strict.post(PATH, changed(S1, model=model))
    assert_error(answer, 404, "model_not_found")
    assert answer[1]["detail"]["error_type"] == "api_usage_error"
    assert strict.engine.prepared == 0


def test_a_request_is_judged_by_the_limits_of_the_scorer_that_runs_now_and_not_of_one_that_is_gone() -> None:
    # 17 questions are too many for a scorer that was described as native and is right for the one in its place.
    service = Local()
    try:
        scorer = service.app.extensions["decision"].scorer
        running = scorer.describe(afresh=True)
        limits = replace(running.info.limits, request_questions=2)
        scorer._known = Description("an earlier start", replace(running.info, limits=limits))
        question = {"type": "noul", "instructions": "Urgent?"}
        body = {"state": "x", "questions": {f"q{i}": question for i in range(17)}}
        assert service.post(PATH, body)[0] == 200
        scorer._known = Description("an earlier start", replace(running.info, name="gone"))
        assert service.client.get("/v1/models", headers=BEARER).json["models"][0]["name"] == "fake@0"
    finally:
        service.close()
