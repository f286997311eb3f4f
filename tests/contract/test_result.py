"""Contract § Mapping, the result shapes; INV-1 pass-through."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.helpers import ROUTES, assert_error, ordered, shared
from tests.harness import BEARER, D1, S1, Local, decision

#: The contract's block for one ordering, and for every plain decision.
PLAIN = {
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
}
#: Deltas 4 and 10: what semif-serve had and this service cannot have.
GONE = {
    "option_logits",
    "prefix_tokens",
    "prefill_seconds",
    "replicate_seconds",
    "suffix_forward_seconds",
    "true_suffix_tokens",
    "padded_suffix_tokens",
    "encode_seconds",
    "semif_commit",
}


def test_a_plain_result_has_exactly_the_contracts_fields(service: Local) -> None:
    alone = service.post("/decide", D1)[1]
    assert set(alone) == PLAIN | {"total_seconds", "forward_seconds"}
    together = service.post("/decide/shared", shared(decision("d", "ab")))[1]
    assert set(together) == {"results", "timing"}
    assert set(together["results"][0]) == PLAIN


def test_the_timing_of_decide_shared_has_exactly_the_contracts_fields(service: Local) -> None:
    timing = service.post("/decide/shared", shared(*(decision(f"d{i}", "ab") for i in range(17))))[1]["timing"]
    assert set(timing) == {
        "total_seconds",
        "batch_size",
        "calls",
        "questions_per_call",
        "input_tokens",
        "inference_seconds",
    }
    assert (timing["batch_size"], timing["calls"], timing["questions_per_call"]) == (17, 2, [16, 1])
    assert len(timing["input_tokens"]) == 2
    assert timing["inference_seconds"] <= timing["total_seconds"]


def test_an_averaged_result_has_exactly_the_contracts_fields(service: Local) -> None:
    result = service.post("/decide", {**D1, "orderings": "rotations"})[1]
    assert set(result) == {"id", "option_ids", "combined", "orderings"}
    assert set(result["combined"]) == {"method", "orderings", "probabilities", "top", "agreement", "spread"}
    assert [set(one) for one in result["orderings"]] == [PLAIN, PLAIN]
    assert [one["id"] for one in result["orderings"]] == ["d1#o0", "d1#o1"]


def test_the_fields_of_the_prefix_era_are_gone(service: Local) -> None:
    for path in ("/decide", "/decide/shared"):
        text = json.dumps(service.post(path, ROUTES[path])[1])
        assert not [name for name in GONE if f'"{name}"' in text]


def test_probabilities_follow_option_ids(service: Local) -> None:
    result = service.post("/decide", decision("d", ["z", "a", "10", "9", "2"], state="s"))[1]
    assert result["option_ids"] == ["z", "a", "10", "9", "2"]
    assert result["probabilities"] == [result["native"]["probabilities"][option] for option in result["option_ids"]]
    assert len(set(result["probabilities"])) > 2


def test_native_is_the_answer_object_unchanged_and_in_its_order(service: Local) -> None:
    def edit(answer: dict[str, Any]) -> None:
        answer["answers"]["q"].update(source="local", something={"new": [1, 2.5, None]})

    service.engine.edit = edit
    response = service.client.post("/decide", data=json.dumps(D1), headers=BEARER)
    native = json.loads(response.data)["native"]
    assert ordered(native) == ordered(service.engine.answers[0]["answers"]["q"])
    assert native["something"] == {"new": [1, 2.5, None]}


#: Numbers that rounding, renormalising or a detour through text would change. The third is the largest.
HARD = [0.1 + 0.2, 1 / 3, 1.0 - (0.1 + 0.2) - 1 / 3 - 5e-324, 5e-324]


def test_every_number_is_bit_equal_to_the_engines(service: Local) -> None:
    labels = [f"o{i}" for i in range(len(HARD))]

    def edit(answer: dict[str, Any]) -> None:
        native = answer["answers"]["q"]
        native["probabilities"] = dict(zip(labels, HARD, strict=True))
        native["choice"], native["confidence"] = "o2", 0.30000000000000004
        answer["calibration"] = {"method": "temperature-scaling", "temperature": 1.99241824}

    service.engine.edit = edit
    result = service.post("/decide", decision("d", labels, state="s"))[1]
    assert result["probabilities"] == HARD
    assert (result["top"], result["confidence"]) == ("o2", 0.30000000000000004)
    assert result["calibration"] == {"method": "temperature-scaling", "temperature": 1.99241824}


def test_top_and_confidence_are_natives_choice_and_confidence_even_in_a_tie(service: Local) -> None:
    def edit(answer: dict[str, Any]) -> None:
        answer["answers"]["q"].update(probabilities={"b": 0.4, "a": 0.4, "c": 0.2}, choice="a", confidence=0.41)

    service.engine.edit = edit
    result = service.post("/decide", decision("d", "bac", state="s"))[1]
    assert (result["top"], result["confidence"]) == ("a", 0.41)


def test_calibration_is_the_object_from_predict(service: Local) -> None:
    calibration = {"method": "temperature-scaling", "temperature": 1.99241824, "nested": {"z": 1, "a": 2}}
    service.engine.edit = lambda answer: answer.update(calibration=calibration)
    assert ordered(service.post("/decide", D1)[1]["calibration"]) == ordered(calibration)


def test_input_tokens_and_prompt_sha256_describe_the_whole_call(service: Local) -> None:
    answer = service.post("/decide/shared", shared(*(decision(f"d{i}", "ab") for i in range(18))))[1]
    results, per_call = answer["results"], answer["timing"]["input_tokens"]
    assert {(r["call"]["index"], r["input_tokens"]) for r in results} == {(0, per_call[0]), (1, per_call[1])}
    assert per_call[0] > per_call[1] > 0
    hashes = [{r["prompt_sha256"] for r in results if r["call"]["index"] == index} for index in (0, 1)]
    assert [len(found) for found in hashes] == [1, 1]
    assert hashes[0] != hashes[1]
    assert all(re.fullmatch("[0-9a-f]{64}", r["prompt_sha256"]) for r in results)


def test_forward_seconds_is_predicts_inference_ms_over_1000(service: Local) -> None:
    service.engine.edit = lambda answer: answer.update(timing={"inference_ms": 44.16})
    assert service.post("/decide", D1)[1]["forward_seconds"] == 44.16 / 1000
    timing = service.post("/decide/shared", shared(*(decision(f"d{i}", "ab") for i in range(33))))[1]["timing"]
    assert timing["inference_seconds"] == pytest.approx(3 * 0.04416)


def test_model_is_an_object_and_the_texts_are_not_empty_and_stable(service: Local) -> None:
    one, other = service.post("/decide", D1)[1], service.post("/decide", D1)[1]
    assert isinstance(one["model"], dict)
    assert one["model"]["revision"]
    for name in ("prompt_version", "readout", "probability_status"):
        assert isinstance(one[name], str)
        assert one[name]
        assert one[name] == other[name]


Edit = Callable[[dict[str, Any]], None]


def first(answer: dict[str, Any]) -> Any:
    """The first answer of an answer object, as the engine made it."""
    return next(iter(answer["answers"].values()))


def every(change: Callable[[dict[str, Any]], Any]) -> Edit:
    def edit(answer: dict[str, Any]) -> None:
        for item in answer["answers"].values():
            change(item)

    return edit


def swap_winner(item: dict[str, Any]) -> None:
    if item["type"] == "choice":
        item["choice"] = min(item["probabilities"], key=item["probabilities"].get)


def set_first_probability(value: Any) -> Edit:
    def change(item: dict[str, Any]) -> None:
        item["probabilities"][next(iter(item["probabilities"]))] = value

    return every(change)


BROKEN: dict[str, Edit] = {
    "lacks an option": every(lambda item: item["probabilities"].popitem()),
    "has an option too many": every(lambda item: item["probabilities"].update(extra=0.0)),
    "lacks a question": lambda answer: answer["answers"].popitem(),
    "has a question too many": lambda answer: answer["answers"].update(extra=first(answer)),
    "has no answers": lambda answer: answer.pop("answers"),
    "has null answers": lambda answer: answer.update(answers=None),
    "an answer is null": lambda answer: answer["answers"].update({next(iter(answer["answers"])): None}),
    "a probability is NaN": set_first_probability(float("nan")),
    "a probability is infinite": set_first_probability(float("inf")),
    "a probability is negative": set_first_probability(-0.1),
    "a probability is a string": set_first_probability("0.6"),
    "a probability is true": set_first_probability(True),
    "a probability is null": set_first_probability(None),
    "probabilities do not sum to 1": every(
        lambda item: item.update(probabilities={label: p / 2 for label, p in item["probabilities"].items()})
    ),
    "probabilities are a list": every(lambda item: item.update(probabilities=list(item["probabilities"].values()))),
    "confidence is infinite": every(lambda item: item.update(confidence=float("inf"))),
    "confidence is missing": every(lambda item: item.pop("confidence")),
    "the type is another": every(lambda item: item.update(type="other")),
    "calibration holds a NaN": lambda answer: answer.update(calibration={"temperature": float("nan")}),
    "calibration is not JSON": lambda answer: answer.update(calibration={"temperature": object()}),
}
CHOICE_ONLY: dict[str, Edit] = {
    "the winner is not the largest": every(swap_winner),
    "the winner is no option": every(lambda item: item.update(choice="nobody")),
    "there is no winner": every(lambda item: item.pop("choice", None)),
    "the timing is missing": lambda answer: answer.pop("timing"),
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("edit", BROKEN.values(), ids=BROKEN)
def test_an_answer_that_cannot_be_vouched_for_is_500_scoring_failed(service: Local, path: str, edit: Edit) -> None:
    before = service.post(path, ROUTES[path])
    service.engine.edit = edit
    assert_error(service.post(path, ROUTES[path]), 500, "scoring_failed")
    service.engine.edit = None
    after = service.post(path, ROUTES[path])
    assert (before[0], after[0]) == (200, 200)


@pytest.mark.parametrize("path", ["/decide", "/decide/shared"])
@pytest.mark.parametrize("edit", CHOICE_ONLY.values(), ids=CHOICE_ONLY)
def test_an_answer_that_contradicts_itself_is_500_scoring_failed(service: Local, path: str, edit: Edit) -> None:
    service.engine.edit = edit
    assert_error(service.post(path, ROUTES[path]), 500, "scoring_failed")


@pytest.mark.parametrize("edit", BROKEN.values(), ids=BROKEN)
def test_the_native_profile_refuses_broken_answers_too(native: Local, edit: Edit) -> None:
    native.engine.edit = edit
    assert_error(native.post("/v1/systemone", S1), 500, "scoring_failed")


ODD: dict[str, Edit] = {
    "timing a list": lambda answer: answer.update(timing=[1.5]),
    "timing a number": lambda answer: answer.update(timing=1.5),
    "inference_ms a string": lambda answer: answer.update(timing={"inference_ms": "fast"}),
    "inference_ms null": lambda answer: answer.update(timing={"inference_ms": None}),
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("edit", ODD.values(), ids=ODD)
def test_any_failure_while_building_the_response_is_500_scoring_failed(service: Local, path: str, edit: Edit) -> None:
    service.engine.edit = edit
    assert_error(service.post(path, ROUTES[path]), 500, "scoring_failed")


def test_one_broken_answer_of_many_makes_the_whole_request_a_500(service: Local) -> None:
    def edit(answer: dict[str, Any]) -> None:
        if "q7" in answer["answers"]:
            answer["answers"]["q7"]["probabilities"].popitem()

    service.engine.edit = edit
    body = shared(*(decision(f"d{i}", "ab") for i in range(20)))
    assert_error(service.post("/decide/shared", body), 500, "scoring_failed")


def test_a_probability_of_exactly_0_or_1_passes(service: Local) -> None:
    def edit(answer: dict[str, Any]) -> None:
        answer["answers"]["q"].update(probabilities={"billing": 1.0, "tech": 0.0}, choice="billing", confidence=1.0)

    service.engine.edit = edit
    assert service.post("/decide", D1)[1]["probabilities"] == [1.0, 0.0]
