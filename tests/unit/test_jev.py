"""The jev profile's formulas and plain questions (web/jev.py): wire/systemone.md §3, §10 rows 7, 8, 12-15, §12 E05,
E07, E09, E10."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.engines.questions import answer, read_options
from tests.unit.strategies import json_values, probabilities
from web.jev import choice_confidence, jev_answer, plain_question, score_confidence


def test_the_six_check_values_of_the_wire_document() -> None:
    assert choice_confidence([0.88, 0.12, 0.0]) == pytest.approx(0.82, abs=1e-12)
    assert score_confidence([0.0, 0.95, 0.05]) == pytest.approx(0.925, abs=1e-12)
    assert choice_confidence([0.5, 0.5]) == 0.0
    assert score_confidence([0.5, 0.0, 0.5]) == 0.0  # raw -0.5
    for size in (2, 3, 4, 7, 16, 49, 255):
        assert choice_confidence([1 / size] * size) == pytest.approx(0.0, abs=1e-12)
        one_hot = [0.0] * size
        one_hot[size // 2] = 1.0
        assert choice_confidence(one_hot) == 1.0
        assert score_confidence(one_hot) == 1.0


@pytest.mark.parametrize(
    ("levels", "mean_distance"),
    [(2, 0.5), (3, 2 / 3), (4, 1), (5, 1.2), (6, 1.5), (7, 12 / 7), (8, 2), (9, 20 / 9), (10, 2.5)],
)
def test_the_mean_distance_d_for_each_number_of_levels(levels: int, mean_distance: float) -> None:
    # All but a little on level 0 and that little on level 1: 1 - confidence is little / D.
    shares = [0.9, 0.1] + [0.0] * (levels - 2)
    assert 1 - score_confidence(shares) == pytest.approx(0.1 / mean_distance, abs=1e-12)


def test_a_single_option_or_level_is_certain() -> None:
    assert choice_confidence([1.0]) == score_confidence([1.0]) == 1.0
    assert choice_confidence([0.999]) == score_confidence([0.999]) == 1.0


def test_the_score_takes_the_lowest_level_of_a_tie() -> None:
    # From level 0: 0.4*1 + 0.2*2 = 0.8; from level 1: 0.4 + 0.2 = 0.6. D is 2/3.
    assert score_confidence([0.4, 0.4, 0.2]) == pytest.approx(max(0.0, 1 - 0.8 / (2 / 3)), abs=1e-12)
    assert score_confidence([0.2, 0.4, 0.4]) == pytest.approx(max(0.0, 1 - 0.8 / (2 / 3) + 0.2 / (2 / 3)), abs=1e-12)


def test_probabilities_are_normalised_first_and_all_zero_is_uniform() -> None:
    assert choice_confidence([8.8, 1.2, 0.0]) == pytest.approx(0.82, abs=1e-12)
    assert score_confidence([0.0, 1.9, 0.1]) == pytest.approx(0.925, abs=1e-12)
    assert choice_confidence([0.0, 0.0]) == 0.0
    assert score_confidence([0.0, 0.0]) == score_confidence([0.5, 0.5])


@given(st.integers(2, 16).flatmap(probabilities))
def test_a_confidence_is_a_share_and_follows_its_formula(shares: list[float]) -> None:
    n, total = len(shares), math.fsum(shares)
    p = [share / total for share in shares]
    found = choice_confidence(shares)
    assert 0.0 <= found <= 1.0
    assert found == pytest.approx(max(0.0, (max(p) - 1 / n) / (1 - 1 / n)), abs=1e-12)
    found = score_confidence(shares)
    assert 0.0 <= found <= 1.0
    d = sum(abs(i - (n - 1) / 2) for i in range(n)) / n
    k = p.index(max(p))
    assert found == pytest.approx(max(0.0, 1 - sum(share * abs(i - k) for i, share in enumerate(p)) / d), abs=1e-12)


# -- questions made plain ---


@pytest.mark.parametrize(
    ("criteria", "plain"),
    [
        (None, None),
        ({}, None),
        ({"true": None, "false": None}, None),
        ({"true": "t", "false": None}, {"true": "t"}),
        ({"false": "f"}, {"false": "f"}),
        ({"false": "f", "true": {"a": 1}}, {"true": '{"a":1}', "false": "f"}),
        ({"true": ""}, {"true": ""}),
    ],
)
def test_the_sides_of_a_noul_that_say_nothing_are_left_out(criteria: Any, plain: Any) -> None:
    found = plain_question({"type": "noul", "instructions": "?", "criteria": criteria})
    assert found == {"type": "noul", "instructions": "?"} | ({"criteria": plain} if plain else {})


def test_a_noul_without_instructions_has_empty_ones() -> None:
    for question in (
        {"type": "noul", "criteria": {"true": "t"}},
        {"type": "noul", "instructions": None, "criteria": {"true": "t"}},
    ):
        assert plain_question(question) == {"type": "noul", "instructions": "", "criteria": {"true": "t"}}


def test_null_descriptions_are_empty_and_structured_ones_compact_json_in_the_callers_order() -> None:
    found = plain_question(
        {
            "type": "choice",
            "instructions": {"question": "Team?", "note": ["weekend", None]},
            "criteria": {"Technical": {"owns": ["bugs"], "a": True}, "Billing": None, "환불 🙂": "None"},
        }
    )
    assert found == {
        "type": "choice",
        "instructions": '{"question":"Team?","note":["weekend",null]}',
        "criteria": {"Technical": '{"owns":["bugs"],"a":true}', "Billing": "", "환불 🙂": "None"},
    }
    assert list(found["criteria"]) == ["Technical", "Billing", "환불 🙂"]


def test_levels_stay_a_list_in_order() -> None:
    assert plain_question({"type": "score", "criteria": ["Calm", {"label": "Angry"}, ["x"]]}) == {
        "type": "score",
        "instructions": "",
        "criteria": ["Calm", '{"label":"Angry"}', '["x"]'],
    }


TEXTS = st.none() | st.text(max_size=4) | json_values().filter(lambda v: isinstance(v, (dict, list)))


@given(
    st.one_of(
        st.fixed_dictionaries(
            {
                "type": st.just("noul"),
                "instructions": TEXTS,
                "criteria": st.none() | st.dictionaries(st.sampled_from(["true", "false"]), TEXTS),
            }
        ),
        st.fixed_dictionaries(
            {
                "type": st.just("choice"),
                "instructions": TEXTS,
                "criteria": st.dictionaries(st.text(max_size=3), TEXTS, min_size=1, max_size=5),
            }
        ),
        st.fixed_dictionaries(
            {
                "type": st.just("score"),
                "instructions": TEXTS,
                "criteria": st.lists(TEXTS.filter(lambda v: v is not None), min_size=1, max_size=5),
            }
        ),
    )
)
def test_only_plain_strings_reach_an_engine_and_the_shape_stays(question: dict[str, Any]) -> None:
    found = plain_question(question)
    assert set(found) <= {"type", "instructions", "criteria"}
    assert isinstance(found["instructions"], str)
    criteria = found.get("criteria", {})
    assert all(isinstance(text, str) for text in (criteria.values() if isinstance(criteria, dict) else criteria))
    if question["type"] != "noul":
        assert list(criteria) == list(question["criteria"]) or len(criteria) == len(question["criteria"])
    # An engine takes it.
    read_options(found, 255)


# -- answers ---


def answered(question: dict[str, Any], numbers: list[float]) -> tuple[dict[str, Any], dict[str, Any]]:
    native = answer(read_options(plain_question(question), 255), numbers)
    return jev_answer(question, native), native


def test_a_noul_has_its_number_and_no_confidence() -> None:
    found, native = answered({"type": "noul", "instructions": "?"}, [0.25, 0.75])
    assert found == {"type": "noul", "noul": 0.75, "x_native": native}


def test_a_choice_has_jevs_fields_in_the_callers_order_and_extras_only_under_x() -> None:
    question = {"type": "choice", "criteria": {"z": None, "a": "A", "10": "T"}}
    found, native = answered(question, [0.12, 0.88, 0.0])
    assert list(found) == ["type", "choice", "confidence", "probabilities", "x_native"]
    assert list(found["probabilities"].items()) == [("z", 0.12), ("a", 0.88), ("10", 0.0)]
    assert found["choice"] == "a"
    assert found["confidence"] == pytest.approx(0.82)
    assert found["x_native"] is native
    assert native["confidence"] == 0.88


def test_a_score_has_its_expectation_and_the_legend_as_it_was_sent() -> None:
    levels = ["Calm", {"label": "Angry", "a": [1]}, "Furious"]
    found, native = answered({"type": "score", "criteria": levels}, [0.0, 0.95, 0.05])
    assert list(found) == ["type", "score", "confidence", "legend", "probabilities", "x_native"]
    assert found["score"] == native["score"] == pytest.approx(1.05)
    assert found["legend"] == {"0": "Calm", "1": {"label": "Angry", "a": [1]}, "2": "Furious"}
    assert found["probabilities"] == {"0": 0.0, "1": 0.95, "2": 0.05}
    assert found["confidence"] == pytest.approx(0.925)


def test_ten_levels_keep_their_numeric_order() -> None:
    found, _ = answered({"type": "score", "criteria": [f"level {i}" for i in range(12)]}, [1 / 12] * 12)
    assert list(found["probabilities"]) == list(found["legend"]) == [str(i) for i in range(12)]


@pytest.mark.parametrize(
    "question", [{"type": "choice", "criteria": {"Only": None}}, {"type": "score", "criteria": ["Only"]}]
)
def test_one_option_or_one_level_is_certain(question: dict[str, Any]) -> None:
    found, _ = answered(question, [1.0])
    assert found["confidence"] == 1.0
    assert list(found["probabilities"].values()) == [1.0]
    if question["type"] == "score":
        assert found["score"] == 0.0
        assert found["legend"] == {"0": "Only"}
