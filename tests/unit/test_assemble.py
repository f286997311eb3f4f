"""From answers to results (web/assemble.py): INV-1; contract § Mapping, results; wire/semif.md §2e, §2f, §7 cases
11-17, §8 items 1-5, 7, 27, 28; trouble.md ranks 8, 43."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.engines.questions import answer, read_options
from shared.answers import BrokenAnswer, check_answer, labels_of
from shared.wire import EngineInfo, Limits
from tests.harness import decision
from tests.unit.strategies import json_values, probabilities
from web.assemble import (
    METHOD,
    check_call,
    combine,
    decide_result,
    shared_result,
)
from web.plan import Plan, orderings, plan_decisions

INFO = EngineInfo(
    engine="e",
    name="n",
    revision="r",
    readout="the readout",
    prompt_version="pv-1",
    probability_status="status",
    default_profile="jev",
    description="d",
    release_date="2026-11-30",
    limits=Limits(),
    model={"source": "s", "revision": "r"},
)
CALIBRATION = {"method": "temperature-scaling", "temperature": 1.99241824}
WEIGHTS = (0.6, 0.3, 0.1)
CHOICE = {"type": "choice", "instructions": "?", "criteria": {"z": "Z", "a": "A"}}
NOUL = {"type": "noul", "instructions": "?"}
SCORE = {"type": "score", "instructions": "?", "criteria": ["low", "mid", "high"]}


def by_position(question: dict[str, Any]) -> list[float]:
    """The engine of wire/semif.md §7: the option at position i gets the i-th of a fixed list, renormalised."""
    size = len(labels_of(question))
    weights = [WEIGHTS[i] if i < len(WEIGHTS) else 0.05 for i in range(size)]
    return [weight / sum(weights) for weight in weights]


def scored(plan: Plan, numbers: Callable[[dict[str, Any]], list[float]] = by_position) -> list[dict[str, Any]]:
    """Calls as the scorer answers them, each with numbers of its own."""
    out = []
    for index, items in enumerate(plan.job.calls):
        questions = plan.job.call_questions(items)
        answers = {name: answer(read_options(question, 255), numbers(question)) for name, question in questions.items()}
        out.append(
            {
                "answer": {"answers": answers, "timing": {"inference_ms": 10.0 + index}, "calibration": CALIBRATION},
                "input_tokens": 100 + index,
                "cached_tokens": 0,
                "prompt_sha256": f"{index:064x}",
            }
        )
    return out


def planned(*decisions: dict[str, Any]) -> tuple[Plan, list[dict[str, Any]]]:
    with_modes = [{"orderings": "none", **one} for one in decisions]
    return plan_decisions("s", with_modes, 16), with_modes


# -- plain results ---


def test_a_plain_decide_result_has_exactly_the_contracts_fields_and_the_engines_own_objects() -> None:
    plan, decisions = planned(decision("d1", ["z", "a", "10"]))
    calls = scored(plan)
    before = copy.deepcopy(calls)
    result = decide_result(plan, decisions[0], calls, INFO, 1.5)
    assert list(result) == [
        "id",
        "option_ids",
        "probabilities",
        "top",
        "confidence",
        "calibration",
        "native",
        "input_tokens",
        "prompt_sha256",
        "prompt_version",
        "model",
        "readout",
        "probability_status",
        "call",
        "total_seconds",
        "forward_seconds",
    ]
    native = calls[0]["answer"]["answers"]["q"]
    assert result["native"] is native
    assert result["option_ids"] == ["z", "a", "10"]
    assert result["probabilities"] == [native["probabilities"][i] for i in ("z", "a", "10")]
    assert (result["top"], result["confidence"]) == (native["choice"], native["confidence"])
    assert result["calibration"] is calls[0]["answer"]["calibration"]
    assert (result["input_tokens"], result["prompt_sha256"]) == (100, "0" * 64)
    assert result["call"] == {"index": 0, "field": "q", "questions": 1}
    assert (result["prompt_version"], result["readout"], result["probability_status"]) == (
        "pv-1",
        "the readout",
        "status",
    )
    assert result["model"] == INFO.model
    assert (result["total_seconds"], result["forward_seconds"]) == (1.5, 0.01)
    assert calls == before, "assembling changed the engine's answer"


def test_probabilities_follow_option_ids_whatever_the_order_in_the_engines_answer() -> None:
    plan, decisions = planned(decision("d1", ["b", "a"]))
    calls = scored(plan)
    calls[0]["answer"]["answers"]["q"]["probabilities"] = {"a": 0.25, "b": 0.75}
    calls[0]["answer"]["answers"]["q"].update(choice="b", confidence=0.75)
    assert decide_result(plan, decisions[0], calls, INFO, 0.0)["probabilities"] == [0.75, 0.25]


def test_numbers_pass_bit_for_bit_without_rounding_or_renormalising() -> None:
    ids = [f"o{i}" for i in range(16)]
    plan, decisions = planned(decision("d1", ids))
    numbers = [0.79] + [0.014] * 15
    numbers[3] = 0.1 + 0.2 - 0.286  # sums to 1 only within the tolerance
    calls = scored(plan, lambda _question: numbers)
    result = decide_result(plan, decisions[0], calls, INFO, 0.0)
    assert result["probabilities"] == numbers


def test_top_is_the_engines_choice_also_in_an_exact_tie() -> None:
    plan, decisions = planned(decision("d1", ["b", "a", "c"]))
    calls = scored(plan, lambda _question: [0.4, 0.4, 0.2])
    assert decide_result(plan, decisions[0], calls, INFO, 0.0)["top"] == "a"  # the smaller id, as the engine breaks it


def test_a_shared_result_is_in_request_order_with_the_timing_block_of_the_contract() -> None:
    plan, decisions = planned(*[decision(f"d{i}", ["a", "b"]) for i in range(17)])
    calls = scored(plan)
    result = shared_result(plan, decisions, calls, INFO, 2.25)
    assert list(result) == ["results", "timing"]
    assert [one["id"] for one in result["results"]] == [f"d{i}" for i in range(17)]
    assert result["results"][16]["call"] == {"index": 1, "field": "q", "questions": 1}
    assert result["results"][3]["call"] == {"index": 0, "field": "q4", "questions": 16}
    assert result["results"][16]["input_tokens"] == 101
    assert all("total_seconds" not in one and "forward_seconds" not in one for one in result["results"])
    assert result["timing"] == {
        "total_seconds": 2.25,
        "batch_size": 17,
        "calls": 2,
        "questions_per_call": [16, 1],
        "input_tokens": [100, 101],
        "inference_seconds": pytest.approx(0.021),
    }


# -- orderings ---


def test_rotations_of_the_position_engine_cancel_exactly() -> None:
    plan, decisions = planned(decision("route-1", ["a", "b", "c"], orderings="rotations"))
    result = decide_result(plan, decisions[0], scored(plan), INFO, 1.0)
    assert list(result) == ["id", "option_ids", "combined", "orderings"]
    combined = result["combined"]
    assert combined["probabilities"][0] == combined["probabilities"][1] == combined["probabilities"][2]
    assert combined["probabilities"] == [1 / 3] * 3
    assert combined["top"] == "a"
    assert combined["agreement"] == 1 / 3
    assert combined["spread"] == [{"min": pytest.approx(0.1), "max": pytest.approx(0.6)}] * 3
    assert (combined["method"], combined["orderings"]) == (METHOD, 3)
    assert [one["id"] for one in result["orderings"]] == ["route-1#o0", "route-1#o1", "route-1#o2"]
    assert [one["option_ids"] for one in result["orderings"]] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert [one["top"] for one in result["orderings"]] == ["a", "b", "c"]
    assert all("total_seconds" not in one for one in result["orderings"])


def test_a_mixed_request_keeps_its_plain_results_unchanged() -> None:
    x, y, z = (
        decision("X", ["a", "b", "c"], orderings="rotations"),
        decision("Y", ["a", "b"]),
        decision("Z", ["a", "b"], orderings="all"),
    )
    plan, decisions = planned(x, y, z)
    alone, alone_decisions = planned({**x, "orderings": "none"}, y, {**z, "orderings": "none"})
    mixed = shared_result(plan, decisions, scored(plan), INFO, 1.0)
    plain = shared_result(alone, alone_decisions, scored(alone), INFO, 1.0)
    assert mixed["results"][1] == plain["results"][1]
    assert {**mixed["results"][0]["orderings"][0], "id": "X"} == plain["results"][0]
    assert mixed["timing"]["batch_size"] == 6
    assert mixed["timing"]["questions_per_call"] == [3, 2, 1]
    assert len(mixed["results"][2]["orderings"]) == 2


def result_of(ids: list[str], numbers: list[float], top: str) -> dict[str, Any]:
    return {"option_ids": ids, "probabilities": numbers, "top": top}


def test_the_mean_is_geometric_and_renormalised() -> None:
    combined = combine(["a", "b"], [result_of(["a", "b"], [0.8, 0.2], "a"), result_of(["b", "a"], [0.5, 0.5], "a")])
    assert combined["probabilities"] == pytest.approx([2 / 3, 1 / 3], abs=1e-12)
    assert combined["agreement"] == 1.0
    assert combined["spread"] == [{"min": 0.5, "max": 0.8}, {"min": 0.2, "max": 0.5}]


def test_a_probability_of_exactly_zero_is_floored_before_the_logarithm() -> None:
    combined = combine(["a", "b"], [result_of(["a", "b"], [1.0, 0.0], "a"), result_of(["b", "a"], [0.1, 0.9], "a")])
    assert combined["probabilities"][1] == pytest.approx(3.33e-151, rel=1e-2)
    assert combined["probabilities"][0] == 1.0
    assert combined["spread"][1] == {"min": 0.0, "max": 0.1}


def test_zero_everywhere_for_an_option_is_still_finite() -> None:
    combined = combine(["a", "b"], [result_of(["a", "b"], [1.0, 0.0], "a")] * 2)
    assert combined["probabilities"] == [1.0, pytest.approx(1e-300)]


def test_the_combined_top_of_a_tie_is_first_in_the_callers_order_and_agreement_counts_the_engines_tops() -> None:
    same = result_of(["b", "a", "c"], [0.4, 0.4, 0.2], "a")
    combined = combine(["b", "a", "c"], [same, same])
    assert combined["top"] == "b"
    assert combined["agreement"] == 0.0


@given(st.integers(2, 16).flatmap(probabilities), st.permutations(range(16)))
def test_a_pure_position_bias_cancels_exactly_under_rotations(bias: list[float], shuffled: list[int]) -> None:
    ids = [f"o{i}" for i in shuffled if i < len(bias)]
    results = []
    for order in orderings(len(ids), "rotations"):
        named = [ids[position] for position in order]
        results.append(result_of(named, bias, named[bias.index(max(bias))]))
    combined = combine(ids, results)
    assert len(set(combined["probabilities"])) == 1, "rounding decides the top"
    assert combined["top"] == ids[0]
    assert combined["agreement"] == 1 / len(ids)
    assert combined["spread"] == [{"min": min(bias), "max": max(bias)}] * len(ids)


@given(st.sampled_from([2, 3, 4]).flatmap(probabilities))
def test_a_pure_position_bias_cancels_exactly_under_all(bias: list[float]) -> None:
    ids = [f"o{i}" for i in range(len(bias))]
    results = [result_of([ids[p] for p in order], bias, ids[order[0]]) for order in orderings(len(ids), "all")]
    assert len(set(combine(ids, results)["probabilities"])) == 1


@st.composite
def ordered_results(draw: st.DrawFn) -> tuple[list[str], list[dict[str, Any]]]:
    size = draw(st.integers(2, 6))
    ids = draw(st.permutations([f"o{i}" for i in range(size)]))
    results = []
    for _ in range(draw(st.integers(1, 6))):
        own = draw(st.permutations(ids))
        results.append(result_of(own, draw(probabilities(size)), draw(st.sampled_from(ids))))
    return ids, results


@given(ordered_results())
def test_properties_of_any_combination(case: tuple[list[str], list[dict[str, Any]]]) -> None:
    ids, results = case
    combined = combine(ids, results)
    values = combined["probabilities"]
    assert all(math.isfinite(p) and 0.0 <= p <= 1.0 for p in values)
    assert math.fsum(values) == pytest.approx(1.0, abs=1e-12)
    assert combined["top"] == ids[values.index(max(values))]
    assert combined["agreement"] == [r["top"] for r in results].count(combined["top"]) / len(results)
    table = [dict(zip(r["option_ids"], r["probabilities"], strict=True)) for r in results]
    for option, spread, value in zip(ids, combined["spread"], values, strict=True):
        own = [row[option] for row in table]
        assert (spread["min"], spread["max"]) == (min(own), max(own))
        # Against the definition, in plain arithmetic.
        logs = {i: sum(math.log(max(row[i], 1e-300)) for row in table) / len(table) for i in ids}
        peak = max(logs.values())
        expected = math.exp(logs[option] - peak) / sum(math.exp(log - peak) for log in logs.values())
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-300)
    # The order of the orderings and the caller's order of the options change no number.
    assert combine(ids, results[::-1])["probabilities"] == values
    assert combine(ids[::-1], results)["probabilities"] == values[::-1]


@given(ordered_results(), st.floats(0.25, 4.0))
def test_temperature_scaling_before_combining_does_not_change_which_option_is_ahead(
    case: tuple[list[str], list[dict[str, Any]]], temperature: float
) -> None:
    ids, results = case
    positive = [{**r, "probabilities": [max(p, 1e-6) for p in r["probabilities"]]} for r in results]
    scaled = []
    for r in positive:
        powers = [p ** (1 / temperature) for p in r["probabilities"]]
        scaled.append({**r, "probabilities": [p / math.fsum(powers) for p in powers]})
    first, second = combine(ids, positive)["probabilities"], combine(ids, scaled)["probabilities"]
    ahead = first.index(max(first))
    assert second[ahead] == pytest.approx(max(second), rel=1e-9)


# -- INV-1: refusals ---


def test_labels_are_those_of_the_question_as_asked() -> None:
    assert labels_of(NOUL) == ["no", "yes"]
    assert labels_of(CHOICE) == ["z", "a"]
    assert labels_of(SCORE) == ["0", "1", "2"]
    assert labels_of({"type": "score", "criteria": {"1.5": "x", "-2": "y"}}) == ["1.5", "-2"]


def good(question: dict[str, Any]) -> dict[str, Any]:
    return answer(read_options(question, 255), by_position(question))


@pytest.mark.parametrize("question", [CHOICE, NOUL, SCORE, {"type": "choice", "criteria": {"only": None}}])
def test_a_complete_answer_passes(question: dict[str, Any]) -> None:
    check_answer(good(question), question["type"], labels_of(question))


NOT_SHARES = [math.nan, math.inf, -math.inf, -0.001, 1.001, True, "0.5", None, [0.5], 2]


@pytest.mark.parametrize("question", [CHOICE, NOUL, SCORE], ids=["choice", "noul", "score"])
@pytest.mark.parametrize("value", NOT_SHARES, ids=repr)
def test_a_probability_or_a_confidence_that_is_no_finite_share_is_refused(question: dict[str, Any], value: Any) -> None:
    for place in ("probabilities", "confidence"):
        broken = good(question)
        if place == "probabilities":
            broken["probabilities"][labels_of(question)[-1]] = value
        else:
            broken["confidence"] = value
        with pytest.raises(BrokenAnswer):
            check_answer(broken, question["type"], labels_of(question))


@pytest.mark.parametrize("value", NOT_SHARES, ids=repr)
def test_a_noul_that_is_no_finite_share_is_refused(value: Any) -> None:
    with pytest.raises(BrokenAnswer):
        check_answer({**good(NOUL), "noul": value}, "noul", ["no", "yes"])


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None, True])
def test_a_score_that_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(BrokenAnswer):
        check_answer({**good(SCORE), "score": value}, "score", labels_of(SCORE))


@pytest.mark.parametrize("question", [CHOICE, NOUL, SCORE], ids=["choice", "noul", "score"])
def test_an_answer_that_lacks_an_option_or_has_one_too_many_is_refused(question: dict[str, Any]) -> None:
    lacking = good(question)
    lacking["probabilities"].popitem()
    more = good(question)
    more["probabilities"]["extra"] = 0.0
    for broken in (lacking, more):
        with pytest.raises(BrokenAnswer, match="options"):
            check_answer(broken, question["type"], labels_of(question))


@pytest.mark.parametrize("name", ["probabilities", "confidence", "type", "choice"])
def test_an_answer_that_lacks_a_field_is_refused(name: str) -> None:
    broken = good(CHOICE)
    del broken[name]
    with pytest.raises(BrokenAnswer):
        check_answer(broken, "choice", ["z", "a"])


@pytest.mark.parametrize(
    ("total", "fine"), [(1.0, True), (1.0009, True), (0.9991, True), (1.002, False), (0.998, False), (0.5, False)]
)
def test_probabilities_sum_to_one_within_the_checkpoints_own_tolerance(total: float, fine: bool) -> None:
    probed = {
        **good(CHOICE),
        "probabilities": {"z": 0.4, "a": total - 0.4},
        "choice": "a" if total > 0.8 else "z",
        "confidence": 0.4,
    }
    if fine:
        check_answer(probed, "choice", ["z", "a"])
    else:
        with pytest.raises(BrokenAnswer, match="sum"):
            check_answer(probed, "choice", ["z", "a"])


@pytest.mark.parametrize("choice", ["a", "other", "", None, 1, ["z"], {}])
def test_a_choice_that_is_not_the_most_probable_option_is_refused(choice: Any) -> None:
    with pytest.raises(BrokenAnswer, match="most probable"):
        check_answer({**good(CHOICE), "choice": choice}, "choice", ["z", "a"])


def one_call() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    questions = {"q1": CHOICE, "q2": NOUL}
    return {
        "answer": {"answers": {name: good(q) for name, q in questions.items()}},
        "input_tokens": 5,
        "prompt_sha256": "0" * 64,
    }, questions


def test_a_call_answers_exactly_the_questions_asked() -> None:
    call, questions = one_call()
    check_call(call, questions)
    for change in ({"q1": good(CHOICE)}, {"q1": good(CHOICE), "q2": good(NOUL), "q3": good(NOUL)}, {}, None, []):
        with pytest.raises(BrokenAnswer, match="questions"):
            check_call({**call, "answer": {"answers": change}}, questions)


@pytest.mark.parametrize("name", ["answer", "input_tokens", "prompt_sha256"])
def test_a_call_without_its_count_hash_or_answer_is_refused(name: str) -> None:
    call, questions = one_call()
    for broken in ({k: v for k, v in call.items() if k != name}, {**call, name: None}):
        with pytest.raises(BrokenAnswer):
            check_call(broken, questions)


@pytest.mark.parametrize("timing", [None, {}, {"inference_ms": None}, {"inference_ms": "1"}, [], "x"])
def test_a_call_without_a_timing_is_the_servers_failure_and_not_a_guess(timing: Any) -> None:
    plan, decisions = planned(decision("d", ["a", "b"]))
    calls = scored(plan)
    calls[0]["answer"]["timing"] = timing
    with pytest.raises(BrokenAnswer):
        decide_result(plan, decisions[0], calls, INFO, 1.0)
    with pytest.raises(BrokenAnswer):
        shared_result(plan, decisions, calls, INFO, 1.0)


def test_one_broken_answer_fails_the_whole_request() -> None:
    plan, decisions = planned(*[decision(f"d{i}", ["a", "b"]) for i in range(17)])
    calls = scored(plan)
    calls[1]["answer"]["answers"]["q"]["probabilities"].pop("b")
    with pytest.raises(BrokenAnswer):
        shared_result(plan, decisions, calls, INFO, 1.0)


def test_a_refusal_quotes_no_text_of_the_caller() -> None:
    secret = {"type": "choice", "instructions": "secret", "criteria": {"secret-1": "", "secret-2": ""}}
    for spoiled in ({"choice": "secret-2"}, {"probabilities": {"secret-1": 1.0}}, {"confidence": None}):
        with pytest.raises(BrokenAnswer) as caught:
            check_answer({**good(secret), **spoiled}, "choice", labels_of(secret))
        assert "secret" not in str(caught.value)


@given(
    json_values(
        st.sampled_from(
            ["answers", "q1", "q2", "type", "probabilities", "confidence", "choice", "noul", "no", "yes", "z", "a"]
        )
        | st.text(max_size=3)
    )
)
def test_whatever_an_engine_answers_is_passed_or_refused_and_nothing_else(value: Any) -> None:
    call, questions = one_call()
    for broken in (
        {**call, "answer": value},
        {**call, "answer": {"answers": value}},
        {**call, "input_tokens": value, "prompt_sha256": value},
        {**call, "answer": {"answers": {**call["answer"]["answers"], "q1": value}}},
    ):
        with contextlib.suppress(BrokenAnswer):
            check_call(broken, questions)
    for question in questions.values():
        for name in ("type", "probabilities", "confidence", "choice", "noul", "score", "legend"):
            with contextlib.suppress(BrokenAnswer):
                check_answer({**good(question), name: value}, question["type"], labels_of(question))


def test_the_engines_description_is_that_of_the_plan() -> None:
    plan, decisions = planned(decision("d", ["a", "b"]))
    other = replace(INFO, prompt_version="pv-2", readout="r2", probability_status="p2", model={"m": 2})
    result = decide_result(plan, decisions[0], scored(plan), other, 1.0)
    assert (result["prompt_version"], result["readout"], result["probability_status"], result["model"]) == (
        "pv-2",
        "r2",
        "p2",
        {"m": 2},
    )
