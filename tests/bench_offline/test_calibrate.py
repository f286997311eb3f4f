"""One temperature a question type: found where it is known, and kept only where it does no harm."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from scorer.bench import calibrate
from scorer.bench.calibrate import CalibrationError, apply, fit, load, render, save
from scorer.bench.measures import MeasureError
from scorer.bench.records import Record
from shared import jsonio
from tests.bench_offline.made import binary, record, spread

ENGINE = {"engine": "fake", "revision": "0", "model": {"source": "fake"}}


def skewed(temperature: float, rows: int = 2000, seed: int = 11, type: str = "choice") -> list[Record]:
    """Labels drawn from honest probabilities, which the engine shows to the power of ``temperature``: what undoes it is
    that temperature."""
    dice = np.random.default_rng(seed)
    out = []
    for index in range(rows):
        honest = softmax(dice.normal(0.0, 1.2, 4))
        label = str(dice.choice(4, p=honest))
        shown = dict(zip("0123", softmax(np.log(honest) * temperature).tolist(), strict=True))
        out.append(record(shown, label, row=f"{type}{index:05}", type=type))
    return out


@pytest.mark.parametrize("temperature", [0.6, 1.8])
def test_the_temperature_that_skewed_the_numbers_is_found(temperature: float) -> None:
    found = fit(skewed(temperature), ENGINE, 1)["types"]["choice"]
    assert found["kept"]
    assert found["temperature"] == found["fitted"] == pytest.approx(temperature, rel=0.1)
    assert found["after"]["nll"] < found["before"]["nll"]
    assert found["after"]["brier"] < found["before"]["brier"]
    assert found["after"]["ece_10"] < found["before"]["ece_10"]
    assert 900 < found["fit_rows"] < 1100
    assert found["fit_rows"] + found["held_out_rows"] == 2000


def test_the_fitted_temperature_is_the_minimum_of_nll_by_brute_force() -> None:
    rows = skewed(1.7, rows=200)
    fitted = fit(rows, ENGINE, 1)["types"]["choice"]["fitted"]
    half = [one for one in rows if not calibrate._held_out(one.row, 1)]

    def nll(temperature: float) -> float:
        return -sum(math.log(apply(one.probabilities, temperature)[str(one.expected)]) for one in half)

    best = min((1.3 + 0.002 * step for step in range(400)), key=nll)
    assert fitted == pytest.approx(best, abs=0.002)


def test_each_type_has_its_own() -> None:
    rows = skewed(0.6, type="choice") + skewed(1.8, type="score", seed=12)
    types = fit(rows, ENGINE, 1)["types"]
    assert types["choice"]["temperature"] == pytest.approx(0.6, rel=0.1)
    assert types["score"]["temperature"] == pytest.approx(1.8, rel=0.1)


def test_rows_of_other_option_counts_are_fitted_together() -> None:
    rows = skewed(1.8, rows=400) + [
        replace(one, row=f"b{one.row}") for one in binary([0.9, 0.8, 0.7, 0.95] * 30, [True, True, False, True] * 30)
    ]
    found = fit([replace(one, type="choice") for one in rows], ENGINE, 1)["types"]["choice"]
    assert found["fit_rows"] + found["held_out_rows"] == 520
    assert found["fitted"] > 1.2


# -- do no harm ---


def halves(make: Callable[[bool, int], Record], rows: int = 200) -> list[Record]:
    """Rows made by the side of the split on which they fall."""
    return [make(calibrate._held_out(f"r{index}", 1), index) for index in range(rows)]


def test_a_temperature_that_worsens_the_held_out_rows_is_dropped() -> None:
    """Planted fault: the fitting half is overconfident, the held-out half is not."""

    def make(held_out: bool, index: int) -> Record:
        right = held_out or index % 2 == 0
        return record(spread(0.9), "red" if right else "blue", row=f"r{index}")

    found = fit(halves(make), ENGINE, 1)["types"]["choice"]
    assert not found["kept"]
    assert found["temperature"] == 1.0
    assert found["fitted"] > 1.5
    assert found["reason"] == "held-out NLL and Brier worsened"
    assert found["after"]["nll"] > found["before"]["nll"]


def test_rows_that_are_all_right_determine_no_temperature() -> None:
    """Their likelihood grows for ever as T goes to 0, and the held-out half might agree."""
    found = fit([record(spread(0.9), "red", row=f"r{index}") for index in range(200)], ENGINE, 1)["types"]["choice"]
    assert (found["temperature"], found["fitted"], found["kept"]) == (1.0, None, False)
    assert found["reason"].startswith("no best temperature")


def test_equal_probabilities_determine_no_temperature() -> None:
    rows = [record({"a": 0.5, "b": 0.5}, "ab"[index % 2], row=f"r{index}") for index in range(200)]
    found = fit(rows, ENGINE, 1)["types"]["choice"]
    assert (found["temperature"], found["fitted"]) == (1.0, None)


def test_an_engine_worse_than_chance_determines_no_temperature() -> None:
    dice = random.Random(3)
    rows = [record(spread(0.9), dice.choice(("green", "blue")), row=f"r{index}") for index in range(200)]
    assert fit(rows, ENGINE, 1)["types"]["choice"]["fitted"] is None


def test_too_few_rows_are_not_fitted() -> None:
    found = fit(skewed(1.8, rows=30), ENGINE, 1)["types"]["choice"]
    assert (found["temperature"], found["kept"], found["fitted"]) == (1.0, False, None)
    assert found["reason"] == "fewer than 20 labelled rows in a half"


def test_no_labelled_row_is_nothing_fitted() -> None:
    found = fit([record(spread(0.9), None)], ENGINE, 1)
    assert (found["types"], found["labelled"], found["left_out"]) == ({}, 0, 1)
    assert "nothing was fitted" in render(found)


def test_probabilities_of_zero_are_survived() -> None:
    def make(held_out: bool, index: int) -> Record:
        return record({"a": 1.0, "b": 0.0}, "ab"[index % 2], row=f"r{index}")

    found = fit(halves(make), ENGINE, 1)["types"]["choice"]
    jsonio.dumps(found)


# -- the split ---


def test_the_split_is_by_row_so_that_its_questions_stay_together_in_every_file() -> None:
    sides = {calibrate._held_out("row-7", 1) for _ in range(3)}
    assert len(sides) == 1
    assert {calibrate._held_out(f"row-{index}", 1) for index in range(20)} == {True, False}


def test_the_seed_chooses_the_split_and_nothing_else_does() -> None:
    rows = skewed(1.8, rows=300)
    assert fit(rows, ENGINE, 1) == fit(rows, ENGINE, 1)
    assert fit(rows, ENGINE, 1)["types"] != fit(rows, ENGINE, 2)["types"]
    shuffled = fit(rows[::-1], ENGINE, 1)["types"]["choice"]
    assert shuffled["fitted"] == pytest.approx(fit(rows, ENGINE, 1)["types"]["choice"]["fitted"], rel=1e-5)


def test_labels_and_the_rows_own_order_alone_count() -> None:
    rows = skewed(1.8, rows=300)
    turned = [replace(one, ordering=1, order=(3, 2, 1, 0), decision="0") for one in rows]
    unlabelled = [replace(one, row=f"u{one.row}", expected=None) for one in rows]
    found = fit([*rows, *turned, *unlabelled], ENGINE, 1)
    assert found["types"] == fit(rows, ENGINE, 1)["types"]
    assert (found["labelled"], found["left_out"]) == (300, 600)


def test_an_answer_that_occurs_twice_is_refused() -> None:
    one = record(spread(0.9), "red")
    with pytest.raises(MeasureError):
        fit([one, one], ENGINE, 1)


# -- applying ---


def test_apply_by_hand() -> None:
    # √0.64 : √0.04 : √0.32 … of 0.64, 0.04, 0.32
    found = apply({"a": 0.64, "b": 0.04, "c": 0.32}, 2.0)
    total = 0.8 + 0.2 + math.sqrt(0.32)
    assert found == {
        "a": pytest.approx(0.8 / total),
        "b": pytest.approx(0.2 / total),
        "c": pytest.approx(0.32**0.5 / total),
    }
    # squares
    assert apply({"a": 0.75, "b": 0.25}, 0.5) == {"a": pytest.approx(0.9), "b": pytest.approx(0.1)}


def test_a_temperature_of_one_gives_the_same_numbers_back_bit_by_bit() -> None:
    given = {"a": 0.1 + 0.2, "b": 1 - (0.1 + 0.2)}
    assert apply(given, 1.0) == given


@pytest.mark.parametrize("temperature", [0.05, 0.7, 20.0])
def test_no_decision_changes(temperature: float) -> None:
    for one in skewed(1.0, rows=50):
        after = apply(one.probabilities, temperature)
        assert max(after, key=lambda label: after[label]) == one.decision
        assert sum(after.values()) == pytest.approx(1.0)


# -- on disk ---


def test_what_is_saved_is_loaded_for_the_same_engine_alone(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    found = fit(skewed(1.8, rows=400), ENGINE, 1)
    save(path, found)
    assert jsonio.loads(path.read_bytes()) == found
    assert load(path, ENGINE) == {"choice": found["types"]["choice"]["temperature"]}
    with pytest.raises(CalibrationError, match="another engine"):
        load(path, {**ENGINE, "revision": "1"})


def test_nothing_is_overwritten_without_being_asked(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        save(path, fit([], ENGINE, 1))
    assert path.read_bytes() == b"mine"
    save(path, fit([], ENGINE, 1), overwrite=True)
    assert load(path, ENGINE) == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":"temperature-1","fingerprint":{},"types":{"choice":{"temperature":"hot"}}}',
        b'{"format":"temperature-1","fingerprint":{},"types":{"choice":{"temperature":0}}}',
        b'{"format":"temperature-1","fingerprint":{},"types":{"choice":{"temperature":-1}}}',
        b'{"format":"temperature-1","fingerprint":{},"types":[]}',
        b'{"format":"temperature-9","fingerprint":{},"types":{}}',
    ],
)
def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(text)
    with pytest.raises(CalibrationError, match=r"calibration\.json: not a calibration"):
        load(path, {})


def test_the_text_says_what_was_kept_and_that_nothing_applies_it() -> None:
    text = render(fit(skewed(1.8, rows=400) + skewed(1.0, rows=10, type="noul"), ENGINE, 1))
    assert "| choice | 1." in text
    assert "held-out NLL and Brier did not worsen" in text
    assert "fewer than 20 labelled rows in a half" in text
    assert "nothing applies it by itself" in text
    assert "| model.source | fake |" in text
