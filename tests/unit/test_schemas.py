"""Validation of bodies (web/schemas): contract § Endpoints, § Limits, § POST /v1/systemone; wire/semif.md §1, §7
cases 3-5, 10, 12, 14, §8 items 13-20; wire/systemone.md §2, §4.3, §12; trouble.md ranks 26, 38, 40, 41; design §5."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import jsonio
from shared.wire import Limits
from tests.harness import D1, S1, decision
from tests.unit.strategies import json_values
from web.errors import Invalid, render
from web.schemas.base import load
from web.schemas.semif import check_rows, decide_schema, shared_schema
from web.schemas.systemone import schema_for

LIMITS = Limits()
NATIVE_LIMITS = Limits(options=62, levels=62)


def decide(body: Any) -> dict[str, Any]:
    return load(decide_schema(255), body)


def shared(body: Any) -> dict[str, Any]:
    return load(shared_schema(255), body)


def jev(body: Any, limits: Limits = LIMITS) -> dict[str, Any]:
    return load(schema_for("jev", limits, 16), body)


def native(body: Any, limits: Limits = NATIVE_LIMITS, most_options: int = 16) -> dict[str, Any]:
    return load(schema_for("native", limits, most_options), body)


def refused(loader: Any, body: Any) -> Invalid:
    before = copy.deepcopy(body)
    with pytest.raises(Invalid) as caught:
        loader(body)
    assert body == before
    error = caught.value
    assert error.kind == "invalid_request"
    assert error.problems
    assert all(problem.msg and problem.type and isinstance(problem.loc, tuple) for problem in error.problems)
    return error


def types(error: Invalid) -> set[tuple[tuple[str | int, ...], str]]:
    return {(problem.loc, problem.type) for problem in error.problems}


def without(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


S = {"state": "s", "decisions": [decision("d1", ["a", "b"]), decision("d2", ["a", "b"])]}

# -- /decide ---


def test_a_good_decision_is_loaded_with_its_orderings_filled_in() -> None:
    assert decide(D1) == {**D1, "orderings": "none"}


@pytest.mark.parametrize("name", ["id", "state", "question", "options"])
def test_a_missing_field_is_named(name: str) -> None:
    assert types(refused(decide, without(D1, name))) == {((name,), "missing")}


@pytest.mark.parametrize("name", ["id", "question"])
@pytest.mark.parametrize("value", [5, 5.5, True, None, ["x"], {"a": 1}])
def test_an_id_or_a_question_that_is_no_string_is_never_coerced(name: str, value: Any) -> None:
    assert types(refused(decide, {**D1, name: value})) == {((name,), "string_type")}


@pytest.mark.parametrize("name", ["id", "question"])
def test_an_id_or_a_question_is_nonempty_and_white_space_counts(name: str) -> None:
    refused(decide, {**D1, name: ""})
    assert decide({**D1, name: " "})[name] == " "
    assert decide({**D1, name: "5"})[name] == "5"


@pytest.mark.parametrize("value", ["", {}, [], None, 5, 5.5, True, False, 0])
def test_a_state_that_is_empty_or_no_text_is_refused(value: Any) -> None:
    for loader, body in ((decide, D1), (shared, S), (native, S1)):
        assert {loc for loc, _ in types(refused(loader, {**body, "state": value}))} == {("state",)}


@pytest.mark.parametrize("value", [" ", [0], {"a": None}, [[]], {"z": 1, "a": ["é", None, True]}])
def test_any_other_state_is_passed_on_as_it_is(value: Any) -> None:
    for loader, body in ((decide, D1), (shared, S), (native, S1), (jev, S1)):
        loaded = loader({**body, "state": value})["state"]
        assert loaded == value
        assert jsonio.dumps(loaded) == jsonio.dumps(value), "the order of names changed"


def options(count: int) -> list[dict[str, str]]:
    return [{"id": f"o{i}", "description": f"d{i}"} for i in range(count)]


@pytest.mark.parametrize("count", range(19))
def test_two_to_sixteen_options(count: int) -> None:
    body = {**D1, "options": options(count)}
    if 2 <= count <= 16:
        assert len(decide(body)["options"]) == count
    else:
        assert types(refused(decide, body)) == {(("options",), "too_short" if count < 2 else "too_long")}


def test_an_engine_may_lower_the_option_cap_and_never_raise_it() -> None:
    with pytest.raises(Invalid):
        load(decide_schema(4), {**D1, "options": options(5)})
    load(decide_schema(4), {**D1, "options": options(4)})
    with pytest.raises(Invalid):
        load(decide_schema(255), {**D1, "options": options(17)})


@pytest.mark.parametrize("value", [{}, {"id": "a"}, "ab", None, 5, True])
def test_options_that_are_no_list_are_refused(value: Any) -> None:
    assert types(refused(decide, {**D1, "options": value})) == {(("options",), "list_type")}


@pytest.mark.parametrize("option", [None, [], "x", 5, [["id", "a"]]])
def test_an_option_that_is_no_object_is_refused_at_its_place(option: Any) -> None:
    error = refused(decide, {**D1, "options": [D1["options"][0], option]})
    assert types(error) == {(("options", 1), "dict_type")}


@pytest.mark.parametrize("name", ["id", "description"])
@pytest.mark.parametrize("value", [1, None, True, [], {}])
def test_an_options_id_and_description_are_strings(name: str, value: Any) -> None:
    first = {**D1["options"][0], name: value}
    assert types(refused(decide, {**D1, "options": [first, D1["options"][1]]})) == {
        (("options", 0, name), "string_type")
    }
    assert types(refused(decide, {**D1, "options": [without(first, name), D1["options"][1]]})) == {
        (("options", 0, name), "missing")
    }


def test_an_options_id_and_description_may_be_empty() -> None:
    loaded = decide({**D1, "options": [{"id": "", "description": ""}, {"id": "x", "description": "X"}]})
    assert loaded["options"][0] == {"id": "", "description": ""}


def test_option_ids_are_unique_exactly() -> None:
    doubled = [{"id": "a", "description": "1"}, {"id": "b", "description": "2"}, {"id": "a", "description": "3"}]
    assert refused(decide, {**D1, "options": doubled}).problems[0].loc == ("options",)
    decide(
        {
            **D1,
            "options": [
                {"id": "a", "description": ""},
                {"id": "A", "description": ""},
                {"id": "a ", "description": ""},
            ],
        }
    )


def test_unknown_names_are_ignored_at_every_depth_and_go_no_further() -> None:
    body = {
        **D1,
        "label": "access",
        "provenance": {"secret": "x"},
        "images": ["x"],
        "options": [{**option, "weight": 3} for option in D1["options"]],
    }
    assert decide(body) == decide(D1)
    assert shared({**S, "more": 1, "decisions": [{**d, "more": 2} for d in S["decisions"]]}) == shared(S)


@pytest.mark.parametrize("value", ["ALL", "Rotations", "", " none", "every", True, 1, 0, [], ["all"], {}])
def test_orderings_is_one_of_three_words(value: Any) -> None:
    assert types(refused(decide, {**D1, "orderings": value})) == {(("orderings",), "enum")}


@pytest.mark.parametrize(
    ("given_value", "loaded"), [(None, "none"), ("none", "none"), ("rotations", "rotations"), ("all", "all")]
)
def test_orderings_null_is_none(given_value: Any, loaded: str) -> None:
    assert decide({**D1, "orderings": given_value})["orderings"] == loaded


@pytest.mark.parametrize("count", [2, 4, 5, 16])
def test_all_takes_at_most_four_options(count: int) -> None:
    body = {**D1, "options": options(count), "orderings": "all"}
    if count <= 4:
        decide(body)
    else:
        assert refused(decide, body).problems[0].loc == ("orderings",)
    decide({**body, "orderings": "rotations"})


@pytest.mark.parametrize("value", ["", "wanli", False, 0, True, [], {}])
def test_any_workload_but_null_is_refused_wherever_it_stands(value: Any) -> None:
    assert {loc for loc, _ in types(refused(decide, {**D1, "workload": value}))} == {("workload",)}
    assert {loc for loc, _ in types(refused(shared, {**S, "workload": value}))} == {("workload",)}
    nested = {**S, "decisions": [S["decisions"][0], {**S["decisions"][1], "workload": value}]}
    assert {loc for loc, _ in types(refused(shared, nested))} == {("decisions", 1, "workload")}
    decide({**D1, "workload": None})
    shared({**S, "workload": None})


@pytest.mark.parametrize("body", [None, [], [D1], "x", 5, True, 1.5])
def test_a_body_that_is_no_object_is_a_dict_type_at_the_root(body: Any) -> None:
    for loader in (decide, shared, jev, native):
        assert types(refused(loader, body)) == {((), "dict_type")}


def test_all_problems_are_told_together() -> None:
    error = refused(decide, {"id": 5, "state": "", "question": "?", "options": [{"id": "a"}, 7]})
    assert types(error) == {
        (("id",), "string_type"),
        (("state",), "too_short"),
        (("options", 0, "description"), "missing"),
        (("options", 1), "dict_type"),
    }
    for where in ("id: ", "state: ", "options.0.description: ", "options.1: "):
        assert where in error.message


# -- /decide/shared ---


@pytest.mark.parametrize("value", [[], {}, "x", None, 5, [None], [[]], ["d"]])
def test_decisions_are_a_nonempty_list_of_objects(value: Any) -> None:
    assert refused(shared, {**S, "decisions": value}).problems[0].loc[0] == "decisions"


def test_decision_ids_are_unique_in_a_request() -> None:
    assert refused(shared, {**S, "decisions": [S["decisions"][0]] * 2}).problems[0].loc == ("decisions",)


def test_a_shared_decision_has_no_state_of_its_own_and_the_request_must() -> None:
    assert "state" not in shared({**S, "decisions": [{**S["decisions"][0], "state": "own"}]})["decisions"][0]
    assert types(refused(shared, without(S, "state"))) == {(("state",), "missing")}


def test_each_bad_decision_is_told_at_its_place() -> None:
    bad = [S["decisions"][0], {**S["decisions"][1], "question": ""}, decision("d3", ["a"]), decision("d4", ["a", "a"])]
    places = {loc for loc, _ in types(refused(shared, {**S, "decisions": bad}))}
    assert places == {("decisions", 1, "question"), ("decisions", 2, "options"), ("decisions", 3, "options")}


def rows(*specs: tuple[int, str]) -> list[dict[str, Any]]:
    return [decision(f"d{i}", [f"o{j}" for j in range(count)], orderings=mode) for i, (count, mode) in enumerate(specs)]


@pytest.mark.parametrize(
    ("specs", "total"),
    [
        ([(16, "rotations")] * 4, 64),
        ([(16, "rotations")] * 4 + [(2, "none")], 65),
        ([(2, "none")] * 64, 64),
        ([(2, "none")] * 65, 65),
        ([(3, "all")] * 11, 66),
        ([(4, "all"), (4, "all"), (16, "rotations")], 64),
        ([(3, "all")] * 10 + [(4, "rotations")], 64),
    ],
)
def test_orderings_count_towards_max_decisions_after_expansion(specs: list[tuple[int, str]], total: int) -> None:
    check_rows(rows(*specs), total)
    with pytest.raises(Invalid, match=str(total)) as caught:
        check_rows(rows(*specs), total - 1)
    assert str(total - 1) in caught.value.message


def test_a_single_decision_can_be_over_max_decisions() -> None:
    with pytest.raises(Invalid):
        check_rows(rows((3, "rotations")), 2)


# -- /v1/systemone ---

NOUL = {"type": "noul", "instructions": "Refund?"}
CHOICE = {"type": "choice", "instructions": "Team?", "criteria": {"x": None, "y": "Y"}}
SCORE = {"type": "score", "instructions": "Bad?", "criteria": ["Calm", "Angry"]}


def asking(question: Any, **more: Any) -> dict[str, Any]:
    return {"model": "jev-latest", "state": "Refund me", "questions": {"q": question}, **more}


BOTH = [jev, native]


@pytest.mark.parametrize("loader", BOTH)
def test_a_good_body_passes_and_keeps_ids_and_options_in_order(loader: Any) -> None:
    body = {**S1, "questions": {"zeta": CHOICE, "a b": NOUL, "🎯 질문": SCORE}}
    loaded = loader(body)
    assert list(loaded["questions"]) == ["zeta", "a b", "🎯 질문"]
    assert list(loaded["questions"]["zeta"]["criteria"]) == ["x", "y"]


@pytest.mark.parametrize("loader", BOTH)
@pytest.mark.parametrize("value", [[], "x", None, 5, True])
def test_questions_are_an_object(loader: Any, value: Any) -> None:
    assert types(refused(loader, {**S1, "questions": value})) == {(("questions",), "dict_type")}


@pytest.mark.parametrize("loader", BOTH)
def test_questions_are_at_least_one_and_required(loader: Any) -> None:
    assert types(refused(loader, {**S1, "questions": {}})) == {(("questions",), "too_short")}
    assert types(refused(loader, without(S1, "questions"))) == {(("questions",), "missing")}
    assert types(refused(loader, without(S1, "state"))) == {(("state",), "missing")}


@pytest.mark.parametrize("count", [1, 16, 17, 400, 401])
def test_sixteen_questions_in_native_and_four_hundred_in_jev(count: int) -> None:
    body = {**S1, "questions": {f"q{i}": NOUL for i in range(count)}}
    for loader, most in ((native, 16), (jev, 400)):
        if count <= most:
            assert len(loader(body)["questions"]) == count
        else:
            error = refused(loader, body)
            assert types(error) == {(("questions",), "too_long")}
            assert str(most) in error.message


def test_an_engines_own_limits_lower_jevs_bounds_and_never_raise_them() -> None:
    low = Limits(request_questions=2, options=3, levels=2)
    high = Limits(request_questions=10_000, options=10_000, levels=10_000)
    three, four = ({f"o{i}": None for i in range(n)} for n in (3, 4))
    jev(asking({**CHOICE, "criteria": three}), low)
    refused(lambda body: jev(body, low), asking({**CHOICE, "criteria": four}))
    refused(lambda body: jev(body, low), asking({**SCORE, "criteria": ["a", "b", "c"]}))
    refused(lambda body: jev(body, low), {**S1, "questions": {f"q{i}": NOUL for i in range(3)}})
    refused(lambda body: jev(body, high), asking({**CHOICE, "criteria": {f"o{i}": None for i in range(256)}}))
    refused(lambda body: jev(body, high), asking({**SCORE, "criteria": ["l"] * 11}))
    refused(lambda body: jev(body, high), {**S1, "questions": {f"q{i}": NOUL for i in range(401)}})


@pytest.mark.parametrize("loader", BOTH)
@pytest.mark.parametrize("question", [None, "noul", [], 5, ["type", "noul"]])
def test_a_question_is_an_object_and_its_name_is_told(loader: Any, question: Any) -> None:
    assert types(refused(loader, asking(question))) == {(("questions", "q"), "dict_type")}


@pytest.mark.parametrize("loader", BOTH)
@pytest.mark.parametrize("kind", ["boolean", "", "NOUL", "box", None, 5, ["noul"], {"noul": 1}, True])
def test_an_unknown_type_is_refused_naming_the_question(loader: Any, kind: Any) -> None:
    error = refused(loader, asking({**NOUL, "type": kind}))
    assert error.problems[0].loc[:2] == ("questions", "q")
    assert error.problems[0].type == "union_tag_invalid"


@pytest.mark.parametrize("loader", BOTH)
def test_a_question_without_a_type_is_refused(loader: Any) -> None:
    error = refused(loader, asking({"instructions": "?"}))
    assert error.problems[0].type == "union_tag_not_found"
    assert error.problems[0].loc[:2] == ("questions", "q")


@pytest.mark.parametrize("loader", BOTH)
def test_a_questions_name_must_not_be_empty(loader: Any) -> None:
    assert refused(loader, {**S1, "questions": {"": NOUL}}).problems[0].type == "too_short"


@pytest.mark.parametrize("loader", BOTH)
@pytest.mark.parametrize("name", ["_schema", "type", "0", "questions"])
def test_the_problem_names_the_question_whatever_it_is_called(loader: Any, name: str) -> None:
    error = refused(loader, {**S1, "questions": {name: None}})
    assert [problem.loc for problem in error.problems] == [("questions", name)]


@pytest.mark.parametrize("loader", BOTH)
@pytest.mark.parametrize("name", ["images", "assets"])
def test_images_are_refused_unless_null_or_empty(loader: Any, name: str) -> None:
    for absent in (None, []):
        loader(asking(NOUL, **{name: absent}))
    if name == "assets":
        loader(asking(NOUL, assets={}))  # Jev's field is an object
    else:
        refused(
            loader, asking(NOUL, images={})
        )  # design §5: "null or an empty list counts as absent, anything else is 422"
    for value in (["x"], {"<image:a>": {"type": "image"}}, "x", "", 0, False, 1, [None]):
        error = refused(loader, asking(NOUL, **{name: value}))
        assert error.problems[0].loc == (name,)
        assert "images not supported" in error.message


@pytest.mark.parametrize("loader", BOTH)
@pytest.mark.parametrize("model", [None, "", "jev-latest", "x" * 300, 7, 7.5, True, [], {"a": 1}])
def test_any_model_value_is_accepted_as_the_contract_says(loader: Any, model: Any) -> None:
    # Contract § POST /v1/systemone: "`model` is accepted with **any** value ... and ignored"; trouble.md rank 26.
    loader(asking(NOUL, model=model))
    loader(without(asking(NOUL), "model"))


@pytest.mark.parametrize("loader", BOTH)
def test_unknown_names_in_body_and_question_are_ignored(loader: Any) -> None:
    loader(asking({**NOUL, "x_note": 1}, x_nonce="n", seed=7, cache_salt="s"))


def test_jev_lets_no_unknown_name_of_a_question_through() -> None:
    loaded = jev(asking({**CHOICE, "x_note": 1, "images": ["/etc/passwd"]}))
    assert loaded["questions"]["q"] == CHOICE


def test_native_passes_a_question_on_untouched() -> None:
    question = {
        "type": "choice",
        "x_note": {"deep": [1]},
        "criteria": {"b": None, "a": 7},
        "instructions": {"not": "checked here"},
    }
    loaded = native(asking(question))
    assert loaded["questions"]["q"] == question
    assert list(loaded["questions"]["q"]) == list(question)


@pytest.mark.parametrize("count", [0, 1, 16, 17])
def test_native_caps_options_and_levels_by_its_setting(count: int) -> None:
    for question in (
        {**CHOICE, "criteria": {f"o{i}": "d" for i in range(count)}},
        {**SCORE, "criteria": ["l"] * count},
        {**SCORE, "criteria": {str(i): "l" for i in range(count)}},
    ):
        if 1 <= count <= 16:
            native(asking(question))
        else:
            assert refused(native, asking(question)).problems[0].loc == ("questions", "q", "criteria")


@pytest.mark.parametrize(("setting", "engine", "most"), [(62, 62, 62), (100, 62, 62), (30, 62, 30), (16, 10, 10)])
def test_native_max_options_raises_the_cap_up_to_the_engines_own(setting: int, engine: int, most: int) -> None:
    limits = Limits(options=engine)
    native(asking({**CHOICE, "criteria": {f"o{i}": "d" for i in range(most)}}), limits, setting)
    with pytest.raises(Invalid):
        native(asking({**CHOICE, "criteria": {f"o{i}": "d" for i in range(most + 1)}}), limits, setting)


def test_native_leaves_criteria_of_another_shape_to_the_engine() -> None:
    for question in (
        {"type": "choice"},
        {"type": "choice", "criteria": "x"},
        {"type": "score", "criteria": None},
        {**NOUL, "criteria": 5},
    ):
        assert native(asking(question))["questions"]["q"] == question


@pytest.mark.parametrize("state", ["", {}, []])
def test_jev_accepts_an_empty_state(state: Any) -> None:
    assert jev(asking(NOUL, state=state))["state"] == state


@pytest.mark.parametrize("state", [None, 42, 1.5, True])
def test_jev_refuses_a_state_that_is_no_text(state: Any) -> None:
    assert types(refused(jev, asking(NOUL, state=state))) == {(("state",), "union_type")}


@pytest.mark.parametrize("value", [5, True, 1.5])
@pytest.mark.parametrize("question", [NOUL, CHOICE, SCORE])
def test_jev_instructions_are_a_text_or_null(question: dict[str, Any], value: Any) -> None:
    assert types(refused(jev, asking({**question, "instructions": value}))) == {
        (("questions", "q", "instructions"), "union_type")
    }
    for fine in ({"question": "Urgent?"}, ["a"], "x"):
        assert jev(asking({**question, "instructions": fine}))["questions"]["q"]["instructions"] == fine


@pytest.mark.parametrize("question", [CHOICE, SCORE])
def test_jev_choice_and_score_need_no_instructions(question: dict[str, Any]) -> None:
    jev(asking({**question, "instructions": None}))
    jev(asking(without(question, "instructions")))


@pytest.mark.parametrize(
    "criteria",
    [
        {"true": "asks for money"},
        {"false": "only asks"},
        {"true": "t", "false": None},
        None,
        {},
        {"true": {"a": 1}, "false": ["x"]},
    ],
)
def test_jev_noul_sides_are_each_optional(criteria: Any) -> None:
    jev(asking({**NOUL, "criteria": criteria}))


@pytest.mark.parametrize(
    "criteria", [[], "x", 5, True, {"yes": "x"}, {"1": "x"}, {"true": 5}, {"false": False}, {"True": "x"}]
)
def test_jev_refuses_other_noul_criteria(criteria: Any) -> None:
    assert refused(jev, asking({**NOUL, "criteria": criteria})).problems[0].loc[:3] == ("questions", "q", "criteria")


@pytest.mark.parametrize("instructions", [None, "absent"])
@pytest.mark.parametrize("criteria", [None, {}, {"true": None}, {"true": None, "false": None}, "absent"])
def test_jev_refuses_a_noul_with_nothing_to_decide(instructions: Any, criteria: Any) -> None:
    question = {
        name: value
        for name, value in (("type", "noul"), ("instructions", instructions), ("criteria", criteria))
        if value != "absent"
    }
    refused(jev, asking(question))
    jev(asking({**question, "criteria": {"false": "threat"}}))
    jev(asking({**question, "instructions": "?"}))


@pytest.mark.parametrize("instructions", [None, "absent"])
@pytest.mark.parametrize("criteria", [None, {}, {"true": None}, "absent"])
def test_native_refuses_a_noul_with_nothing_to_decide_too(instructions: Any, criteria: Any) -> None:
    # Design §5 settles it for the route: "noul with neither instructions nor a described side is 422".
    question = {
        name: value
        for name, value in (("type", "noul"), ("instructions", instructions), ("criteria", criteria))
        if value != "absent"
    }
    refused(native, asking(question))


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256])
def test_jev_choice_has_one_to_255_options(count: int) -> None:
    question = {**CHOICE, "criteria": {f"o{i}": None for i in range(count)}}
    if 1 <= count <= 255:
        assert len(jev(asking(question))["questions"]["q"]["criteria"]) == count
    else:
        error = refused(jev, asking(question))
        assert types(error) == {(("questions", "q", "criteria"), "too_long" if count else "too_short")}


@pytest.mark.parametrize("criteria", [[], ["a", "b"], "x", None, 5])
def test_jev_choice_criteria_are_an_object(criteria: Any) -> None:
    assert types(refused(jev, asking({**CHOICE, "criteria": criteria}))) == {
        (("questions", "q", "criteria"), "dict_type")
    }
    assert types(refused(jev, asking(without(CHOICE, "criteria")))) == {(("questions", "q", "criteria"), "missing")}


@pytest.mark.parametrize("text", [5, True, 1.5])
def test_jev_option_descriptions_are_texts_or_null(text: Any) -> None:
    error = refused(jev, asking({**CHOICE, "criteria": {"fine": None, "": {"a": 1}, "bad": text}}))
    assert types(error) == {(("questions", "q", "criteria", "bad"), "union_type")}


@pytest.mark.parametrize("count", [0, 1, 2, 10, 11])
def test_jev_score_has_one_to_ten_levels(count: int) -> None:
    question = {**SCORE, "criteria": ["level"] * count}
    if 1 <= count <= 10:
        jev(asking(question))
    else:
        assert types(refused(jev, asking(question))) == {
            (("questions", "q", "criteria"), "too_long" if count else "too_short")
        }


def test_jev_score_levels_are_a_list_of_texts() -> None:
    assert types(refused(jev, asking({**SCORE, "criteria": {"0": "Calm", "1": "Angry"}}))) == {
        (("questions", "q", "criteria"), "list_type")
    }
    assert types(refused(jev, asking({**SCORE, "criteria": ["Calm", None]}))) == {
        (("questions", "q", "criteria", 1), "string_type")
    }
    assert jev(asking({**SCORE, "criteria": ["Calm", {"label": "Angry"}, ["x"]]}))
    for level in (5, True):
        refused(jev, asking({**SCORE, "criteria": [level]}))


@pytest.mark.parametrize("loader", BOTH)
def test_all_problems_of_all_questions_are_told_together(loader: Any) -> None:
    error = refused(loader, {"state": 5, "images": ["x"], "questions": {"a": {"type": "no"}, "fine": NOUL, "b": None}})
    assert {problem.loc[:2] for problem in error.problems} == {
        ("state",),
        ("images",),
        ("questions", "a"),
        ("questions", "b"),
    }


# -- any value ---

LOADERS = [decide, shared, jev, native]
NAMES = st.sampled_from(
    [
        "id",
        "state",
        "question",
        "options",
        "orderings",
        "workload",
        "decisions",
        "questions",
        "type",
        "criteria",
        "instructions",
        "images",
        "model",
        "description",
        "true",
        "false",
        "_schema",
        "",
    ]
)
VALUES = json_values(
    NAMES | st.text(max_size=3),
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from(["noul", "choice", "score", "box", "all", "rotations", ""])
    | st.text(max_size=3),
)


def loads_or_refuses(loader: Any, body: Any) -> None:
    before = copy.deepcopy(body)
    try:
        loaded = loader(body)
    except Invalid as error:
        for path in ("/decide", "/v1/systemone"):
            status, _, answer = render(error, path)
            assert status == 422
            jsonio.loads(answer)
    else:
        assert isinstance(loaded, dict)
        jsonio.dumps(loaded)
    assert body == before


@given(st.sampled_from(LOADERS), VALUES)
def test_any_json_value_is_a_loaded_object_or_invalid_and_nothing_else(loader: Any, body: Any) -> None:
    loads_or_refuses(loader, body)


@given(
    st.sampled_from([(decide, D1), (shared, S), (jev, S1), (native, S1)]),
    st.dictionaries(NAMES, VALUES, min_size=1, max_size=3),
)
def test_a_good_body_with_any_value_in_any_place_is_loaded_or_invalid(
    case: tuple[Any, dict[str, Any]], changes: dict[str, Any]
) -> None:
    loader, body = case
    loads_or_refuses(loader, {**body, **changes})


@given(
    st.sampled_from(BOTH),
    st.sampled_from([NOUL, CHOICE, SCORE]),
    st.dictionaries(NAMES, VALUES, max_size=3),
    NAMES | st.text(max_size=3),
)
def test_a_good_question_with_any_value_in_any_place_is_loaded_or_invalid(
    loader: Any, question: Any, changes: dict[str, Any], name: str
) -> None:
    loads_or_refuses(loader, {"state": "s", "questions": {name: {**question, **changes}}})


@given(
    st.sampled_from([decide, shared]),
    st.dictionaries(NAMES, VALUES, max_size=2),
    st.dictionaries(NAMES, VALUES, max_size=2),
)
def test_a_good_decision_with_any_value_in_any_place_is_loaded_or_invalid(
    loader: Any, changes: dict[str, Any], in_option: dict[str, Any]
) -> None:
    one = {**D1, "options": [D1["options"][0], {**D1["options"][1], **in_option}], **changes}
    loads_or_refuses(loader, one if loader is decide else {"state": "s", "decisions": [one]})
