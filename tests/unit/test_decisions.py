"""OpenAI's decisions, the pure part (web/decisions.py) and the schema under any body (web/schemas/decisions.py)."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import jsonio
from shared.wire import Limits
from tests.contract.openai_shape import (
    O1,
    P,
    assert_choice,
    assert_score,
    assert_usage,
    body,
    choice,
    data,
    score,
    text,
    user,
)
from tests.unit.strategies import SCALARS, TEXT, json_values, probabilities
from web.assemble import BrokenAnswer, check_answer, labels_of
from web.decisions import label_of, openai_answer, openai_usage, plain_question, state_of
from web.errors import Invalid, render
from web.schemas.base import load
from web.schemas.decisions import decisions_schema

SCHEMA = decisions_schema(Limits())


def native(question: dict[str, Any], shares: list[float]) -> dict[str, Any]:
    """An engine's answer with these shares, checked as the surface checks it."""
    plain = plain_question(question)
    labels = labels_of(plain)
    by_label = dict(zip(labels, shares, strict=True))
    answer: dict[str, Any] = {"type": plain["type"], "probabilities": by_label, "confidence": max(shares)}
    if plain["type"] == "choice":
        answer["choice"] = max(labels, key=lambda label: by_label[label])
    elif plain["type"] == "score":
        answer["score"] = math.fsum(i * p for i, p in enumerate(shares))
        answer["legend"] = {}
    else:
        answer["noul"] = by_label["yes"]
    check_answer(answer, plain["type"], labels)
    return answer


@given(st.data())
def test_any_answer_of_an_engine_becomes_one_that_hangs_together(chance: st.DataObject) -> None:
    size = chance.draw(st.integers(2, 10))
    stray = chance.draw(st.floats(0.9991, 1.0))
    shares = [p * stray for p in chance.draw(probabilities(size))]
    values: list[Any] = [f"v{i}" for i in range(size - 1)] + [chance.draw(st.booleans())]
    asked = choice(*values)
    assert_choice(openai_answer(asked, native(asked, shares)), asked)
    asked = score(*map(str, range(size)))
    assert_score(openai_answer(asked, native(asked, shares)), asked)


@pytest.mark.parametrize("shares", [[0.25, 0.75], [1 / 3, 2 / 3], [0.1 + 0.2, 0.7], [1.0, 0.0], [0.5, 0.5 + 9e-7]])
def test_shares_whose_sum_is_1_within_a_millionth_are_the_engines_own(shares: list[float]) -> None:
    for asked in (choice("a", "b"), score("a", "b")):
        answer = openai_answer(asked, native(asked, shares))
        assert [item["probability"] for item in answer["probabilities"]] == shares


def test_a_score_never_leaves_its_levels() -> None:
    asked = score("a", "b")
    assert openai_answer(asked, native(asked, [0.0, 1.0]))["score"] == 1
    answer = {**native(asked, [0.0, 1.0]), "score": 1.0 + 1e-9}
    assert openai_answer(asked, answer)["score"] == 1.0


@pytest.mark.parametrize("wrong", [0.7, 0.500002, -0.1, 1.0])
def test_a_score_that_contradicts_its_levels_is_broken(wrong: float) -> None:
    asked = score("a", "b")
    with pytest.raises(BrokenAnswer, match="mean"):
        openai_answer(asked, {**native(asked, [0.5, 0.5]), "score": wrong})


def test_a_boolean_value_is_found_by_its_place_and_never_taken_for_a_number_or_its_text() -> None:
    asked = choice("1", True, "0", False)
    for index, value in enumerate(["1", True, "0", False]):
        shares = [0.1] * 4
        shares[index] = 0.7
        answer = openai_answer(asked, native(asked, shares))
        assert (type(answer["choice"]), answer["choice"]) == (type(value), value)
        assert [item["probability"] for item in answer["probabilities"]] == shares


def test_labels_of_booleans_are_json() -> None:
    assert [label_of(value) for value in (True, False, "True", "")] == ["true", "false", "True", ""]


