"""Every measure against a small case worked out by hand, and against an independent library."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from scorer.bench import numbers, stability
from scorer.bench.columns import Columns
from scorer.bench.measures import MeasureError, summarise
from scorer.bench.numbers import Answers
from scorer.bench.records import Record
from shared import jsonio
from tests.bench_offline.made import binary, drifting, engine, position_biased, record, spread


def answers(sure: Sequence[float], right: Sequence[bool]) -> Answers:
    return columns(binary(sure, right)).answers()


def columns(records: Sequence[Record]) -> Columns:
    out = Columns()
    for one in records:
        out.add(one)
    return out


# -- accuracy ---


def test_accuracy_has_wilsons_interval() -> None:
    found = summarise(binary([0.9] * 10, [True] * 8 + [False] * 2))
    assert (found["n"], found["correct"], found["accuracy"]) == (10, 8, 0.8)
    # (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n) with p = 0.8, n = 10, z = 1.959964
    z2 = 1.959963984540054**2
    middle, spread_ = (0.8 + z2 / 20) / (1 + z2 / 10), math.sqrt(z2 * (0.016 + z2 / 400)) / (1 + z2 / 10)
    assert found["low"] == pytest.approx(middle - spread_, abs=1e-12)
    assert found["high"] == pytest.approx(middle + spread_, abs=1e-12)
    assert (round(found["low"], 4), round(found["high"], 4)) == (0.4902, 0.9433)


def test_an_answer_is_right_when_the_decision_is_the_expected_label_whatever_is_most_probable() -> None:
    found = summarise([record({"a": 0.4, "b": 0.6}, "a", decision="a")])
    assert found["accuracy"] == 1.0
    assert found["checks"]["decision_not_largest"] == 1


def test_a_tie_is_no_contradiction() -> None:
    assert summarise([record({"a": 0.5, "b": 0.5}, "a", decision="b")])["checks"]["decision_not_largest"] == 0


def test_rows_without_a_label_are_counted_and_left_out_of_accuracy() -> None:
    found = summarise([record(spread(0.8), "red"), record(spread(0.8), None, row="r2")])
    assert (found["labelled"], found["unlabelled"], found["n"], found["accuracy"]) == (1, 1, 1, 1.0)


def test_an_answer_counts_once_however_many_orders_were_asked() -> None:
    own = record(spread(0.8), "red")
    other = record(spread(0.8, chosen=1), "red", ordering=1, order=(2, 1, 0))
    found = summarise([own, other])
    assert (found["n"], found["accuracy"], found["reordered"], found["questions"]) == (1, 1.0, 1, 1)


def test_groups_by_type_family_option_count_and_file() -> None:
    found = summarise(
        [
            record({"no": 0.2, "yes": 0.8}, "yes", row="1", type="noul", family="x"),
            record({"no": 0.2, "yes": 0.8}, "no", row="2", type="noul", family="x"),
            record(spread(0.8), "red", row="3", family=None),
            record({str(k): 0.1 for k in range(10)}, "0", row="4", type="score", family="y", file="b.jsonl"),
        ]
    )["by"]
    assert {name: (one["n"], one["accuracy"]) for name, one in found["type"].items()} == {
        "choice": (1, 1.0),
        "noul": (2, 0.5),
        "score": (1, 1.0),
    }
    assert {name: one["n"] for name, one in found["family"].items()} == {"(none)": 1, "x": 2, "y": 1}
    assert [(name, one["n"]) for name, one in found["options"].items()] == [("2", 2), ("3", 1), ("10", 1)]
    assert {name: one["n"] for name, one in found["file"].items()} == {"b.jsonl": 1, "rows.jsonl": 3}


# -- scoring rules ---


def test_brier_sums_over_the_options_and_is_not_divided_by_their_number() -> None:
    # (0.5-1)² + 0.3² + 0.2² = 0.38, and 0.5² + 0.3² + (0.2-1)² = 0.98
    p = {"a": 0.5, "b": 0.3, "c": 0.2}
    assert summarise([record(p, "a", row="1"), record(p, "c", row="2")])["brier"] == pytest.approx((0.38 + 0.98) / 2)
    assert summarise([record({"a": 1.0, "b": 0.0}, "b")])["brier"] == 2.0
    assert summarise([record({"a": 1.0, "b": 0.0}, "a")])["brier"] == 0.0


def test_nll_is_the_mean_of_minus_ln_p() -> None:
    p = {"a": 0.5, "b": 0.3, "c": 0.2}
    found = summarise([record(p, "a", row="1"), record(p, "c", row="2")])
    assert found["nll"] == pytest.approx(-(math.log(0.5) + math.log(0.2)) / 2)
    assert found["nll_clipped"] == 0


def test_a_probability_of_zero_is_clipped_in_nll_and_counted() -> None:
    found = summarise([record({"a": 1.0, "b": 0.0}, "b")])
    assert found["nll"] == pytest.approx(-math.log(2.220446049250313e-16))
    assert found["nll_clipped"] == 1


def test_score_mae_is_the_distance_of_the_expected_level_from_the_label() -> None:
    levels = {"0": 0.2, "1": 0.3, "2": 0.5}
    found = summarise(
        [
            record(levels, "2", row="1", type="score", score=1.3),
            record(levels, "1", row="2", type="score", score=1.3),
            record(levels, "1", row="3", type="score", score=None),
            record(spread(0.8), "red", row="4"),
        ]
    )["score_mae"]
    assert found == {"n": 2, "mae": pytest.approx((0.7 + 0.3) / 2), "without_score": 1}


# -- calibration ---


def test_ece_by_hand() -> None:
    # bin (0.5, 0.6]: 2 answers, mean 0.575, 1 right: gap 0.075; bin (0.9, 1]: 2 answers, mean 0.95, both right: 0.05
    found = summarise(binary([0.55, 0.6, 0.92, 0.98], [True, False, True, True]))
    assert found["ece_10"] == pytest.approx((2 * 0.075 + 2 * 0.05) / 4)
    # 15 bins: 0.55 in (8/15, 9/15] with 0.6; 0.92 in (13/15, 14/15], gap 0.08; 0.98 in the last, gap 0.02
    assert found["ece_15"] == pytest.approx((2 * 0.075 + 0.08 + 0.02) / 4)


@pytest.mark.parametrize("tenth", range(1, 11))
def test_an_edge_belongs_to_the_bin_below_it(tenth: int) -> None:
    one = np.array([tenth / 10])
    curve = numbers.reliability(Answers(one, one, one, np.array([True])))
    assert [(found["from"], found["to"]) for found in curve] == [((tenth - 1) / 10, tenth / 10)]


def test_the_lowest_bin_includes_zero_and_the_highest_one() -> None:
    assert numbers._bins(np.array([0.0, 1e-300, 0.1, 1.0]), 10).tolist() == [0, 0, 0, 9]
    assert numbers._bins(np.array([0.0, 1 / 15, 1.0]), 15).tolist() == [0, 0, 14]


def test_the_reliability_curve_by_hand() -> None:
    curve = summarise(binary([0.55, 0.6, 0.92, 0.98], [True, False, True, True]))["reliability"]
    assert [(found["n"], found["accuracy"]) for found in curve] == [(2, 0.5), (2, 1.0)]
    assert [found["mean_confidence"] for found in curve] == pytest.approx([0.575, 0.95])
    assert all(found["low"] <= found["accuracy"] <= found["high"] for found in curve)


def test_confidence_of_the_engine_is_not_what_is_calibrated() -> None:
    """On some surfaces it follows another formula."""
    found = summarise([replace(one, confidence=0.01) for one in binary([0.9] * 4, [True] * 4)])
    assert found["mean_confidence"] == pytest.approx(0.9)


# -- coverage ---


def test_coverage_against_accuracy_by_hand() -> None:
    # surest first: 0.9 right, 0.8 wrong and right (a tie), 0.6 wrong
    curve = summarise(binary([0.8, 0.6, 0.9, 0.8], [False, False, True, True]))["coverage"]
    assert curve == [
        {"threshold": 0.9, "coverage": 0.25, "accuracy": 1.0},
        {"threshold": 0.8, "coverage": 0.75, "accuracy": pytest.approx(2 / 3)},
        {"threshold": 0.6, "coverage": 1.0, "accuracy": 0.5},
    ]


def test_the_order_of_the_rows_does_not_move_the_coverage_curve() -> None:
    rows = engine(200, 0.8, 0.7)
    assert summarise(rows)["coverage"] == summarise(rows[::-1])["coverage"]


def test_a_long_coverage_curve_is_thinned_and_keeps_both_ends() -> None:
    sure = [0.51 + index / 4500 for index in range(2000)]
    curve = numbers.coverage(answers(sure, [index % 3 > 0 for index in range(2000)]))
    assert len(curve) <= 101
    assert curve[0]["coverage"] == 1 / 2000
    assert curve[-1] == {"threshold": 0.51, "coverage": 1.0, "accuracy": pytest.approx(1333 / 2000)}
    assert all(a["coverage"] < b["coverage"] for a, b in pairwise(curve))


def test_selective_accuracy_keeps_what_is_exactly_at_the_threshold() -> None:
    found = summarise(binary([0.8, 0.6, 0.9, 0.8], [False, False, True, True]), thresholds=(0.8, 0.95))["selective"]
    assert [(one["n"], one["coverage"], one["accuracy"]) for one in found] == [
        (3, 0.75, pytest.approx(2 / 3)),
        (0, 0.0, None),
    ]


# -- order ---


def test_how_often_reversing_and_rotating_moves_the_answer() -> None:
    def asked(row: str, chosen: int, ordering: int, order: tuple[int, ...]) -> Record:
        return record(spread(0.8, chosen=chosen), "red", row=row, ordering=ordering, order=order)

    found = summarise(
        [
            asked("1", 0, 0, (0, 1, 2)),
            asked("1", 2, 1, (2, 1, 0)),
            asked("2", 1, 0, (0, 1, 2)),
            asked("2", 1, 1, (2, 1, 0)),
            asked("2", 1, 2, (1, 2, 0)),
            asked("2", 2, 3, (2, 0, 1)),
            asked("3", 0, 0, (0, 1, 2)),
            asked("4", 0, 1, (2, 1, 0)),
        ]
    )["order"]
    reversed_, rotated = found["kinds"]["reversed"], found["kinds"]["rotated"]
    assert (reversed_["answers"], reversed_["moved"], reversed_["share"]) == (2, 1, 0.5)
    assert (reversed_["questions"], reversed_["questions_moved"]) == (2, 1)
    assert (rotated["answers"], rotated["moved"], rotated["questions"], rotated["questions_moved"]) == (2, 1, 1, 1)
    assert (found["all"]["answers"], found["all"]["moved"], found["all"]["questions_moved"]) == (4, 2, 2)
    # moved from red to blue: ½ (0.7 + 0 + 0.7)
    assert reversed_["mean_tvd"] == pytest.approx(0.7 / 2)
    # asked first: row 1 in both orders, row 2 in the orders (1, 2, 0) and (2, 0, 1)
    assert found["first"] == pytest.approx(4 / 6)
    assert found["last"] == 0.0
    assert found["by_chance"] == pytest.approx(1 / 3)
    assert found["without_base"] == 1


@pytest.mark.parametrize(
    ("order", "kind"),
    [
        ((0, 1, 2, 3), "same"),
        ((3, 2, 1, 0), "reversed"),
        ((1, 2, 3, 0), "rotated"),
        ((3, 0, 1, 2), "rotated"),
        ((1, 0, 2, 3), "other"),
    ],
)
def test_the_kind_of_an_order(order: tuple[int, ...], kind: str) -> None:
    assert stability._kind((0, 1, 2, 3), order) == kind


def test_two_options_turned_round_are_reversed_and_one_option_is_the_same() -> None:
    assert stability._kind((0, 1), (1, 0)) == "reversed"
    assert stability._kind((0,), (0,)) == "same"


def test_the_same_order_again_says_nothing_about_order() -> None:
    found = summarise([record(spread(0.8), "red"), record(spread(0.8, chosen=1), "red", ordering=1)])["order"]
    assert found["kinds"]["same"]["moved"] == 1
    assert (found["all"]["answers"], found["all"]["share"], found["first"]) == (0, None, None)


def test_a_position_biased_engine_moves_every_answer() -> None:
    found = summarise(list(position_biased(30)))["order"]
    assert (found["all"]["share"], found["first"], found["last"]) == (1.0, 1.0, 0.0)


# -- repetition and drift ---


def test_prompts_asked_twice_are_compared_bit_by_bit() -> None:
    a = record({"x": 0.75, "y": 0.25}, None, row="1", prompt_sha256="p")
    same = replace(a, row="2")
    moved = replace(a, row="3", probabilities={"x": 0.75 - 2**-40, "y": 0.25 + 2**-40})
    assert summarise([a, same])["repeats"] == {"groups": 1, "differ": 0, "largest": 0.0}
    assert summarise([a, same, moved])["repeats"] == {"groups": 1, "differ": 1, "largest": 2**-40}
    assert summarise([a])["repeats"] == {"groups": 0, "differ": 0, "largest": None}


def test_drift_halves_every_family_on_its_own() -> None:
    found = summarise(drifting(40))["drift"]
    assert (found["n"], found["labelled"]) == ([40, 40], [40, 40])
    assert found["accuracy"] == [1.0, 0.5]
    assert found["mean_confidence"] == pytest.approx([0.9, 0.55])
    assert found["p_accuracy"] < 1e-6
    assert found["p_confidence"] < 1e-6
    assert found["latency_ratio"] == 2.0


def test_a_file_sorted_by_family_is_no_drift() -> None:
    easy, hard = engine(100, 0.9, 1.0, seed=3), engine(100, 0.5, 0.5, seed=4)
    rows = [replace(one, family="easy") for one in easy]
    rows += [replace(one, family="hard", row=f"h{one.row}") for one in hard]
    found = summarise(rows)["drift"]
    assert found["p_accuracy"] > 0.1
    assert found["p_confidence"] > 0.1


def test_fishers_p_by_hand() -> None:
    # 3 of 3 against 0 of 3 right: 2 / C(6, 3)
    found = summarise(binary([0.9] * 6, [True] * 3 + [False] * 3))["drift"]
    assert found["p_accuracy"] == pytest.approx(2 / 20)
    assert found["p_confidence"] == 1.0


# -- latency, confusion, errors ---


def test_the_time_of_a_call_counts_once_for_all_its_questions() -> None:
    packed: dict[str, Any] = {"prompt_sha256": "p", "questions": 2, "inference_ms": 30.0, "total_ms": 33.0}
    found = summarise(
        [
            record(spread(0.8), "red", field="a", **packed),
            record(spread(0.8), "red", field="b", **packed),
            record(spread(0.8), "red", row="r2", inference_ms=10.0, total_ms=11.0),
        ]
    )["latency"]
    assert found["calls"] == 2
    assert found["inference_ms"]["mean"] == 20.0
    assert found["inference_ms"]["p50"] == 20.0
    assert found["inference_ms"]["max"] == 30.0
    assert found["inference_ms_per_question"] == pytest.approx(40 / 3)
    assert found["overhead"] == pytest.approx(0.1)


def test_no_overhead_of_an_engine_that_takes_no_time() -> None:
    assert summarise([record(spread(0.8), "red", inference_ms=0.0)])["latency"]["overhead"] is None


def test_confusion_is_of_the_family_with_the_most_labels() -> None:
    rows = [record(spread(0.8), "green", row=str(index), family="big") for index in range(3)]
    rows += [record(spread(0.8), "red", row=f"s{index}", family="small") for index in range(2)]
    rows += [record(spread(0.8), None, row=f"u{index}", family="small") for index in range(5)]
    found = summarise(rows)["confusion"]
    assert found == {"family": "big", "n": 3, "labels": ["green", "red"], "matrix": [[0, 3], [0, 0]]}


def test_labels_beyond_twenty_are_one_in_the_confusion() -> None:
    labels = [f"label{index:02}" for index in range(30)]
    rows = [record(spread(0.9, labels, chosen=index), labels[index], row=str(index)) for index in range(30)]
    found = summarise(rows)["confusion"]
    assert len(found["labels"]) == 21
    assert found["labels"][-1] == "(other)"
    assert np.array(found["matrix"]).sum() == 30
    assert found["matrix"][-1][-1] == 10


def test_a_callers_label_may_be_called_like_the_rest() -> None:
    labels = ["(other)"] + [f"label{index:02}" for index in range(24)]
    rows = [record(spread(0.9, labels, chosen=index), labels[index], row=str(index)) for index in range(25)]
    found = summarise(rows)["confusion"]
    assert [row[i] for i, row in enumerate(found["matrix"])] == [1] * 20 + [5]


def test_the_surest_errors_come_by_id() -> None:
    found = summarise(binary([0.6, 0.9, 0.7], [False, False, True]))["confident_errors"]
    assert [(one["row"], one["probability"]) for one in found] == [("r1", 0.9), ("r0", 0.6)]
    assert found[0]["expected"] == "no"


# -- the whole ---


def test_nothing_at_all_is_measured_as_nothing() -> None:
    found = summarise([])
    assert (found["n"], found["accuracy"], found["ece_10"], found["coverage"], found["confusion"]) == (
        0,
        None,
        None,
        [],
        None,
    )
    jsonio.dumps(found)


@pytest.mark.parametrize(
    "rows", [engine(50, 0.8, 0.7), list(position_biased(9)), drifting(8)], ids=["plain", "orders", "drift"]
)
def test_a_summary_is_strict_json(rows: list[Record]) -> None:
    found = summarise(rows)
    assert jsonio.loads(jsonio.dumps(found)) == found


def test_records_of_one_key_are_refused() -> None:
    with pytest.raises(MeasureError, match=r"rows\.jsonl: row r1: field decision: ordering 0: answered twice"):
        summarise([record(spread(0.8), "red"), record(spread(0.7), "red")])


def test_an_expected_label_that_is_no_option_is_refused() -> None:
    with pytest.raises(MeasureError, match="none of its options"):
        summarise([record(spread(0.8), "purple")])


def test_probabilities_that_do_not_sum_to_one_are_counted() -> None:
    found = summarise([record({"a": 0.6, "b": 0.3}, "a"), record({"a": 0.6, "b": 0.39}, "a", row="r2")])["checks"]
    assert found["sum_off"] == 1
    assert found["largest_sum_gap"] == pytest.approx(0.1)


# -- against an independent library ---


def random_rows(options: int, rows: int = 400, seed: int = 5) -> list[Record]:
    dice = random.Random(seed)
    labels = [f"l{index}" for index in range(options)]
    out = []
    for index in range(rows):
        weights = [dice.random() ** 3 + 1e-6 for _ in labels]
        p = {label: weight / sum(weights) for label, weight in zip(labels, weights, strict=True)}
        out.append(record(p, dice.choices(labels, weights)[0], row=str(index)))
    return out


@pytest.mark.parametrize("options", [2, 3, 7])
def test_scoring_rules_are_scikit_learns(options: int) -> None:
    rows = random_rows(options)
    labels = list(rows[0].labels)
    p = np.array([[one.probabilities[label] for label in labels] for one in rows])
    y = [one.expected for one in rows]
    found = summarise(rows)
    assert found["accuracy"] == accuracy_score(y, [one.decision for one in rows])
    assert found["nll"] == pytest.approx(log_loss(y, p, labels=labels), rel=1e-12)
    onehot = np.array([[float(label == one) for label in labels] for one in y])
    assert found["brier"] == pytest.approx(brier_score_loss(onehot, p, scale_by_half=False), rel=1e-12)


@pytest.mark.parametrize("bins", [10, 15])
def test_ece_and_the_reliability_curve_are_scikit_learns(bins: int) -> None:
    rows = random_rows(4)
    right = [bool(one.correct) for one in rows]
    top = np.array([max(one.probabilities.values()) for one in rows])
    accuracy, confidence = calibration_curve(right, top, n_bins=bins)
    counts = np.histogram(top, bins=bins, range=(0, 1))[0]
    expected = float(np.sum(counts[counts > 0] * np.abs(accuracy - confidence)) / len(rows))
    assert summarise(rows)[f"ece_{bins}"] == pytest.approx(expected, rel=1e-12)
    curve = numbers.reliability(columns(rows).answers(), bins)
    assert [one["accuracy"] for one in curve] == pytest.approx(list(accuracy))
    assert [one["mean_confidence"] for one in curve] == pytest.approx(list(confidence))


def test_calls_are_told_apart_by_file_row_order_and_prompt() -> None:
    one = record(spread(0.8), "red")
    assert len(columns([one, replace(one, field="other", prompt_sha256=one.prompt_sha256)]).calls()["total_ms"]) == 1
    for change in ({"file": "b"}, {"row": "b"}, {"ordering": 1}, {"prompt_sha256": "b"}):
        assert len(columns([one, replace(one, **change)]).calls()["total_ms"]) == 2
