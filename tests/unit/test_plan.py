"""From a request to calls (web/plan.py): contract § Mapping onto the model; wire/semif.md §7 cases 1-3, 8, 9,
11-14, §8 items 23-26; trouble.md rank 41."""

from __future__ import annotations

import copy
import math
from collections import Counter
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.wire import CallItem, Job
from tests.harness import decision
from web.plan import MAX_ALL_OPTIONS, count_orderings, orderings, plan_decisions, plan_independent, plan_joint


def letters(count: int) -> list[str]:
    return [chr(97 + i) for i in range(count)]


def asked(name: str, options: int = 2, mode: str = "none") -> dict[str, Any]:
    return decision(name, letters(options), orderings=mode)


def calls(job: Job) -> list[dict[str, Any]]:
    """What each call asks of the engine, as the engine will see it."""
    return [job.call_questions(call) for call in job.calls]


# -- orderings ---


@pytest.mark.parametrize("options", range(1, 17))
def test_none_is_the_callers_order_alone(options: int) -> None:
    assert orderings(options, "none") == [tuple(range(options))]


@pytest.mark.parametrize("options", range(2, 17))
def test_rotations_are_the_n_shifts_the_callers_order_first_each_option_in_each_position_once(options: int) -> None:
    found = orderings(options, "rotations")
    assert found[0] == tuple(range(options))
    assert len(found) == options
    for position in range(options):
        assert sorted(order[position] for order in found) == list(range(options))
    for k, order in enumerate(found):
        assert order[0] == k  # ordering k starts at option k
        assert all((right - left) % options == 1 for left, right in pairwise(order)), "not cyclic"


@pytest.mark.parametrize("options", [2, 3, 4])
def test_all_is_every_permutation_once_the_callers_order_first(options: int) -> None:
    found = orderings(options, "all")
    assert found[0] == tuple(range(options))
    assert len(found) == math.factorial(options)
    assert set(found) == set(permutations(range(options)))


@pytest.mark.parametrize(("options", "mode"), [(5, "all"), (16, "all"), (3, "ALL"), (3, ""), (3, "Rotations")])
def test_all_above_four_options_and_unknown_modes_are_refused(options: int, mode: str) -> None:
    assert MAX_ALL_OPTIONS == 4
    with pytest.raises(ValueError, match=str(options)):
        orderings(options, mode)


@pytest.mark.parametrize("options", range(2, 17))
@pytest.mark.parametrize("mode", ["none", "rotations", "all"])
def test_orderings_are_counted_as_they_would_be_made(options: int, mode: str) -> None:
    expected = math.factorial(options) if mode == "all" else len(orderings(options, mode))
    assert count_orderings(options, mode) == expected


# -- /decide and /decide/shared ---


def test_decide_is_one_call_with_the_field_q_and_the_criteria_in_the_callers_order() -> None:
    one = {
        "id": "route-1",
        "question": "Which queue?",
        "orderings": "none",
        "label": "access",
        "options": [{"id": "b", "description": "Billing.", "weight": 3}, {"id": "a", "description": "Access."}],
    }
    plan = plan_decisions("Customer cannot log in.", [one], 16)
    assert plan.job.state == "Customer cannot log in."
    assert calls(plan.job) == [
        {"q": {"type": "choice", "instructions": "Which queue?", "criteria": {"b": "Billing.", "a": "Access."}}}
    ]
    assert list(calls(plan.job)[0]["q"]["criteria"]) == ["b", "a"]
    assert plan.asked[0][0].call == 0
    assert plan.asked[0][0].field == "q"
    assert plan.asked[0][0].questions == 1