def test_usage_adds_up_over_the_calls() -> None:
    usage = openai_usage([{"input_tokens": 7, "cached_tokens": 0}, {"input_tokens": 8, "cached_tokens": 5}])
    assert_usage(usage)
    assert (usage["input_tokens"], usage["total_tokens"]) == (15, 15)
    assert usage["input_tokens_details"] == {"cached_tokens": 5, "cache_write_tokens": 0}


@given(st.lists(TEXT, max_size=4), json_values())
def test_a_lone_json_part_is_the_object_and_any_more_make_it_text(texts: list[str], value: Any) -> None:
    assert state_of([user(data({"k": value}))]) == {"k": value}
    compact = jsonio.canonical({"k": value}).decode()
    joined = "\n".join([compact, *texts])
    messages = [{"role": "user", "content": [data({"k": value}), *map(text, texts)]}]
    assert state_of(messages) == (joined if texts else {"k": value})
    assert state_of([*messages, user("end")]) == f"{joined}\n\nend"


# -- any body ----------------------------------------------------------------------------------------------------

FULL = body(
    {**P, "name": "n", "instructions": [text("t"), data({"k": [1]})]},
    choice({"value": "a", "description": "d"}, True),
    score({"label": "a", "description": "d"}, "b"),
    given=[user(text("t", prompt_cache_breakpoint={"mode": "explicit"}), data([{}])), {"type": "message", **user("u")}],
    prompt_cache_key="k",
    prompt_cache_options={"mode": "implicit"},
    safety_identifier="s",
    cache_salt="c",
)
NAMES = st.sampled_from(["type", "role", "content", "name", "value", "choices", "levels", "input", "text", "data", "x"])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path in a value, the value's own included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [place for name, item in inner for place in places(item, (*path, name))]


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of a value with something else in one place."""
    if not path:
        return new
    out = copy.deepcopy(value)
    inner = out
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = new
    return out


def verdict(sent: Any) -> dict[str, Any] | None:
    """What the schema makes of a body: the error's body, or None when it is taken."""
    try:
        load(SCHEMA, sent)
    except Invalid as error:
        status, _, rendered = render(error, "/v1/decisions")
        assert status == 400
        parsed: dict[str, Any] = jsonio.loads(rendered)["error"]
        assert set(parsed) == {"message", "type", "param", "code"}
        assert parsed["message"]
        return parsed
    return None


def test_an_engines_lower_limits_hold_here_too() -> None:
    schema = decisions_schema(Limits(request_questions=2, options=3, levels=4))
    load(schema, body(choice(*"abc"), score(*"abcd")))
    for sent, param in (
        (body(P, P, P), "questions"),
        (body(choice(*"abcd")), "questions.0.choices"),
        (body(score(*"abcde")), "questions.0.levels"),
    ):
        with pytest.raises(Invalid, match=f"^{param}: must have"):
            load(schema, sent)


def test_the_full_body_is_taken() -> None:
    assert verdict(FULL) is None
    assert verdict(O1) is None


@given(st.sampled_from(places(FULL)), json_values(NAMES, SCALARS))
def test_any_change_of_a_good_body_is_taken_or_refused_with_a_place(place: tuple[Any, ...], new: Any) -> None:
    error = verdict(put(FULL, place, new))
    if error is not None and place and error["param"] is not None:
        # The complaint is about the change: no good part of the body is blamed for it.
        told = error["param"].split("[")[0].split(".")[0]
        assert told == place[0]


@given(json_values(NAMES, SCALARS))
def test_any_json_is_taken_or_refused(sent: Any) -> None:
    verdict(sent)


@pytest.mark.parametrize(
    "place", [place for place in places(FULL) if place], ids=lambda place: ".".join(map(str, place))
)
def test_a_null_in_any_place_is_absent_or_refused_there(place: tuple[Any, ...]) -> None:
    error = verdict(put(FULL, place, None))
    optional = {
        "name",
        "description",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_breakpoint",
        "safety_identifier",
        "cache_salt",
        "mode",  # inside a field that is not looked into
        "k",  # inside JSON data
    }
    if place[-1] in optional or place == ("input", 1, "type") or (place[-2] == "k" if len(place) > 1 else False):
        assert error is None
        return
    assert error is not None
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    # A list of objects is refused as a whole (wire/decisions.md §10, 7).
    assert error["param"] in (path, path.rpartition("[")[0])
