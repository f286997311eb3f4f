"""Contract § Mapping, orderings: ``none``, ``rotations``, ``all``; waves; the averaged result."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from tests.contract.helpers import assert_refused, ordered, set_probabilities, shared
from tests.harness import Local, decision


def asked_orders(service: Local) -> list[list[str]]:
    """The option order of every question asked, in the order asked."""
    return [list(question["criteria"]) for call in service.engine.calls for question in call["questions"].values()]


def numbered(count: int) -> list[str]:
    return [f"o{i}" for i in range(count)]


@pytest.mark.parametrize("size", [2, 3, 5, 16])
def test_rotations_put_each_option_in_each_position_once_the_callers_order_first(service: Local, size: int) -> None:
    ids = numbered(size)
    assert service.post("/decide", decision("d", ids, state="s", orderings="rotations"))[0] == 200
    orders = asked_orders(service)
    assert len(orders) == size
    assert orders[0] == ids
    for position in range(size):
        assert sorted(order[position] for order in orders) == sorted(ids)
    # Cyclic shifts: each is the caller's order, turned.
    assert all(order in [ids[k:] + ids[:k] for k in range(size)] for order in orders)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_gives_the_n_factorial_permutations_the_callers_order_first(service: Local, size: int) -> None:
    ids = numbered(size)
    assert service.post("/decide", decision("d", ids, state="s", orderings="all"))[0] == 200
    orders = asked_orders(service)
    assert orders[0] == ids
    assert sorted(orders) == sorted(map(list, itertools.permutations(ids)))


@pytest.mark.parametrize("size", [5, 6, 16])
def test_all_is_422_above_4_options(service: Local, size: int) -> None:
    body = decision("d", numbered(size), state="s", orderings="all")
    assert_refused(service, "/decide", body)
    assert_refused(
        service, "/decide/shared", shared(decision("e", "ab"), decision("d", numbered(size), orderings="all"))
    )


@pytest.mark.parametrize("more", [{}, {"orderings": "none"}, {"orderings": None}])
def test_none_null_and_absent_mean_one_plain_result(service: Local, more: dict[str, Any]) -> None:
    result = service.post("/decide", decision("d", "ab", state="s", **more))[1]
    assert "combined" not in result
    assert asked_orders(service) == [["a", "b"]]


@pytest.mark.parametrize(
    "orderings", ["", "None", "NONE", "Rotations", "rotation", "ALL", "each", 0, 1, True, False, [], {}, ["all"]]
)
def test_any_other_orderings_value_is_422(service: Local, orderings: Any) -> None:
    assert_refused(service, "/decide", decision("d", "ab", state="s", orderings=orderings))
    assert_refused(service, "/decide/shared", shared(decision("d", "ab", orderings=orderings)))


def test_ordering_k_of_every_decision_that_has_more_than_k_forms_wave_k(service: Local) -> None:
    body = shared(
        decision("x", "abc", orderings="rotations"),
        decision("y", "ab"),
        decision("z", "ab", orderings="all"),
    )
    status, answer = service.post("/decide/shared", body)
    assert status == 200
    instructions = [
        {name: question["instructions"] for name, question in call["questions"].items()}
        for call in service.engine.calls
    ]
    x, y, z = (f"question of {name}?" for name in "xyz")
    assert instructions == [{"q1": x, "q2": y, "q3": z}, {"q1": x, "q2": z}, {"q": x}]
    assert answer["timing"]["questions_per_call"] == [3, 2, 1]
    assert answer["timing"]["batch_size"] == 6
    assert answer["timing"]["calls"] == 3


def test_no_call_ever_holds_two_orderings_of_the_same_decision(service: Local) -> None:
    decisions = [decision(f"d{i}", "abc", orderings=("rotations", "none", "all")[i % 3]) for i in range(18)]
    assert service.post("/decide/shared", shared(*decisions))[0] == 200
    assert len(service.engine.calls) > 6
    for call in service.engine.calls:
        asked = [question["instructions"] for question in call["questions"].values()]
        assert len(set(asked)) == len(asked)


def test_each_wave_is_packed_on_its_own_and_does_not_top_up_the_last_call_of_the_one_before(service: Local) -> None:
    decisions = [decision(f"d{i}", "ab", orderings="rotations") for i in range(18)]
    answer = service.post("/decide/shared", shared(*decisions))[1]
    assert answer["timing"]["questions_per_call"] == [16, 2, 16, 2]
    assert answer["results"][17]["orderings"][1]["call"] == {"index": 3, "field": "q2", "questions": 2}


def test_wave_0_is_the_request_exactly_as_written(service: Local) -> None:
    decisions = [decision(f"d{i}", "abc") for i in range(18)]
    service.post("/decide/shared", shared(*decisions))
    plain, service.engine.calls = service.engine.calls, []
    mixed = [{**one, "orderings": "rotations"} if i % 2 else one for i, one in enumerate(decisions)]
    assert service.post("/decide/shared", shared(*mixed))[0] == 200
    assert ordered(service.engine.calls[:2]) == ordered(plain)


def test_a_mixed_request_keeps_plain_results_unchanged(service: Local) -> None:
    x, y, z = decision("x", "abc"), decision("y", "ab"), decision("z", "ab")
    plain = service.post("/decide/shared", shared(x, y, z))[1]["results"]
    mixed = service.post("/decide/shared", shared({**x, "orderings": "rotations"}, y, {**z, "orderings": "all"}))[1][
        "results"
    ]
    assert ordered(mixed[1]) == ordered(plain[1])
    first = mixed[0]["orderings"][0]
    assert ordered({**first, "id": "x"}) == ordered(plain[0])


def test_the_per_ordering_ids_are_the_decisions_id_with_its_number(service: Local) -> None:
    result = service.post("/decide", decision("route-1", "abc", state="s", orderings="rotations"))[1]
    assert [one["id"] for one in result["orderings"]] == ["route-1#o0", "route-1#o1", "route-1#o2"]
    assert result["id"] == "route-1"


def test_the_result_of_an_ordering_lists_option_ids_and_probabilities_in_the_order_asked(service: Local) -> None:
    result = service.post("/decide", decision("d", "abc", state="s", orderings="rotations"))[1]
    assert [one["option_ids"] for one in result["orderings"]] == asked_orders(service)
    for one in result["orderings"]:
        # The fake engine likes positions, whatever stands there.
        assert one["probabilities"] == pytest.approx([0.6, 0.3, 0.1])
        assert one["probabilities"] == [one["native"]["probabilities"][option] for option in one["option_ids"]]
    assert result["option_ids"] == ["a", "b", "c"]


def test_call_index_counts_the_calls_of_the_request_across_waves(service: Local) -> None:
    result = service.post("/decide", decision("d", "abc", state="s", orderings="rotations"))[1]
    assert [one["call"] for one in result["orderings"]] == [
        {"index": k, "field": "q", "questions": 1} for k in range(3)
    ]


@pytest.mark.parametrize("mode", ["rotations", "all"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_position_bias_cancels_exactly(service: Local, mode: str, size: int) -> None:
    # Odd numbers, so that a plain running sum would leave a difference in the last bit.
    weights = [0.7310585786300049, 0.2689414213699951, 0.11920292202211755, 0.04742587317756678][:size]

    def edit(answer: dict[str, Any]) -> None:
        for item in answer["answers"].values():
            biased = dict(zip(item["probabilities"], [w / math.fsum(weights) for w in weights], strict=True))
            item.update(probabilities=biased, choice=next(iter(biased)), confidence=next(iter(biased.values())))

    service.engine.edit = edit
    combined = service.post("/decide", decision("d", numbered(size), state="s", orderings=mode))[1]["combined"]
    assert len(set(combined["probabilities"])) == 1
    assert combined["probabilities"][0] == pytest.approx(1 / size, abs=1e-15)
    assert combined["top"] == "o0"
    assert combined["agreement"] == 1 / size


def test_many_position_biases_cancel_exactly(service: Local) -> None:
    for step in range(60):
        weights = [math.exp(math.sin(step * 12.9898 + i * 78.233) * 3) for i in range(5)]
        total = math.fsum(weights)

        def edit(answer: dict[str, Any], shares: tuple[float, ...] = tuple(w / total for w in weights)) -> None:
            item = answer["answers"]["q"]
            biased = dict(zip(item["probabilities"], shares, strict=True))
            winner = max(biased, key=biased.__getitem__)
            item.update(probabilities=biased, choice=winner, confidence=biased[winner])

        service.engine.edit = edit
        combined = service.post("/decide", decision("d", numbered(5), state="s", orderings="rotations"))[1]["combined"]
        assert len(set(combined["probabilities"])) == 1, combined
        assert combined["top"] == "o0"


def by_order(service: Local, *rows: dict[str, float]) -> None:
    """Have the n-th call answer with the n-th row of numbers by option id."""
    left = list(rows)

    def edit(answer: dict[str, Any]) -> None:
        set_probabilities(answer, left.pop(0))

    service.engine.edit = edit


def test_combined_probabilities_renormalise_the_mean_of_log_p(service: Local) -> None:
    by_order(service, {"a": 0.8, "b": 0.2}, {"a": 0.5, "b": 0.5})
    combined = service.post("/decide", decision("d", "ab", state="s", orderings="all"))[1]["combined"]
    assert combined["probabilities"] == pytest.approx([2 / 3, 1 / 3], abs=1e-12)
    rows = [{"a": 0.5, "b": 0.3, "c": 0.2}, {"a": 0.1, "b": 0.1, "c": 0.8}, {"a": 0.3, "b": 0.6, "c": 0.1}]
    by_order(service, *rows)
    combined = service.post("/decide", decision("d", "abc", state="s", orderings="rotations"))[1]["combined"]
    means = [math.exp(sum(math.log(row[i]) for row in rows) / 3) for i in "abc"]
    assert combined["probabilities"] == pytest.approx([mean / sum(means) for mean in means], abs=1e-12)


def test_a_probability_of_exactly_0_is_floored_at_1e_minus_300_before_the_log(service: Local) -> None:
    by_order(service, {"a": 1.0, "b": 0.0}, {"a": 0.9, "b": 0.1})
    combined = service.post("/decide", decision("d", "ab", state="s", orderings="all"))[1]["combined"]
    # sqrt(1e-300 * 0.1) / sqrt(1 * 0.9)
    assert combined["probabilities"][1] == pytest.approx(math.sqrt(1e-301) / math.sqrt(0.9), rel=1e-9)
    assert combined["probabilities"][0] == 1.0
    assert combined["spread"][1] == {"min": 0.0, "max": 0.1}


def test_all_zero_but_one_in_every_ordering_stays_finite(service: Local) -> None:
    by_order(service, {"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0})
    result = service.post("/decide", decision("d", "ab", state="s", orderings="rotations"))[1]
    assert result["combined"]["probabilities"] == [0.5, 0.5]


def test_combined_top_is_the_first_maximum_in_the_callers_order(service: Local) -> None:
    tie = {"b": 0.4, "a": 0.4, "c": 0.2}
    by_order(service, tie, tie, tie)
    result = service.post("/decide", decision("d", "bac", state="s", orderings="rotations"))[1]
    # Per ordering the engine's own tie rule holds: the smaller id.
    assert [one["top"] for one in result["orderings"]] == ["a", "a", "a"]
    assert result["combined"]["top"] == "b"
    assert result["combined"]["agreement"] == 0


def test_agreement_is_the_share_of_orderings_whose_top_is_combined_top(service: Local) -> None:
    by_order(service, {"a": 0.9, "b": 0.05, "c": 0.05}, {"a": 0.4, "b": 0.5, "c": 0.1}, {"a": 0.7, "b": 0.2, "c": 0.1})
    combined = service.post("/decide", decision("d", "abc", state="s", orderings="rotations"))[1]["combined"]
    assert combined["top"] == "a"
    assert combined["agreement"] == 2 / 3


def test_spread_holds_each_options_min_and_max_probability_across_orderings(service: Local) -> None:
    by_order(service, {"a": 0.9, "b": 0.05, "c": 0.05}, {"a": 0.4, "b": 0.5, "c": 0.1}, {"a": 0.7, "b": 0.2, "c": 0.1})
    combined = service.post("/decide", decision("d", "abc", state="s", orderings="rotations"))[1]["combined"]
    assert combined["spread"] == [{"min": 0.4, "max": 0.9}, {"min": 0.05, "max": 0.5}, {"min": 0.05, "max": 0.1}]


def test_temperature_scaling_does_not_change_combined_top_nor_agreement(service: Local) -> None:
    rows = [{"a": 0.6, "b": 0.3, "c": 0.1}, {"a": 0.2, "b": 0.7, "c": 0.1}, {"a": 0.5, "b": 0.1, "c": 0.4}]

    def scaled(row: dict[str, float]) -> dict[str, float]:
        powers = {label: p ** (1 / 1.99241824) for label, p in row.items()}
        return {label: p / sum(powers.values()) for label, p in powers.items()}

    found = []
    for given in (rows, [scaled(row) for row in rows]):
        by_order(service, *given)
        combined = service.post("/decide", decision("d", "abc", state="s", orderings="rotations"))[1]["combined"]
        found.append((combined["top"], combined["agreement"]))
    assert found[0] == found[1]


def test_combining_leaves_the_inner_results_untouched(service: Local) -> None:
    plain = service.post("/decide/shared", shared(decision("d", "abc"), state="s"))[1]["results"][0]
    inner = service.post("/decide", decision("d", "abc", state="s", orderings="rotations"))[1]["orderings"][0]
    assert ordered({**inner, "id": "d"}) == ordered(plain)


def test_combined_orderings_is_their_number_and_method_a_constant(service: Local) -> None:
    three = service.post("/decide", decision("d", "abc", state="s", orderings="rotations"))[1]["combined"]
    two = service.post("/decide", decision("d", "ab", state="s", orderings="all"))[1]["combined"]
    assert (three["orderings"], two["orderings"]) == (3, 2)
    assert three["method"] == two["method"] == "mean_log_probability"
