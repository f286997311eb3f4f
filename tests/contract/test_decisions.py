"""``POST /v1/decisions``: wire/decisions.md §2 to §6 to the letter, beside its edge cases and granite's list."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from shared import jsonio
from tests.contract.helpers import gated, hooked, in_background, without
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
from tests.harness import BEARER, D1, S1, Local
from web.errors import KINDS, ApiError, Invalid, Problem, render

# -- the grammar: what is taken ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ("plain", "plain"),
        ("", ""),
        ([user("one")], "one"),
        ([user("")], ""),
        ([{"role": "user", "content": []}], ""),
        ([user(text("a"), text("b"))], "a\nb"),
        ([user("one"), user("two")], "one\n\ntwo"),
        ([user(text("a"), data({"k": 1})), user("two")], 'a\n{"k":1}\n\ntwo'),
        ([user(data([{"z": 1, "a": "é"}, {}])), user("x")], '[{"z":1,"a":"é"},{}]\n\nx'),
        ([{"type": "message", "role": "user", "content": "t"}], "t"),
        ([{"type": None, "role": "user", "content": "t"}], "t"),
        ([user(data({"k": [1]}))], {"k": [1]}),
        ([user(data([{"k": 1}]))], [{"k": 1}]),
    ],
)
def test_parts_are_joined_by_a_line_break_and_messages_by_an_empty_line(service: Local, given: Any, state: Any) -> None:
    answered(service, given=given)
    assert service.engine.calls[0]["state"] == state


def test_instructions_are_read_the_same_way(service: Local) -> None:
    answered(
        service,
        {**P, "instructions": [text("a"), data({"k": [None]}), text("b")]},
        {**P, "instructions": []},
        {**P, "instructions": ""},
    )
    asked = [call["questions"]["q"]["instructions"] for call in service.engine.calls]
    assert asked == ['a\n{"k":[null]}\nb', "", ""]


def test_every_question_is_a_call_of_its_own_and_its_name_stays_here(service: Local) -> None:
    answered(service, {**P, "name": "secret-4711"}, choice("x", "y", name="secret-4711"), score("lo", "hi"))
    assert [call["questions"]["q"]["type"] for call in service.engine.calls] == ["noul", "choice", "score"]
    assert "4711" not in json.dumps(service.engine.calls)


def test_choices_and_levels_in_the_engines_terms(service: Local) -> None:
    answered(
        service,
        choice({"value": "a", "description": "first"}, {"value": True}, {"value": "", "description": None}),
        score(
            "low",
            {"label": "high", "description": "on fire"},
            {"label": "n", "description": None},
            {"label": "e", "description": ""},
        ),
    )
    asked = [call["questions"]["q"]["criteria"] for call in service.engine.calls]
    assert list(asked[0].items()) == [("a", "first"), ("true", ""), ("", "")]
    assert asked[1] == ["low", "high: on fire", "n", "e"]


@pytest.mark.parametrize("name", ["prompt_cache_key", "prompt_cache_options", "safety_identifier", "cache_salt"])
def test_null_is_absent_for_the_fields_that_clients_forward_as_null(service: Local, name: str) -> None:
    answered(service, {**P, "name": None}, choice({"value": "a", "description": None}, "b"), **{name: None})
    answered(service, given=[user(text("t", prompt_cache_breakpoint=None))])


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        (body(model=None), "model"),
        (body(given=None), "input"),
        ({**body(), "questions": None}, "questions"),
        (body({**P, "instructions": None}), "questions[0].instructions"),
        (body(choice(None, "b")), "questions[0].choices[0].value"),
        (body({**choice("a", "b"), "choices": None}), "questions[0].choices"),
        (body(score(None, "b")), "questions[0].levels[0].label"),
        (body({**score("a", "b"), "levels": None}), "questions[0].levels"),
        (body(given=[{"role": "user", "content": None}]), "input[0].content"),
        (body(given=[user(text(None))]), "input[0].content[0].text"),
        (body({"type": None, "instructions": "?"}), "questions[0].type"),
    ],
)
def test_null_is_refused_everywhere_else(service: Local, sent: Any, param: str) -> None:
    assert_refused(service, sent, param)


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({}, "model"),
        (without(body(), "model"), "model"),
        (without(body(), "input"), "input"),
        (without(body(), "questions"), "questions"),
        (body({"type": "predicate"}), "questions[0].instructions"),
        (body({"instructions": "?"}), "questions[0].type"),
        (body(P, {"type": "choice", "instructions": "?"}), "questions[1].choices"),
        (body({"type": "score", "instructions": "?"}), "questions[0].levels"),
        (body(choice({"description": "d"}, "b")), "questions[0].choices[0].value"),
        (body(score("a", {"description": "d"})), "questions[0].levels[1].label"),
        (body(given=[{"content": "t"}]), "input[0].role"),
        (body(given=[{"role": "user"}]), "input[0].content"),
        (body(given=[user({"text": "t"})]), "input[0].content[0].type"),
        (body(given=[user({"type": "input_text"})]), "input[0].content[0].text"),
        (body(given=[user({"type": "input_json"})]), "input[0].content[0].data"),
    ],
)
def test_what_is_required_is_missed_by_its_path(service: Local, sent: Any, param: str) -> None:
    assert_refused(service, sent, param, "missing_required_parameter")


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        (body(seed=1), "seed"),
        (body(stream=False), "stream"),
        (body(state="s"), "state"),
        (body({**P, "criteria": None}), "questions[0].criteria"),
        (body({**P, "levels": []}), "questions[0].levels"),
        (body(choice("a", "b", levels=[])), "questions[0].levels"),
        (body(score("a", "b", choices=[])), "questions[0].choices"),
        (body(choice({"value": "a", "weight": 1}, "b")), "questions[0].choices[0].weight"),
        (body(score("a", {"label": "b", "value": 1})), "questions[0].levels[1].value"),
        (body(given=[{**user("t"), "name": "n"}]), "input[0].name"),
        (body(given=[user(text("t", annotations=[]))]), "input[0].content[0].annotations"),
        (
            body(given=[user({**data({}), "prompt_cache_breakpoint": None})]),
            "input[0].content[0].prompt_cache_breakpoint",
        ),
        (body({**P, "instructions": [text("t", x=1)]}), "questions[0].instructions[0].x"),
    ],
)
def test_an_unknown_name_is_refused_at_every_depth(service: Local, sent: Any, param: str) -> None:
    assert_refused(service, sent, param, "unknown_parameter")


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ([], None),
        ("x", None),
        (body(model=5), "model"),
        (body(given=5), "input"),
        (body(given={"role": "user", "content": "t"}), "input"),
        (body(given=["t"]), "input[0]"),
        (body(given=[{"role": "tool", "content": "t"}]), "input[0].role"),
        (body(given=[{"role": 5, "content": "t"}]), "input[0].role"),
        (body(given=[{"type": "reasoning", "id": "r"}]), "input[0].type"),
        (body(given=[{"type": 5, "role": "user", "content": "t"}]), "input[0].type"),
        (body(given=[user(5)]), "input[0].content[0]"),
        (body(given=[{"role": "user", "content": {"type": "input_text"}}]), "input[0].content"),
        (body(given=[user({"type": "output_text", "text": "t"})]), "input[0].content[0].type"),
        (body(given=[user({"type": ["input_text"], "text": "t"})]), "input[0].content[0].type"),
        (body(given=[user(text(5))]), "input[0].content[0].text"),
        ({**body(), "questions": {"q": P}}, "questions"),
        (body("x"), "questions[0]"),
        (body({"type": "noul", "instructions": "?"}), "questions[0].type"),
        (body({"type": ["predicate"], "instructions": "?"}), "questions[0].type"),
        (body({**P, "name": 5}), "questions[0].name"),
        (body({**P, "instructions": {"a": 1}}), "questions[0].instructions"),
        (body(choice("a")), "questions[0].choices"),
        (body(choice(*map(str, range(256)))), "questions[0].choices"),
        (body({**choice("a", "b"), "choices": {"a": "x"}}), "questions[0].choices"),
        (body({**choice("a", "b"), "choices": ["a", "b"]}), "questions[0].choices[0]"),
        (body(choice({"value": "a", "description": 5}, "b")), "questions[0].choices[0].description"),
        (body(score(5, "b")), "questions[0].levels[0].label"),
        (body(score("a", True)), "questions[0].levels[1].label"),
        (body(prompt_cache_key=5), "prompt_cache_key"),
        (body(prompt_cache_key="k" * 65), "prompt_cache_key"),
        (body(prompt_cache_options="x"), "prompt_cache_options"),
        (body(safety_identifier="s" * 129), "safety_identifier"),
        (body(cache_salt=5), "cache_salt"),
        (body(cache_salt=""), "cache_salt"),
        (body(cache_salt="s" * 129), "cache_salt"),
        (body(given=[user(text("t", prompt_cache_breakpoint="x"))]), "input[0].content[0].prompt_cache_breakpoint"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_path(service: Local, sent: Any, param: str | None) -> None:
    assert_refused(service, sent, param)


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"k": value}
    return value


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (deep(32), deep(33)),
        ({"k": [0] * 9_998}, {"k": [0] * 9_999}),
        ({"k": "é" * 131_068}, {"k": "é" * 131_069}),
    ],
    ids=["32 levels", "10,000 values", "256 KiB"],
)
def test_json_data_has_openais_bounds(service: Local, good: Any, bad: Any) -> None:
    answered(service, given=[user(data(good))])
    assert_refused(service, body(given=[user(data(bad))]), "input[0].content[0].data")


def test_the_bounds_of_texts_and_lists() -> None:
    with hooked(MAX_BODY_BYTES="20000000", MAX_TOKENS="100000") as service:
        answered(service, given="x" * 10_485_760)
        assert_refused(service, body(given="x" * 10_485_761), "input")
        for sent, param in (
            (body(model="m" * 1_048_577), "model"),
            (body({**P, "name": "n" * 1_048_577}), "questions[0].name"),
            (body({**P, "instructions": "i" * 1_048_577}), "questions[0].instructions"),
            (body(choice("v" * 1_048_577, "b")), "questions[0].choices[0].value"),
            (body(score("v" * 1_048_577, "b")), "questions[0].levels[0].label"),
            (body(given=[{"role": "user", "content": [text("")] * 16_385}]), "input[0].content"),
            (body(given=[user("")] * 131_073), "input"),
        ):
            assert_refused(service, sent, param)


def test_a_long_name_is_cut_in_the_error(service: Local) -> None:
    status, answer = service.post(PATH, body(**{"x" * 5000: 1}))
    assert status == 400
    assert answer["error"]["param"] == "x" * 64 + "..."
    assert len(answer["error"]["message"]) < 200


def test_no_text_of_the_callers_is_in_an_error(service: Local) -> None:
    secret = "secret-4711"
    for sent in (
        body({**P, "instructions": [{"type": secret}]}),
        body(choice(secret, secret)),
        body(given=[{"role": secret, "content": secret}]),
        body({"type": secret}),
        body(model=[secret]),
    ):
        status, answer = service.post(PATH, sent)
        assert status == 400
        assert secret not in json.dumps(answer)


def test_every_problem_is_told_and_the_first_is_the_param(service: Local) -> None:
    message = assert_refused(
        service,
        body({"type": "predicate"}, choice(1, "b"), P),
        "questions[0].instructions",
        "missing_required_parameter",
    )
    assert "questions[0].instructions: " in message
    assert "questions[1].choices[0].value: " in message


def test_a_body_of_the_other_route_is_pointed_there(service: Local) -> None:
    for sent in (S1, {"state": "x"}):
        message = assert_refused(service, sent, "input", "missing_required_parameter")
        assert "/v1/systemone" in message


def test_a_request_that_is_too_long_is_context_length_exceeded(service: Local) -> None:
    answer = service.post(PATH, body(P, {**P, "instructions": "w " * 9000}))
    assert "9" in assert_error(answer, 400, "context_length_exceeded")
    assert service.engine.calls == []


# -- the answer --------------------------------------------------------------------------------------------------


def test_the_engines_numbers_pass_untouched(service: Local) -> None:
    script = {"fake": {"probabilities": [0.3000000000000001, 0.6, 0.0999999999999999]}}
    shares = script["fake"]["probabilities"]
    chosen, scored = answered(service, choice("x", "y", "z"), score("x", "y", "z"), given=[user(data(script))])
    assert [item["probability"] for item in chosen["probabilities"]] == shares
    assert [item["probability"] for item in scored["probabilities"]] == shares
    assert chosen["choice"] == "y"
    assert scored["score"] == service.engine.answers[1]["answers"]["q"]["score"]
    [answer] = answered(service, P, given=[user(data({"fake": {"probabilities": [0.2, 0.8]}}))])
    assert answer["probability"] == 0.8


@pytest.mark.parametrize("shares", [[0.3, 0.6, 0.0995], [0.0, 0.3995, 0.6], [0.0, 0.0, 1.0], [1.0, 0.0009, 0.0]])
def test_a_sum_that_strays_is_divided_by_itself_and_the_score_follows(service: Local, shares: list[float]) -> None:
    # Clients refuse a sum off by 1e-6 (the helper checks it); an engine may stray by 1e-3.
    given = [user(data({"fake": {"probabilities": shares}}))]
    chosen, scored = answered(service, choice("x", "y", "z"), score("x", "y", "z"), given=given)
    expected = [share / sum(shares) for share in shares]
    assert [item["probability"] for item in chosen["probabilities"]] == pytest.approx(expected, abs=1e-12)
    assert scored["score"] == pytest.approx(expected[1] + 2 * expected[2], abs=1e-9)


def test_a_score_that_is_not_the_mean_of_its_levels_is_500(service: Local) -> None:
    given = [user(data({"fake": {"set": {"score": 0.9}}}))]
    assert_error(service.post(PATH, body(score("x", "y"), given=given)), 500, None)


SURROGATES = {
    "input": body(given="@"),
    "a data name": body(given=[user(data({"@": 1}))]),
    "instructions": body({**P, "instructions": [text("@")]}),
    "a name": body({**P, "name": "@"}),
    "a value": body(choice("@", "b")),
    "a description": body(choice({"value": "a", "description": "@"}, "b")),
    "a label": body(score("@", "b")),
    "an ignored field": body(prompt_cache_options={"k": "@"}),
}


@pytest.mark.parametrize("sent", SURROGATES.values(), ids=SURROGATES)
def test_a_lone_surrogate_is_400_wherever_it_stands_and_a_pair_is_echoed(service: Local, sent: dict[str, Any]) -> None:
    raw = json.dumps(sent).encode()
    assert_refused(service, raw.replace(b"@", b"\\ud800"), None, "invalid_json")
    status, answer = service.post(PATH, raw.replace(b"@", b"\\ud83d\\ude00"))
    assert status == 200
    assert_decision(answer, json.loads(json.dumps(sent).replace("@", "\U0001f600")))


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'"x"', b"5", b"null", b"{", b'{"a":1}{"b":2}', b"\xff", json.dumps(O1).encode("utf-16")]
)
def test_a_body_that_is_no_object_is_400(service: Local, raw: bytes) -> None:
    status, answer = service.post(PATH, raw)
    assert_error((status, answer), 400, answer["error"]["code"])
    assert answer["error"]["code"] in ("invalid_json", "invalid_value")
    assert service.post(PATH, b"\xef\xbb\xbf" + json.dumps(O1).encode())[0] == 200


@pytest.mark.parametrize("fault", ["drop_option", "drop_answer", "nan", "inf"])
@pytest.mark.parametrize("question", [P, choice("x", "y"), score("x", "y")], ids=["predicate", "choice", "score"])
def test_a_broken_answer_is_500_for_the_whole_request(service: Local, fault: str, question: Any) -> None:
    given = [user(data({"fake": {} if fault == "inf" else {fault: True}}))]
    if fault == "inf":
        service.engine.edit = lambda answer: answer["answers"]["q"].update(confidence=float("inf"))
    assert_error(service.post(PATH, body(P, question, given=given)), 500, None)
    assert_error(
        service.post(PATH, body(question, given=[user(data({"fake": {"error": ["runtime", "x"]}}))])), 500, None
    )


def test_usage_counts_every_prompt_and_what_was_cached(service: Local) -> None:
    one = service.post(PATH, body())[1]["usage"]
    three = service.post(PATH, body(P, P, P))[1]["usage"]
    assert one["input_tokens"] > 0
    assert three["input_tokens"] == three["total_tokens"] == 3 * one["input_tokens"]
    assert (three["output_tokens"], three["output_tokens_details"]) == (0, {"reasoning_tokens": 0})


def test_the_models_list_has_the_model_of_the_answer(service: Local) -> None:
    names = [one["id"] for one in service.client.get("/v1/models", headers=BEARER).json["data"]]
    assert [service.post(PATH, O1)[1]["model"]] == names


@pytest.mark.parametrize(("kind", "profile"), [("service", "jev"), ("native", "native")])
def test_the_route_is_the_same_in_both_profiles_of_systemone(
    request: pytest.FixtureRequest, kind: str, profile: str
) -> None:
    service: Local = request.getfixturevalue(kind)
    assert service.client.get("/health").json["systemone"]["profile"] == profile
    answered(service, *[P] * 17, choice(*map(str, range(255))))


# -- models ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict() -> Iterator[Local]:
    with hooked(STRICT_MODEL="1") as service:
        yield service


@pytest.mark.parametrize("model", ["gpt-6-luna", "", "anything"])
def test_any_model_is_taken_unless_the_server_is_strict(service: Local, strict: Local, model: str) -> None:
    answered(service, model=model)
    strict.engine.reset()
    message = assert_error(strict.post(PATH, body(model=model)), 404, "model_not_found", "model")
    assert "fake@0" in message
    assert strict.engine.prepared == 0


@pytest.mark.parametrize("model", ["fake", "fake@0"])
def test_a_strict_server_takes_its_own_names(strict: Local, model: str) -> None:
    answered(strict, model=model)


# -- transport ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_another_method_is_405_with_allow_in_openais_body(service: Local, method: str) -> None:
    response = service.client.open(PATH, method=method)
    assert_error((response.status_code, response.json), 405, "method_not_allowed")
    assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize(
    "media_type", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", None]
)
def test_json_is_taken_with_parameters_or_unnamed(service: Local, media_type: str | None) -> None:
    response = service.client.post(PATH, data=json.dumps(O1), headers=BEARER, content_type=media_type)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonl", "multipart/form-data; x"]
)
def test_another_media_type_is_415(service: Local, media_type: str) -> None:
    response = service.client.post(PATH, data=json.dumps(O1), headers=BEARER, content_type=media_type)
    assert_error((response.status_code, response.json), 415, "unsupported_media_type")
    if not media_type.startswith("multipart"):
        assert (
            service.client.post("/decide", json=D1, headers={**BEARER, "Content-Type": media_type}).status_code == 200
        )


def test_an_encoding_is_decoded_or_415(service: Local) -> None:
    sent = gzip.compress(json.dumps(O1).encode())
    assert service.post(PATH, sent, {**BEARER, "Content-Encoding": "gzip"})[0] == 200
    assert_error(service.post(PATH, sent, {**BEARER, "Content-Encoding": "br"}), 415, "unsupported_media_type")
    assert_error(service.post(PATH, sent[:-9], {**BEARER, "Content-Encoding": "gzip"}), 400, "invalid_json")


def test_a_body_over_the_limit_is_413() -> None:
    with hooked(MAX_BODY_BYTES="300") as service:
        assert_error(service.post(PATH, body(given="x" * 300)), 413, "request_too_large")
        answered(service)


def test_a_full_queue_is_429_with_a_small_retry_after() -> None:
    with hooked(MAX_QUEUE="1") as service, in_background(service) as send:
        with gated(service) as gate:
            first = send(PATH, body())
            gate.wait_entered()
            response = service.client.post(PATH, data=b"", headers=BEARER)
            assert_error((response.status_code, response.json), 429, "rate_limit_exceeded")
            assert 1 <= int(response.headers["Retry-After"]) <= 5
            assert "x-should-retry" not in response.headers
        assert first.result()[0] == 200


def test_no_memory_is_503_with_a_small_retry_after(service: Local) -> None:
    given = [user(data({"fake": {"error": ["oom", "x"]}}))]
    response = service.client.post(PATH, json=body(given=given), headers=BEARER)
    assert_error((response.status_code, response.json), 503, "overloaded")
    assert 1 <= int(response.headers["Retry-After"]) <= 5


def test_every_response_has_a_request_id(service: Local) -> None:
    responses = [
        service.client.post(PATH, json=O1, headers=BEARER),
        service.client.post(PATH, json=O1),
        service.client.post(PATH, data=b"{", headers=BEARER),
        service.client.get(PATH),
        service.client.post("/decisions", json=O1, headers=BEARER),
    ]
    assert [response.status_code for response in responses] == [200, 401, 400, 405, 404]
    assert all(response.headers["x-request-id"].startswith("req_") for response in responses)
    own = service.client.post(PATH, json=O1, headers={**BEARER, "X-Request-ID": "mine-1"})
    assert own.headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize("path", [f"{PATH}/", f"{PATH}/batch"])
def test_a_path_below_is_404_in_openais_body(service: Local, path: str) -> None:
    response = service.client.post(path, json=O1, headers=BEARER)
    assert_error((response.status_code, response.json), 404, "not_found")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_path_without_v1_is_no_alias_and_says_what_to_do(service: Local, method: str) -> None:
    response = service.client.open("/decisions", method=method, json=O1, headers=BEARER)
    assert response.status_code == 404
    assert response.json["error"]["code"] == "not_found"
    assert "/v1/decisions" in response.json["error"]["message"]
    assert service.engine.prepared == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_openais_four_keys_and_says_when_a_retry_is_in_vain(kind: str) -> None:
    status, headers, text_ = render(ApiError(kind, "a message"), PATH)
    parsed = jsonio.loads(text_)
    assert set(parsed) == {"error"}
    assert set(parsed["error"]) == {"message", "type", "param", "code"}
    assert parsed["error"]["message"] == "a message"
    assert status == (400 if kind == "invalid_request" else KINDS[kind].status)
    found = dict(headers)
    # wire/decisions.md §5: OpenAI's clients retry 408, 409, 429 and every 5xx twice unless they are told.
    hopeful = kind in ("busy", "overloaded", "out_of_memory", "scorer_unavailable", "deadline_exceeded")
    assert ("Retry-After" in found) == hopeful
    assert found.get("x-should-retry") == (None if hopeful or kind == "request_timeout" else "false")
    assert "x-should-retry" not in dict(render(ApiError(kind, "m"), "/v1/systemone")[1])


def test_a_problem_is_told_by_a_bracket_path() -> None:
    error = Invalid([Problem(("questions", 0, "choices", 1, "value"), "m"), Problem((), "whole")])
    parsed = jsonio.loads(render(error, PATH)[2])["error"]
    assert parsed["param"] == "questions[0].choices[1].value"
    assert parsed["message"] == "questions[0].choices[1].value: m; whole"
    assert jsonio.loads(render(Invalid([Problem((), "whole")]), PATH)[2])["error"]["param"] is None
