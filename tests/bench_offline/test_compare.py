"""Two runs side by side, against cases worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import comb

import pytest

from scorer.bench.compare import compare, render
from scorer.bench.measures import MeasureError
from scorer.bench.records import Record
from shared import jsonio
from tests.bench_offline.made import LABELS, binary, engine, record, spread


def runs(both: int, only_a: int, only_b: int, neither: int) -> tuple[list[Record], list[Record]]:
    right_a = [True] * both + [True] * only_a + [False] * only_b + [False] * neither
    right_b = [True] * both + [False] * only_a + [True] * only_b + [False] * neither

    def answer(right: Sequence[bool]) -> list[Record]:
        return [record(spread(0.8, chosen=0 if ok else 1), "red", row=f"r{index:03}") for index, ok in enumerate(right)]

    return answer(right_a), answer(right_b)


def test_flips_each_way_with_the_exact_mcnemar_p_value() -> None:
    flips = compare(*runs(10, 6, 1, 3))["flips"]
    assert (flips["n"], flips["only_a_right"], flips["only_b_right"]) == (20, 6, 1)
    assert (flips["accuracy_a"], flips["accuracy_b"]) == (0.8, 0.55)
    # two-sided, 1 or fewer, or 6 or more, of 7 coins
    assert flips["p"] == pytest.approx(2 * (comb(7, 0) + comb(7, 1)) / 2**7)


@pytest.mark.parametrize(("only_a", "only_b", "p"), [(0, 0, 1.0), (3, 3, 1.0), (1, 0, 1.0), (0, 6, 2 / 64)])
def test_balanced_flips_say_nothing(only_a: int, only_b: int, p: float) -> None:
    assert compare(*runs(5, only_a, only_b, 5))["flips"]["p"] == pytest.approx(p)


def test_the_comparison_turned_round_is_the_same_comparison() -> None:
    a, b = runs(10, 6, 1, 3)
    there, back = compare(a, b)["flips"], compare(b, a)["flips"]
    assert (there["p"], there["only_a_right"]) == (back["p"], back["only_b_right"])


def test_agreement_counts_decisions_and_not_whether_they_are_right() -> None:
    a = [record(spread(0.8, chosen=1), None, row="1"), record(spread(0.8), None, row="2")]
    b = [record(spread(0.6, chosen=1), None, row="1"), record(spread(0.8, chosen=2), None, row="2")]
    found = compare(a, b)
    assert (found["agreement"]["n"], found["agreement"]["agree"], found["agreement"]["share"]) == (2, 1, 0.5)
    assert found["flips"]["n"] == 0
    assert found["flips"]["accuracy_a"] is None


def test_the_shift_is_of_the_probability_of_as_decision() -> None:
    a = [record({"x": 0.7, "y": 0.3}, None, row="1"), record({"x": 0.4, "y": 0.6}, None, row="2")]
    b = [record({"x": 0.8, "y": 0.2}, None, row="1"), record({"x": 0.7, "y": 0.3}, None, row="2")]
    shift = compare(a, b)["shift"]
    # +0.1 and -0.3
    assert shift["mean"] == pytest.approx(-0.1)
    assert shift["mean_size"] == pytest.approx(0.2)
    assert shift["standard_error"] == pytest.approx(0.2)


def test_the_largest_movers_come_by_id_and_total_variation() -> None:
    a = [record(spread(0.6), None, row=f"r{index:02}") for index in range(20)]
    b = [replace(one, probabilities=spread(0.6 + 0.01 * index)) for index, one in enumerate(a)]
    movers = compare(a, b)["movers"]
    assert [mover["row"] for mover in movers] == [f"r{index:02}" for index in range(19, 9, -1)]
    assert movers[0]["distance"] == pytest.approx(0.19)
    assert movers[0]["shift"] == pytest.approx(0.19)
    assert set(movers[0]) == {"file", "row", "field", "distance", "shift", "decision_changed"}


def test_a_run_against_itself_is_identical() -> None:
    rows = engine(30, 0.8, 0.7)
    found = compare(rows, rows[::-1])
    assert found["identical"] == 30
    assert found["movers"] == []
    assert (found["agreement"]["share"], found["shift"]["mean"], found["flips"]["p"]) == (1.0, 0.0, 1.0)
    assert found["latency_ratio"]["inference_ms"] == 1.0


def test_rows_of_one_run_alone_are_counted_and_left_out() -> None:
    rows = engine(10, 0.8, 0.7)
    found = compare(rows[:8], rows[5:])
    assert found["rows"] == {
        "a": 8,
        "b": 5,
        "paired": 3,
        "only_a": 5,
        "only_b": 2,
        "contradict": 0,
        "other_prompt": 0,
    }
    assert found["agreement"]["n"] == 3


def test_one_key_for_two_questions_is_no_pair() -> None:
    a = [record(spread(0.8), "red", row=str(index)) for index in range(4)]
    b = [
        replace(a[0], expected="green"),
        record({"red": 0.6, "pink": 0.4}, "red", row="1"),
        replace(a[2], type="score"),
        replace(a[3], prompt_sha256="another"),
    ]
    rows = compare(a, b)["rows"]
    assert (rows["paired"], rows["contradict"], rows["other_prompt"]) == (1, 3, 1)


def test_other_orders_of_the_options_are_counted_apart() -> None:
    own = record(spread(0.8), "red")
    turned = record(spread(0.8), "red", ordering=1, order=(2, 1, 0))
    found = compare([own, turned], [own, replace(turned, decision="blue", probabilities=spread(0.8, chosen=2))])
    assert (found["agreement"]["n"], found["agreement"]["agree"]) == (1, 1)
    assert (found["reordered_agreement"]["n"], found["reordered_agreement"]["agree"]) == (1, 0)
    assert found["movers"] == []


def test_the_latency_ratio_is_the_median_of_the_pairs_of_calls() -> None:
    a = [record(spread(0.8), None, row=str(index), inference_ms=10.0, total_ms=20.0) for index in range(3)]
    b = [replace(one, inference_ms=ms, total_ms=20.0) for one, ms in zip(a, (5.0, 30.0, 1000.0), strict=True)]
    assert compare(a, b)["latency_ratio"] == {"calls": 3, "inference_ms": 3.0, "total_ms": 1.0}


def test_calls_that_hold_other_numbers_of_questions_are_no_latency_pair() -> None:
    a = [record(spread(0.8), None, field=field, prompt_sha256="p", questions=2) for field in "xy"]
    b = [replace(one, prompt_sha256=one.field, questions=1) for one in a]
    assert compare(a, b)["latency_ratio"] == {"calls": 0, "inference_ms": None, "total_ms": None}
    assert compare(a, a)["latency_ratio"]["calls"] == 1


def test_an_engine_without_a_clock_has_no_latency_ratio() -> None:
    a = [record(spread(0.8), None, inference_ms=0.0)]
    assert compare(a, a)["latency_ratio"]["inference_ms"] is None


def test_a_key_that_occurs_twice_is_refused() -> None:
    one = record(spread(0.8), "red")
    with pytest.raises(MeasureError, match="answered twice"):
        compare([one], [one, one])


def test_nothing_against_nothing() -> None:
    found = compare([], [])
    assert found["shift"]["mean"] is None
    assert "No answer moved." in render(found)


def test_an_engine_that_drifted_between_two_runs_is_seen() -> None:
    """Planted fault: half of what was right has become wrong, and every probability a little lower."""
    a = engine(60, 0.8, 0.9)
    b = []
    for index, one in enumerate(a):
        chosen = LABELS.index(one.decision)
        if index % 2:
            chosen = (chosen + 1) % 3
        probabilities = spread(0.75, chosen=chosen)
        b.append(replace(one, probabilities=probabilities, decision=LABELS[chosen]))
    found = compare(a, b)
    assert found["flips"]["p"] < 1e-4
    assert found["shift"]["mean"] < -0.2
    text = render(found)
    assert f"| A right, B wrong | {found['flips']['only_a_right']} |" in text
    assert "| yes |" in text


def test_the_result_is_strict_json_and_its_text_has_every_number() -> None:
    a, b = runs(10, 6, 1, 3)
    found = compare(a, [*b, *binary([0.8], [True])])
    assert jsonio.loads(jsonio.dumps(found)) == found
    text = render(found)
    for line in (
        "| answers of A | 20 |",
        "| in B only | 1 |",
        "| same decision | 13 of 20 (65.0 %) |",
        "| A right, B wrong | 6 |",
        "| B right, A wrong | 1 |",
        "| exact McNemar p-value | 0.125 |",
        "| rows.jsonl r010 decision |",
    ):
        assert line in text


def test_markup_in_an_id_stays_text() -> None:
    one = record(spread(0.8), None, row="a|b<script>_x_\n# c")
    text = render(compare([one], [replace(one, probabilities=spread(0.5))]))
    assert "a\\|b&lt;script&gt;\\_x\\_\ufffd# c" in text