@pytest.mark.parametrize(
    ("count", "packed"),
    [
        (1, [1]),
        (2, [2]),
        (15, [15]),
        (16, [16]),
        (17, [16, 1]),
        (32, [16, 16]),
        (33, [16, 16, 1]),
        (40, [16, 16, 8]),
        (64, [16] * 4),
    ],
)
def test_decisions_are_packed_greedily_in_request_order_into_calls_of_sixteen(count: int, packed: list[int]) -> None:
    plan = plan_decisions("s", [asked(f"d{i}") for i in range(count)], 16)
    assert plan.questions_per_call == packed
    assert [list(call) for call in calls(plan.job)] == [
        ["q"] if size == 1 else [f"q{i + 1}" for i in range(size)] for size in packed
    ]
    order = [question["instructions"] for call in calls(plan.job) for question in call.values()]
    assert order == [f"question of d{i}?" for i in range(count)]
    for number, where in enumerate(plan.asked):
        assert [(one.call, one.questions) for one in where] == [(number // 16, packed[number // 16])]
        assert where[0].field == ("q" if packed[number // 16] == 1 else f"q{number % 16 + 1}")


def test_the_seventeenth_decision_is_asked_as_if_it_were_alone() -> None:
    decisions = [asked(f"d{i}") for i in range(17)]
    assert calls(plan_decisions("s", decisions, 16).job)[1] == calls(plan_decisions("s", decisions[16:], 16).job)[0]


def test_mixed_orderings_run_in_waves_and_no_wave_tops_up_an_earlier_call() -> None:
    plan = plan_decisions("s", [asked("X", 3, "rotations"), asked("Y"), asked("Z", 2, "all")], 16)
    assert plan.questions_per_call == [3, 2, 1]
    assert plan.job.calls[1] == [CallItem("q1", 0, (1, 2, 0)), CallItem("q2", 2, (1, 0))]
    assert plan.job.calls[2] == [CallItem("q", 0, (2, 0, 1))]
    assert list(calls(plan.job)[1]["q1"]["criteria"]) == ["b", "c", "a"]
    assert [(one.call, one.field) for one in plan.asked[0]] == [(0, "q1"), (1, "q1"), (2, "q")]
    assert [(one.call, one.field) for one in plan.asked[2]] == [(0, "q3"), (1, "q2")]


def test_each_wave_is_packed_by_itself() -> None:
    plan = plan_decisions("s", [asked(f"d{i}", 2, "rotations") for i in range(17)], 16)
    assert plan.questions_per_call == [16, 1, 16, 1]
    assert [one.call for one in plan.asked[16]] == [1, 3]


def test_state_and_questions_are_sent_once_however_many_orderings_there_are() -> None:
    state = {"z": ["text"], "a": None}
    plan = plan_decisions(state, [asked("X", 4, "all"), asked("Y", 16, "rotations")], 16)
    assert plan.job.state is state
    assert len(plan.job.questions) == 2


MODES = st.sampled_from(["none", "rotations", "all"])


@st.composite
def requests(draw: st.DrawFn) -> list[dict[str, Any]]:
    decisions = []
    for number in range(draw(st.integers(1, 24))):
        mode = draw(MODES)
        options = draw(st.integers(2, 4 if mode == "all" else 9))
        ids = draw(st.permutations([f"o{i}" for i in range(options)]))
        decisions.append(decision(f"d{number}", ids, orderings=mode))
    return decisions


@given(requests(), st.integers(1, 16))
def test_properties_of_any_plan(decisions: list[dict[str, Any]], per_call: int) -> None:
    given_before = copy.deepcopy(decisions)
    plan = plan_decisions("s", decisions, per_call)
    assert decisions == given_before, "planning changed the request"
    sizes = plan.questions_per_call
    # Every call has 1 to per_call questions and never two orderings of one decision; decision ids never reach a call.
    assert all(1 <= size <= per_call for size in sizes)
    for call in plan.job.calls:
        assert len({item.question for item in call}) == len(call)
        assert [item.field for item in call] == (["q"] if len(call) == 1 else [f"q{i + 1}" for i in range(len(call))])
    # All orderings of each decision are asked exactly once, ordering k strictly after ordering k - 1.
    assert sum(sizes) == sum(count_orderings(len(d["options"]), d["orderings"]) for d in decisions)
    met: Counter[tuple[int, str]] = Counter()
    for number, (one, where) in enumerate(zip(decisions, plan.asked, strict=True)):
        ids = [option["id"] for option in one["options"]]
        assert [a.order for a in where] == orderings(len(ids), one["orderings"])
        assert sorted({a.call for a in where}) == [a.call for a in where]
        for a in where:
            met[a.call, a.field] += 1
            question = calls(plan.job)[a.call][a.field]
            assert a.questions == sizes[a.call]
            assert list(question["criteria"]) == [ids[position] for position in a.order]
            assert question["criteria"] == {option["id"]: option["description"] for option in one["options"]}
            assert question["instructions"] == f"question of d{number}?"
    assert set(met.values()) == {1}
    # Wave 0 is the request as written: the same calls as the request without orderings, in front of all others.
    plain = plan_decisions("s", [{**d, "orderings": "none"} for d in decisions], per_call)
    assert plan.job.calls[: len(plain.job.calls)] == plain.job.calls
    assert [w[0] for w in plan.asked] == [w[0] for w in plain.asked]
    # Greedy: a call is not full only at the end of its wave.
    wave_of_call = {a.call: k for where in plan.asked for k, a in enumerate(where)}
    for index, size in enumerate(sizes[:-1]):
        assert size == per_call or wave_of_call[index + 1] == wave_of_call[index] + 1


# -- /v1/systemone ---

QUESTIONS = {
    "zeta": {"type": "noul", "instructions": "Urgent?"},
    "alpha": {"type": "choice", "instructions": "Team?", "criteria": {"b": None, "a": "A"}, "x_extra": 1},
    "q": {"type": "score", "instructions": "How bad?", "criteria": ["low", "high"]},
}


def test_native_asks_all_questions_in_one_call_under_the_callers_names_untouched() -> None:
    job = plan_joint({"t": "x"}, QUESTIONS)
    assert job.state == {"t": "x"}
    assert calls(job) == [QUESTIONS]
    assert list(calls(job)[0]) == ["zeta", "alpha", "q"]


def test_jev_asks_each_question_in_a_call_of_its_own_without_the_callers_name() -> None:
    job = plan_independent("s", list(QUESTIONS.values()))
    assert calls(job) == [{"q": question} for question in QUESTIONS.values()]
