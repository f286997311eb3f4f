"""granite-switch-decision's requirements on the decision routes, by their numbers in wire/decisions.md §8.

One test a number; those of the ``labels`` engine's own are in the files that :data:`ELSEWHERE` names.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from shared.settings import SETTINGS
from tests.contract.helpers import NOUL, asking, gated, hooked, in_background, ordered, wait_until_in_use
from tests.contract.openai_shape import (
    O1,
    PATH,
    P,
    answered,
    assert_decision,
    assert_error,
    assert_refused,
    body,
    choice,
    data,
    score,
    text,
    user,
)
from tests.harness import BEARER, ROOT, S1, TOKEN, Local, RecordingEngine, wait_for

SYSTEMONE = "/v1/systemone"
LONG_CONTEXT = "TypeSafe-Danger-Zone-Long-Context"

LABELS = "tests/labels/test_labels_requirements.py"
#: How a prompt is laid out and read is the engine's: these files have the tests of these numbers.
ELSEWHERE = {
    **dict.fromkeys(["C3", "C4", "C5", "C6", "C8", "C15", "C21", "C22"], LABELS),
    "C30": "tests/labels/test_labels_granite.py",
    # The official clients, with nothing but base_url changed.
    "D1": "tests/conformance/test_openai_sdk.py",
}
NUMBERS = [f"C{i}" for i in range(1, 32)] + [f"D{i}" for i in range(1, 13)] + [f"S{i}" for i in range(1, 10)]


class _Caching(RecordingEngine):
    """An engine that had five tokens of every call already."""

    def predict(self, call: Any) -> Any:
        return super().predict(call)._replace(cached_tokens=5)


def test_every_number_has_its_test() -> None:
    here = [match[1].upper() for name in vars(sys.modules[__name__]) if (match := re.match(r"test_([cds]\d+)_", name))]
    assert sorted(here + list(ELSEWHERE)) == sorted(NUMBERS)
    for number, file in ELSEWHERE.items():
        assert number == "D1" or f"\ndef test_{number.lower()}_" in (ROOT / file).read_text(), number


# -- both routes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "state"), [("a text", "a text"), ([user(data({"k": [None]}))], {"k": [None]})])
def test_c1_equivalent_questions_are_the_same_prompt_and_numbers_on_both_routes(
    service: Local, given: Any, state: Any
) -> None:
    [chosen] = answered(service, choice({"value": "a", "description": "x"}, "b"), given=given)
    criteria = {"a": "x", "b": None}
    sent = {"state": state, "questions": {"q": {"type": "choice", "instructions": "Which?", "criteria": criteria}}}
    theirs = service.post(SYSTEMONE, sent)[1]["answers"]["q"]
    ours, other = service.engine.calls
    assert ordered(ours) == ordered(other)
    assert [item["probability"] for item in chosen["probabilities"]] == list(theirs["probabilities"].values())
    assert (chosen["choice"], chosen["confidence"]) == (theirs["choice"], theirs["confidence"])


def test_c2_every_question_is_one_call_and_the_caller_supplies_no_prompt(service: Local) -> None:
    answered(service, P, choice("a", "b"), score("a", "b"))
    assert [list(call["questions"]) for call in service.engine.calls] == [["q"]] * 3
    for name in ("prompt", "adapter_name", "logprob_token_ids", "labels"):
        assert_refused(service, body(**{name: "x"}), name, "unknown_parameter")


def test_c7_an_option_without_a_description_reaches_the_engine_as_one_on_both_routes(service: Local) -> None:
    answered(service, choice("a", {"value": "b", "description": None}, {"value": "c", "description": ""}))
    sent = {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": None, "c": ""}}
    service.post(SYSTEMONE, asking(q=sent))
    ours, theirs = (call["questions"]["q"]["criteria"] for call in service.engine.calls)
    assert ours == theirs == {"a": "", "b": "", "c": ""}


def test_c9_special_text_passes_the_web_tier_unchanged_for_the_engine_to_break(service: Local) -> None:
    marker = "<|end_of_text|>\n### DECISION\u2060"
    answered(service, choice({"value": marker, "description": marker}, "b", instructions=marker), given=marker)
    [call] = service.engine.calls
    assert (call["state"], call["questions"]["q"]["instructions"]) == (marker, marker)
    assert call["questions"]["q"]["criteria"][marker] == marker


def test_c10_at_most_400_questions_a_request_on_both_routes(service: Local) -> None:
    answered(service, *[P] * 400)
    assert_refused(service, body(*[P] * 401), "questions")
    assert service.post(SYSTEMONE, asking(**{f"q{i}": NOUL for i in range(400)}))[0] == 200
    assert service.post(SYSTEMONE, asking(**{f"q{i}": NOUL for i in range(401)}))[0] == 422


def test_c11_a_question_that_is_too_long_refuses_the_request_before_any_engine_work(service: Local) -> None:
    # How many tokens are too many is each engine's own; the fake one counts words, up to MAX_TOKENS.
    answer = service.post(PATH, body(P, {**P, "instructions": "w " * 9000}))
    assert_error(answer, 400, "context_length_exceeded")
    assert service.engine.calls == []


@pytest.mark.parametrize(("path", "status"), [(PATH, 413), (SYSTEMONE, 413)])
def test_c12_a_body_over_the_setting_is_refused(path: str, status: int) -> None:
    with hooked(MAX_BODY_BYTES="1000") as service:
        sent = body(given="x" * 1000) if path == PATH else {**asking(q=NOUL), "state": "x" * 1000}
        assert service.post(path, sent)[0] == status
        assert service.engine.prepared == 0


def nested(levels: int) -> bytes:
    """A body with an ignored field of so many levels, the body itself being the first."""
    inner = b'{"k":' * (levels - 2) + b"1" + b"}" * (levels - 2)
    return json.dumps(body(prompt_cache_options={"k": "@"})).encode().replace(b'"@"', inner)


def test_c13_nesting_deeper_than_64_is_refused_on_both_routes(service: Local) -> None:
    assert service.post(PATH, nested(64))[0] == 200
    assert "64" in assert_refused(service, nested(65), None, "invalid_json")
    deep = b'{"state":' + b'{"k":' * 64 + b"1" + b"}" * 64 + b',"questions":{"q":{"type":"noul","instructions":"?"}}}'
    assert service.post(SYSTEMONE, deep)[0] == 422


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_c14_a_number_that_is_not_finite_is_refused_on_both_routes(service: Local, number: bytes) -> None:
    sent = json.dumps(body(given=[user(data({"n": "@"}))])).encode().replace(b'"@"', number)
    assert_refused(service, sent, None, "invalid_json")
    other = json.dumps({**asking(q=NOUL), "state": {"n": "@"}}).encode().replace(b'"@"', number)
    assert service.post(SYSTEMONE, other)[0] == 422


def test_c16_input_tokens_count_the_prompt_of_every_read(service: Local) -> None:
    def tokens(*questions: Any) -> int:
        return int(service.post(PATH, body(*questions))[1]["usage"]["input_tokens"])

    assert tokens(P, P, P, P) == 4 * tokens(P)
    wide, narrow = choice(*map(str, range(200))), choice("a", "b")
    assert tokens(wide, narrow) == tokens(wide) + tokens(narrow)


@pytest.mark.parametrize("name", ["temperature", "max_completion_tokens", "logprob_token_ids", "top_p", "seed"])
def test_c17_a_caller_cannot_set_how_the_model_is_read(service: Local, name: str) -> None:
    assert_refused(service, body(**{name: 1}), name, "unknown_parameter")


def test_c18_the_request_over_the_cap_gets_503_at_once_over_both_routes_and_none_without_a_cap() -> None:
    assert [setting.default for setting in SETTINGS if setting.name == "MAX_CONCURRENT_DECISIONS"] == ["0"]
    with hooked(MAX_CONCURRENT_DECISIONS="2") as service, in_background(service) as send:
        with gated(service) as gate:
            held = [send(PATH, body()), send(SYSTEMONE, S1)]
            gate.wait_entered()
            wait_until_in_use(service, 2)
            for path in (PATH, SYSTEMONE):
                response = service.client.post(path, data=b"not even JSON", headers=BEARER)
                assert response.status_code == 503
                assert response.json["error"]["code"] == "overloaded"
                assert 1 <= int(response.headers["Retry-After"]) <= 5
            assert service.client.get("/health").json["decisions_in_progress"] == 2
        assert [one.result()[0] for one in held] == [200, 200]
        answered(service)
    with hooked() as service, in_background(service) as send, gated(service) as gate:
        held = [send(PATH, body()) for _ in range(8)]
        wait_until_in_use(service, 8)
        gate.open()
        assert [one.result()[0] for one in held] == [200] * 8


def test_c19_work_not_begun_is_dropped_when_its_request_is_gone() -> None:
    # Here the budget ends the request; a client that hangs up does the same: tests/process/test_decisions.py.
    with hooked(REQUEST_BUDGET_S="0.5") as service, in_background(service) as send:
        with gated(service) as gate:
            first = send(PATH, body(*[P] * 50))
            gate.wait_entered()
            assert_error(first.result(), 504, "timeout")
        wait_for(lambda: service.client.get("/health").json["slots_in_use"] == 0, what="the slot")
        assert len(service.engine.calls) <= 2


def test_c20_a_failure_of_the_engine_keeps_its_status(service: Local) -> None:
    for kind, status in (("oom", 503), ("runtime", 500), ("non_finite", 500), ("value", 400)):
        given = [user(data({"fake": {"error": [kind, "told"]}}))]
        answer = service.post(PATH, body(given=given))
        assert answer[0] == status, answer
        assert set(answer[1]["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", [PATH, SYSTEMONE])
def test_c23_a_cache_salt_reaches_the_engine_from_both_routes_and_none_is_none(service: Local, path: str) -> None:
    plain = O1 if path == PATH else S1
    for salt in ("s" * 43, "s" * 128, None):
        assert service.post(path, {**plain, "cache_salt": salt})[0] == 200
    assert service.post(path, plain)[0] == 200
    assert [terms.cache_salt for terms in service.engine.terms] == ["s" * 43, "s" * 128, "", ""]
    for bad in ("", "s" * 129, 5, ["s"]):
        status, answer = service.post(path, {**plain, "cache_salt": bad})
        assert status == (400 if path == PATH else 422)
        assert "cache_salt" in answer["error"]["message"]
        assert len(service.engine.terms) == 4


def test_c24_confidence_is_jevs_and_not_the_top_probability(service: Local) -> None:
    def confidence(question: Any, shares: list[float]) -> float:
        given = [user(data({"fake": {"probabilities": shares}}))]
        return float(answered(service, question, given=given)[0]["confidence"])

    # wire/decisions.md §6, worked.
    eight = [0.37, 0.33, 0.25, 0.02, 0.01, 0.01, 0.01, 0]
    assert confidence(choice(*"abcdefgh"), eight) == pytest.approx(0.28, abs=0.005)
    assert confidence(score(*"abcde"), [0.01, 0.26, 0.56, 0.12, 0.05]) == pytest.approx(0.58, abs=0.005)
    assert confidence(score(*"abcde"), [0.5, 0.5, 0, 0, 0]) == pytest.approx(0.58, abs=0.005)


def test_c25_no_answer_is_a_refusal(service: Local) -> None:
    for given in ("", "I cannot help with that", [user(data({"fake": {"set": {"type": "refusal"}}}))]):
        status, answer = service.post(PATH, body(P, choice("a", "b"), given=given))
        # An engine that refused would be a broken answer: the request fails as a whole.
        if status == 200:
            assert [one["type"] for one in answer["answers"]] == ["predicate", "choice"]
        else:
            assert_error((status, answer), 500, None)


def test_c26_text_only_on_both_routes(service: Local) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    assert_refused(service, body(given=[user(text("t"), image)]), "input[0].content[1]", "unsupported_value")
    assert_refused(service, body({**P, "instructions": [image]}), "questions[0].instructions[0]", "unsupported_value")
    for name in ("images", "assets", "audio", "videos"):
        assert service.post(SYSTEMONE, {**S1, name: ["x"]})[0] == 422


def test_c27_health_is_open_and_the_models_list_has_the_served_name(service: Local) -> None:
    found = service.client.get("/health")
    assert found.status_code == 200
    assert PATH in found.json["endpoints"]
    listed = service.client.get("/v1/models", headers=BEARER).json
    assert found.json["served_model"] in [one["id"] for one in listed["data"]]


@pytest.mark.parametrize("headers", [{}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Basic {TOKEN}"}])
def test_c28_every_v1_route_needs_the_key_and_health_does_not(service: Local, headers: dict[str, str]) -> None:
    # Unlike granite, this server never runs without a key (contract, INV-6).
    assert_error(service.post(PATH, O1, headers), 401, "invalid_api_key")
    assert service.post(SYSTEMONE, S1, headers)[0] == 401
    assert service.client.get("/v1/models", headers=headers).status_code == 401
    assert service.client.get("/health", headers=headers).status_code == 200


def test_c29_there_is_no_limit_a_client(service: Local) -> None:
    for _ in range(50):
        assert service.post(PATH, O1)[0] == 200


def test_c31_both_routes_share_one_configuration() -> None:
    with hooked(MAX_TOKENS="30", STRICT_MODEL="1") as service:
        sent = body(given="w " * 40, model="fake")
        assert_error(service.post(PATH, sent), 400, "context_length_exceeded")
        assert service.post(SYSTEMONE, {**asking(q=NOUL), "state": "w " * 40})[0] == 422
        assert service.post(PATH, body(model="other"))[0] == 404
        assert service.post(SYSTEMONE, {**asking(q=NOUL), "model": "other"})[0] == 404
    names = [setting.name for setting in SETTINGS]
    assert not [name for name in names if name.startswith("DECISIONS_")]


# -- /v1/decisions -----------------------------------------------------------------------------------------------


def test_d2_the_input_is_a_string_or_a_list_of_user_messages(service: Local) -> None:
    answered(service, given="t")
    answered(service, given=[user("t")])
    answered(service, given=[user("t"), user("u")])
    assert [call["state"] for call in service.engine.calls] == ["t", "t", "t\n\nu"]


def test_d3_a_message_holds_text_and_json_which_is_written_compactly(service: Local) -> None:
    answered(service, given=[user(text("t"), data({"a": [1, {"b": "é"}], "c": None}))])
    assert service.engine.calls[0]["state"] == 't\n{"a":[1,{"b":"é"}],"c":null}'


def test_d4_instructions_are_a_string_or_text_and_json_parts(service: Local) -> None:
    answered(service, {**P, "instructions": "t"}, {**P, "instructions": [text("t"), data({"a": 1})]})
    assert [call["questions"]["q"]["instructions"] for call in service.engine.calls] == ["t", 't\n{"a":1}']


@pytest.mark.parametrize("role", ["developer", "system", "assistant"])
def test_d5_another_role_is_400_naming_it(service: Local, role: str) -> None:
    given = [user("t"), {"role": role, "content": "c", "phase": None}]
    assert role in assert_refused(service, body(given=given), "input[1].role", "unsupported_value")


@pytest.mark.parametrize(
    "kind", ["function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"]
)
def test_d6_a_tool_call_or_output_is_400_naming_it(service: Local, kind: str) -> None:
    given = [user("t"), {"type": kind, "call_id": "c", "name": "n", "arguments": "{}", "output": [text("x")]}]
    assert kind in assert_refused(service, body(given=given), "input[1].type", "unsupported_value")


def test_d7_an_image_in_input_or_instructions_is_400_naming_it(service: Local) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
    message = assert_refused(service, body(given=[user(image)]), "input[0].content[0]", "unsupported_value")
    assert "input_image" in message
    sent = body(P, {**P, "instructions": [text("t"), image]})
    assert "input_image" in assert_refused(service, sent, "questions[1].instructions[1]", "unsupported_value")


@pytest.mark.parametrize("values", [("a", "b", "a"), (True, "x", "true"), ("false", "x", False), (True, "x", True)])
def test_d8_two_choices_that_would_merge_are_400_naming_the_later(service: Local, values: tuple[Any, ...]) -> None:
    message = assert_refused(service, body(choice(*values)), "questions[0].choices[2].value", "unsupported_value")
    assert "choice 0" in message
    answered(service, choice("True", True, "TRUE", False, "", " "))


def test_d9_every_error_has_openais_shape(service: Local) -> None:
    for sent, headers, status, code in (
        (b"{", BEARER, 400, "invalid_json"),
        (json.dumps(body(x=1)).encode(), BEARER, 400, "unknown_parameter"),
        (b"{}", {}, 401, "invalid_api_key"),
        (b"{}", {**BEARER, "Content-Type": "text/plain"}, 415, "unsupported_media_type"),
    ):
        response = service.client.post(PATH, data=sent, headers=headers)
        parsed = response.json
        assert_error((response.status_code, parsed), status, code, parsed["error"]["param"])
    assert_error(service.post(PATH, body(given="x" * 2_000_000)), 413, "request_too_large")


def test_d10_the_body_has_no_field_beyond_openais_whatever_the_engine_adds(service: Local) -> None:
    service.engine.edit = lambda answer: answer["answers"]["q"].update(diagnostics={"label_mass": 0.9})
    sent = body(P, choice("a", "b"), score("a", "b"))
    status, answer = service.post(PATH, sent)
    assert status == 200
    assert_decision(answer, sent)
    assert "diagnostics" not in json.dumps(answer)


def test_d11_usage_has_both_cache_counts_0_where_the_engine_reports_none(service: Local) -> None:
    usage = service.post(PATH, body(P, P))[1]["usage"]
    assert usage["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}


def test_d12_cached_tokens_show_what_was_shared() -> None:
    with_engine = Local(_Caching)
    try:
        usage = with_engine.post(PATH, body(P, P, P))[1]["usage"]
        assert usage["input_tokens_details"] == {"cached_tokens": 5 + 5 + 5, "cache_write_tokens": 0}
    finally:
        with_engine.close()
        idle = with_engine.app.extensions["decision"].scorer._idle
        while idle:
            idle.pop().close()


# -- /v1/systemone -----------------------------------------------------------------------------------------------


def test_s1_jevs_wire_but_model_may_be_absent(service: Local) -> None:
    # granite demands a model; the contract of this route takes any or none (design §5).
    assert service.post(SYSTEMONE, S1)[0] == 200
    assert service.post(SYSTEMONE, {name: value for name, value in S1.items() if name != "model"})[0] == 200


def test_s2_box_is_refused_in_jevs_422_but_unknown_names_are_ignored(service: Local) -> None:
    # granite refuses unknown names; the conformance suite has them ignored, and design §5 follows the suite.
    status, answer = service.post(SYSTEMONE, asking(q={"type": "box", "instructions": "dog"}))
    assert status == 422
    [item] = answer["detail"]
    assert (item["loc"], item["type"]) == (["body", "questions", "q", "type"], "union_tag_invalid")
    assert service.post(SYSTEMONE, {**S1, "x_nonce": 1, "seed": 7})[0] == 200


def test_s3_instructions_of_the_request_are_refused(service: Local) -> None:
    status, answer = service.post(SYSTEMONE, {**S1, "instructions": "Be brief"})
    assert status == 422
    assert answer["detail"][0]["loc"] == ["body", "instructions"]
    assert service.post(SYSTEMONE, {**S1, "instructions": None})[0] == 200


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ({"enable_thinking": False}, 200),
        (None, 200),
        ({"enable_thinking": True}, 422),
        ({"enable_thinking": 0}, 422),
        ({"enable_thinking": False, "adapter_name": "x"}, 422),
        ({}, 422),
        ("x", 422),
    ],
)
def test_s4_chat_template_kwargs_may_only_switch_thinking_off(service: Local, value: Any, status: int) -> None:
    assert service.post(SYSTEMONE, {**S1, "chat_template_kwargs": value})[0] == status


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("joint", False, [True, 0, "false"]),
        ("images", [], [["x"], "[]"]),
        ("audio", [], [["x"], False]),
        ("videos", [], [["x"], {}]),
        ("priority", 0, [1, -1, False, "0"]),
    ],
)
def test_s5_vllms_fields_are_taken_at_their_defaults_only(service: Local, name: str, good: Any, bad: list[Any]) -> None:
    for value in (good, None):
        assert service.post(SYSTEMONE, {**S1, name: value})[0] == 200
    for value in bad:
        status, answer = service.post(SYSTEMONE, {**S1, name: value})
        assert status == 422
        assert answer["detail"][0]["loc"] == ["body", name]


def test_s6_request_id_is_taken_and_ignored(service: Local) -> None:
    response = service.client.post(SYSTEMONE, json={**S1, "request_id": "mine"}, headers=BEARER)
    assert response.status_code == 200
    assert response.headers["x-request-id"] != "mine"


def test_s7_an_engines_diagnostics_ride_along_under_x_native(service: Local) -> None:
    # Unprefixed they would fail the conformance suite's response.extensions.
    found = {"label_mass": 0.9, "argmax_is_label": True}
    service.engine.edit = lambda answer: answer["answers"]["q"].update(diagnostics=found)
    answers = service.post(SYSTEMONE, S1)[1]["answers"]
    assert [answer["x_native"]["diagnostics"] for answer in answers.values()] == [found] * 3


def test_s8_the_long_context_header_reaches_the_engine_from_systemone_alone(service: Local) -> None:
    for value in ("true", "TRUE", "false", "1", ""):
        assert service.post(SYSTEMONE, S1, {**BEARER, LONG_CONTEXT: value})[0] == 200
    assert service.post(SYSTEMONE, S1)[0] == 200
    assert service.post(PATH, O1, {**BEARER, LONG_CONTEXT: "true"})[0] == 200
    assert [terms.long_context for terms in service.engine.terms] == [True, True, False, False, False, False, False]


def test_s9_an_object_state_reaches_the_engine_whole_to_be_written_compactly(service: Local) -> None:
    state = {"z": 1, "a": [None, {"é": True}]}
    assert service.post(SYSTEMONE, {**asking(q=NOUL), "state": state})[0] == 200
    assert json.dumps(service.engine.calls[0]["state"]) == json.dumps(state)


@pytest.mark.parametrize("name", ["instructions", "chat_template_kwargs", "joint", "audio", "priority", "cache_salt"])
def test_the_native_profile_takes_these_names_as_it_always_did(native: Local, name: str) -> None:
    assert native.post(SYSTEMONE, {**S1, name: ["anything"]}, {**BEARER, LONG_CONTEXT: "true"})[0] == 200
    [terms] = native.engine.terms
    assert (terms.cache_salt, terms.long_context) == ("", False)
