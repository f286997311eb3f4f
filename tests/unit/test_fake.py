"""The scriptable engine itself (scorer/engines/fake.py, questions.py): every other test leans on it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from scorer.engines.base import FatalEngineError, NonFiniteForward, OutOfMemory, StartRefused, canonical_hashes
from scorer.engines.fake import FakeEngine
from scorer.engines.questions import answer, check_questions, read_options
from shared.settings import PREFIX, ScorerSettings
from tests.harness import strict_json

CHOICE = {"type": "choice", "instructions": "?", "criteria": {"z": "Z", "a": "A", "m": "M", "k": "K"}}


def engine(directory: Path, **settings: str) -> FakeEngine:
    return FakeEngine(
        ScorerSettings.from_env({PREFIX + "RUN_DIR": str(directory), **{PREFIX + k: v for k, v in settings.items()}})
    )


def ask(fake: FakeEngine, state: Any, *questions: dict[str, Any]) -> list[dict[str, Any]]:
    return [fake.predict(call).answer["answers"] for call in fake.prepare(state, list(questions))]


def test_the_option_at_position_i_gets_the_ith_default_weight(tmp_path: Path) -> None:
    found = ask(engine(tmp_path), "s", {"q": CHOICE})[0]["q"]["probabilities"]
    assert list(found) == ["z", "a", "m", "k"]
    assert list(found.values()) == pytest.approx([w / 1.05 for w in (0.6, 0.3, 0.1, 0.05)])


def test_a_state_scripts_its_own_request_and_the_file_all_others(tmp_path: Path) -> None:
    fake = engine(tmp_path)
    (tmp_path / "fake.json").write_text('{"weights":[0,0,1,0]}')
    assert ask(fake, "s", {"q": CHOICE})[0]["q"]["choice"] == "m"
    assert (
        ask(fake, {"fake": {"probabilities": [0.1, 0.2, 0.3, 0.4]}}, {"q": CHOICE})[0]["q"]["probabilities"]["k"] == 0.4
    )


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("value", ValueError),
        ("oom", OutOfMemory),
        ("runtime", RuntimeError),
        ("fatal", FatalEngineError),
        ("non_finite", NonFiniteForward),
    ],
)
def test_scripted_errors(tmp_path: Path, kind: str, error: type[Exception]) -> None:
    fake = engine(tmp_path)
    with pytest.raises(error, match="m"):
        fake.prepare({"fake": {"prepare_error": [kind, "m"]}}, [{"q": CHOICE}])
    first, second = fake.prepare({"fake": {"error": [kind, "m"], "on_call": 1}}, [{"q": CHOICE}] * 2)
    fake.predict(first)
    with pytest.raises(error, match="m"):
        fake.predict(second)


def test_scripted_broken_answers(tmp_path: Path) -> None:
    fake = engine(tmp_path)
    assert "k" not in ask(fake, {"fake": {"drop_option": True}}, {"q": CHOICE})[0]["q"]["probabilities"]
    assert list(ask(fake, {"fake": {"drop_answer": True}}, {"q1": CHOICE, "q2": CHOICE})[0]) == ["q1"]
    assert math.isnan(ask(fake, {"fake": {"nan": True}}, {"q": CHOICE})[0]["q"]["probabilities"]["z"])
    assert ask(fake, {"fake": {"set": {"confidence": None}}}, {"q": CHOICE})[0]["q"]["confidence"] is None


def test_a_call_over_max_tokens_is_refused_by_prepare_naming_count_and_limit(tmp_path: Path) -> None:
    fake = engine(tmp_path, MAX_TOKENS="5")
    words = " ".join(["w"] * 5)
    assert fake.prepare(words, [{"q": CHOICE}])[0].input_tokens == 5
    with pytest.raises(ValueError, match=r"6 tokens.* 5"):
        fake.prepare(words + " w", [{"q": CHOICE}])


def test_a_load_error_refuses_the_start_and_calls_are_logged_where_a_log_is_wanted(tmp_path: Path) -> None:
    fake = engine(tmp_path)
    ask(fake, "unlogged", {"q": CHOICE})
    log = tmp_path / "fake_calls.jsonl"
    assert not log.exists()
    log.touch()
    ask(fake, "s", {"q": CHOICE})
    started, ended = map(json.loads, log.read_text().splitlines())
    assert (started["state"], started["questions"]) == ("s", {"q": CHOICE})
    assert ended["end"] >= started["start"]
    (tmp_path / "fake.json").write_text('{"load_error":"no"}')
    with pytest.raises(StartRefused, match="no"):
        fake.load()


def test_a_hash_is_that_of_the_calls_canonical_json_and_tells_option_order_apart() -> None:
    swapped = {**CHOICE, "criteria": dict(reversed(CHOICE["criteria"].items()))}  # type: ignore[attr-defined]
    first, again, other, renamed = canonical_hashes(
        {"b": 1, "a": "é"}, [{"q": CHOICE}, {"q": CHOICE}, {"q": swapped}, {"q1": CHOICE}]
    )
    assert first == again
    assert len({first, other, renamed}) == 3
    assert canonical_hashes({"a": "é", "b": 1}, [{"q": CHOICE}])[0] != first
    assert len(first) == 64


# -- questions.py ---


@pytest.mark.parametrize("questions", [{}, [], None, "q", {"": CHOICE}, {f"q{i}": CHOICE for i in range(4)}])
def test_one_to_most_questions_with_names(questions: Any) -> None:
    check_questions({"q": CHOICE}, 3)
    with pytest.raises(ValueError, match=r"questions|names"):
        check_questions(questions, 3)


@pytest.mark.parametrize(
    "question",
    [
        None,
        "noul",
        {},
        {"type": "other"},
        {"type": ["noul"]},
        {"type": {}},
        {"type": "choice"},
        {"type": "choice", "criteria": ["a"]},
        {"type": "choice", "criteria": {}},
        {"type": "choice", "criteria": dict.fromkeys("abcd")},
        {"type": "score"},
        {"type": "score", "criteria": "x"},
        {"type": "score", "criteria": []},
        {"type": "score", "criteria": {"x": ""}},
        {"type": "score", "criteria": {"nan": ""}},
        {"type": "score", "criteria": {"1e999": ""}},
    ],
)
def test_a_question_that_an_engine_cannot_answer_is_a_value_error(question: Any) -> None:
    with pytest.raises(ValueError, match=r"\."):
        read_options(question, 3)


def test_labels_and_descriptions_of_each_type() -> None:
    assert read_options(CHOICE, 4).labels == ("z", "a", "m", "k")
    assert read_options({"type": "score", "criteria": ["low", "high"]}, 4).labels == ("0", "1")
    assert read_options({"type": "score", "criteria": {"-1.5": "low", "2": "high"}}, 4).labels == ("-1.5", "2")
    noul = read_options({"type": "noul", "criteria": {"TRUE": "t", "no": "n", "other": "ignored"}}, 4)
    assert (noul.labels, noul.descriptions) == (("no", "yes"), ("n", "t"))
    assert read_options({"type": "noul", "criteria": "ignored"}, 4).descriptions == (None, None)


def test_an_exact_tie_goes_to_the_smaller_label_as_a_string() -> None:
    tie = read_options({"type": "choice", "criteria": {"b": "", "a": "", "10": "", "9": ""}}, 4)
    assert answer(tie, [0.25] * 4)["choice"] == "10"
    assert answer(tie, [0.4, 0.4, 0.1, 0.1])["choice"] == "a"


def test_the_answer_objects_fields() -> None:
    scored = answer(read_options({"type": "score", "criteria": {"-1": "low", "3": "high"}}, 4), [0.25, 0.75])
    assert scored == {
        "type": "score",
        "probabilities": {"-1": 0.25, "3": 0.75},
        "confidence": 0.75,
        "score": 2.0,
        "legend": {"-1": "low", "3": "high"},
        "source": "local",
        "decision": "3",
    }
    noul = answer(read_options({"type": "noul"}, 4), [0.75, 0.25])
    assert (noul["noul"], noul["confidence"], noul["decision"]) == (0.25, 0.75, "no")
    assert strict_json(json.dumps(noul).encode()) == noul
