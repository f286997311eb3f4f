"""The sparrow engine's own rules: start, limits, tokens, caches, independence, answers."""

from __future__ import annotations

import gc
import hashlib
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sparrow_decider

from scorer.engines import create, sparrow_model
from scorer.engines.base import CallResult, NonFiniteForward, StartRefused, canonical_hashes
from scorer.engines.bounded_cache import BoundedCache
from scorer.engines.sparrow import SparrowEngine
from scorer.engines.sparrow_model import MODEL_PATH, MODEL_SHA256, SparrowModel, Words, count
from shared.settings import ScorerSettings
from shared.wire import Limits, Terms

STATE = "I was charged twice, please send the second payment back."
NOUL = {"type": "noul", "instructions": "Does the customer want money back?"}
CHOICE: dict[str, Any] = {
    "type": "choice",
    "instructions": "What is it about?",
    "criteria": {"z": "charges and invoices", "a": "a broken feature", "10": None, "9": {"like": ["this"]}},
}
LEVELS = ["can wait", {"when": "this week"}, ["today"]]
SCORE = {"type": "score", "instructions": "How urgent is it?", "criteria": LEVELS}
TURNED = {**CHOICE, "criteria": dict(reversed(CHOICE["criteria"].items()))}
QUESTIONS: dict[str, Any] = {"noul": NOUL, "choice": CHOICE, "score": SCORE}


def loaded(max_tokens: int = 8192) -> SparrowEngine:
    """A fresh engine, with caches of its own."""
    engine = SparrowEngine(ScorerSettings.from_env({"INTERN_DECISION_MAX_TOKENS": str(max_tokens)}))
    engine.load()
    return engine


@pytest.fixture(scope="module")
def engine() -> SparrowEngine:
    return loaded()


@pytest.fixture
def fresh() -> SparrowEngine:
    return loaded()


def run(engine: SparrowEngine, state: Any, *calls: Mapping[str, Any]) -> list[CallResult]:
    return [engine.predict(call) for call in engine.prepare(state, calls)]


def ask(engine: SparrowEngine, state: Any, question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to one question asked alone."""
    [result] = run(engine, state, {"q": question})
    answer: dict[str, Any] = result.answer["answers"]["q"]
    return answer


def tokens(engine: SparrowEngine, text: str) -> int:
    return count(engine._model.encode(text))


# Start.


def test_the_engine_that_the_setting_names_is_this_one_and_is_not_loaded_by_its_construction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sparrow_model, "load", lambda: pytest.fail("loaded"))
    assert isinstance(create(ScorerSettings.from_env({"INTERN_DECISION_ENGINE": "sparrow"})), SparrowEngine)


def test_another_release_of_the_package_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparrow_decider, "__version__", "0.2.1")
    with pytest.raises(StartRefused, match=r"^sparrow-decider: expected 0\.2\.0, found 0\.2\.1$"):
        loaded()


def test_a_model_file_with_one_other_byte_is_refused_with_both_hashes(tmp_path: Path) -> None:
    data = bytearray(MODEL_PATH.read_bytes())
    data[-1] ^= 1
    path = tmp_path / MODEL_PATH.name
    path.write_bytes(data)
    found = hashlib.sha256(data).hexdigest()
    with pytest.raises(StartRefused, match=f"^{path}: expected sha256 {MODEL_SHA256}, found {found}$"):
        sparrow_model.load(path)


def test_a_missing_model_file_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match=rf"^{tmp_path}/absent: expected the model file, found: No such file"):
        sparrow_model.load(tmp_path / "absent")


def test_the_bytes_that_are_loaded_are_those_that_were_hashed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / MODEL_PATH.name
    shutil.copy(MODEL_PATH, path)
    sha256, loaded_bytes = hashlib.sha256, []

    def hash_and_replace(data: bytes) -> Any:
        path.write_bytes(b"another file from here on")
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", hash_and_replace)
    monkeypatch.setattr(sparrow_decider.Decider, "load", lambda name: loaded_bytes.append(Path(name).read_bytes()))
    sparrow_model.load(path)
    assert [sha256(data).hexdigest() for data in loaded_bytes] == [MODEL_SHA256]


def test_the_packages_search_path_for_models_replaces_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: SparrowEngine
) -> None:
    other = MODEL_PATH.with_name("sparrow-nano-robot-v1.2.sparrow")
    for name in (MODEL_PATH.name, "sparrow-nano-general-v1.1-z.sparrow", "sparrow-nano-general-v9.sparrow"):
        shutil.copy(other, tmp_path / name)
    monkeypatch.setenv("SPARROW_MODELS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert loaded().canary() == engine.canary()


def test_a_start_whose_numbers_are_not_the_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gelu = sparrow_model._gelu
    monkeypatch.setattr(sparrow_model, "_gelu", lambda x: gelu(x) * np.float32(1.001))
    with pytest.raises(StartRefused, match=r"^sparrow: warm-up noul: expected \[0\.\d+, 0\.\d+\], found \[0\.\d+"):
        loaded()


def test_the_description_names_the_model_its_pins_and_its_limits() -> None:
    info = loaded(max_tokens=999).info()
    assert info.served_model == "sparrow-nano-general-v1.1@d1d3ee04cdfa"
    assert (info.engine, info.default_profile, info.device) == ("sparrow", "jev", "cpu")
    assert info.limits == Limits(questions=16, request_questions=400, options=255, levels=10, tokens=999)
    assert info.model["source"] == "pypi:sparrow-decider==0.2.0"
    assert info.model["model_sha256"] == MODEL_SHA256
    assert info.model["numpy_version"] == np.__version__
    assert info.calibration == {
        "method": "temperature-scaling",
        "temperature": 1.395,
        "temperature_by_type": {"noul": 0.939, "choice": 1.395, "score": 0.555},
    }


# What may be asked.


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"type": "rank"}, "Question type must be choice, score, or noul."),
        ({"type": ["choice"]}, "Question type must be choice, score, or noul."),
        ({"type": "choice", "criteria": ["a", "b"]}, "Choice criteria must be an object."),
        ({"type": "choice", "criteria": {}}, "Supply 1 to 255 options."),
        ({"type": "choice", "criteria": dict.fromkeys(map(str, range(256)))}, "Supply 1 to 255 options."),
        ({"type": "score", "criteria": list(range(11))}, "Supply 1 to 10 options."),
        ({"type": "score", "criteria": {"low": "a"}}, "Score option keys must be finite numbers."),
        ("no question", "Question type must be choice, score, or noul."),
    ],
)
def test_a_bad_question_is_an_error_that_names_the_rule(engine: SparrowEngine, question: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        engine.prepare(STATE, [{"q": question}])


def test_a_call_takes_sixteen_questions_and_no_more(engine: SparrowEngine) -> None:
    questions = {f"q{i}": NOUL for i in range(17)}
    with pytest.raises(ValueError, match=r"^Supply 1 to 16 questions\.$"):
        engine.prepare(STATE, [questions])
    del questions["q16"]
    [result] = run(engine, STATE, questions)
    assert list(result.answer["answers"]) == list(questions)


def test_the_largest_questions_are_answered(engine: SparrowEngine) -> None:
    choice = ask(engine, STATE, {"type": "choice", "criteria": {f"option {i}": f"text {i}" for i in range(255)}})
    assert len(choice["probabilities"]) == 255
    score = ask(engine, STATE, {"type": "score", "criteria": [f"level {i}" for i in range(10)]})
    assert list(score["probabilities"]) == list("0123456789")


def test_one_option_or_one_level_is_certain_and_still_counts_its_tokens(engine: SparrowEngine) -> None:
    for question, text in (
        ({"type": "choice", "criteria": {"only": "one option"}}, "only one option"),
        ({"type": "score", "criteria": ["the level"]}, "0 the level"),
    ):
        [result] = run(engine, STATE, {"q": question})
        answer = result.answer["answers"]["q"]
        assert (list(answer["probabilities"].values()), answer["confidence"]) == ([1.0], 1.0)
        assert result.answer["usage"]["input_tokens"] == tokens(engine, STATE) + tokens(engine, text)


# Tokens.


def test_a_calls_tokens_are_the_whole_state_and_every_questions_instructions_and_options(engine: SparrowEngine) -> None:
    long = STATE * 100
    assert tokens(engine, long) > 512
    [call] = engine.prepare(long, [{"a": NOUL, "b": SCORE}])
    texts = [
        long,
        NOUL["instructions"],
        f"false {sparrow_decider.NOUL_DEFAULT['false']}",
        f"true {sparrow_decider.NOUL_DEFAULT['true']}",
        SCORE["instructions"],
        "0 can wait",
        '1 {"when":"this week"}',
        '2 ["today"]',
    ]
    assert call.input_tokens == sum(tokens(engine, text) for text in texts)


def test_a_call_at_the_token_limit_is_answered_and_one_token_more_is_refused_with_both_numbers() -> None:
    [call] = loaded().prepare(STATE, [{"q": NOUL}])
    assert call.input_tokens < 40
    at_limit = loaded(call.input_tokens)
    [result] = run(at_limit, STATE, {"q": NOUL})
    assert result.answer["usage"]["input_tokens"] == call.input_tokens
    message = f"^Example has {call.input_tokens + 1} tokens, above {call.input_tokens}; truncation is forbidden$"
    with pytest.raises(ValueError, match=message):
        at_limit.prepare(STATE + "!", [{"q": NOUL}])


def test_a_request_with_one_call_too_long_costs_no_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = loaded(100)
    monkeypatch.setattr(SparrowModel, "pool", lambda *_: pytest.fail("pooled"))
    with pytest.raises(ValueError, match="truncation is forbidden"):
        engine.prepare(STATE, [{"q": NOUL}, {"q": {**NOUL, "instructions": "why " * 100}}])


@pytest.mark.parametrize("part", ["state", "instructions", "option"])
def test_a_text_is_read_to_its_end_beyond_512_tokens(engine: SparrowEngine, part: str) -> None:
    def answer(text: str) -> dict[str, Any]:
        question = {"type": "choice", "instructions": "What?", "criteria": {"refund": "money back", "bug": "broken"}}
        if part == "state":
            return ask(engine, text, question)
        if part == "instructions":
            return ask(engine, STATE, {**question, "instructions": text})
        return ask(engine, STATE, {**question, "criteria": {"refund": text, "bug": "broken"}})

    long = "the weather is nice today " * 120
    assert answer(long + "refund refund refund") != answer(long + "crash crash crash")


# Answers.


def test_an_answer_object_has_the_names_of_the_engine_contract_in_order(engine: SparrowEngine) -> None:
    [result] = run(engine, STATE, QUESTIONS)
    assert list(result.answer) == ["answers", "usage", "timing", "calibration", "model", "backend"]
    assert (result.answer["model"], result.answer["backend"]) == ("sparrow-nano-general-v1.1", "sparrow")
    assert result.answer["usage"] == {
        "input_tokens": result.answer["usage"]["input_tokens"],
        "output_tokens": 3,
        "decision_count": 3,
    }
    milliseconds = result.answer["timing"]["inference_ms"]
    assert milliseconds >= 0
    assert milliseconds == round(milliseconds, 2)
    assert result.answer["calibration"] == engine.info().calibration


def test_probabilities_are_unrounded_floats_in_the_callers_order_that_sum_to_one(engine: SparrowEngine) -> None:
    [result] = run(engine, STATE, QUESTIONS)
    orders = {"noul": ["no", "yes"], "choice": ["z", "a", "10", "9"], "score": ["0", "1", "2"]}
    for name, order in orders.items():
        probabilities = result.answer["answers"][name]["probabilities"]
        assert list(probabilities) == order
        assert all(type(p) is float and p != round(p, 6) for p in probabilities.values())
        assert sum(probabilities.values()) == pytest.approx(1, rel=0, abs=1e-12)


def test_an_answer_leans_to_what_the_state_says(engine: SparrowEngine) -> None:
    criteria = {"billing": "charges, invoices, money back", "bug": "something is broken", "praise": "thanks"}
    for state, expected in (
        ("I was charged twice, I want my money back", "billing"),
        ("the app crashes, it is broken", "bug"),
        ("thank you so much, you are great", "praise"),
    ):
        answer = ask(engine, state, {"type": "choice", "instructions": "What is it about?", "criteria": criteria})
        assert answer["choice"] == expected
        assert answer["confidence"] == answer["probabilities"][expected] > 0.5


def test_a_legend_is_the_levels_as_text(engine: SparrowEngine) -> None:
    assert ask(engine, STATE, SCORE)["legend"] == {"0": "can wait", "1": '{"when":"this week"}', "2": '["today"]'}


def test_levels_may_be_an_object_whose_keys_are_their_names(engine: SparrowEngine) -> None:
    as_list = ask(engine, STATE, {"type": "score", "criteria": ["can wait", "today"]})
    assert ask(engine, STATE, {"type": "score", "criteria": {"0": "can wait", "1": "today"}}) == as_list
    spread = ask(engine, STATE, {"type": "score", "criteria": {"-1": "can wait", "2.5": "today"}})
    assert spread["score"] == pytest.approx(-spread["probabilities"]["-1"] + 2.5 * spread["probabilities"]["2.5"])


def test_a_noul_side_that_is_absent_or_null_takes_the_packages_default_description(engine: SparrowEngine) -> None:
    given = {"false": "it is not so", "true": sparrow_decider.NOUL_DEFAULT["true"]}
    expected = ask(engine, STATE, {**NOUL, "criteria": given})
    for yes, no in (("true", "false"), ("yes", "no"), ("TRUE", "0")):
        assert ask(engine, STATE, {**NOUL, "criteria": {no: "it is not so"}}) == expected
        assert ask(engine, STATE, {**NOUL, "criteria": {yes: None, no: "it is not so"}}) == expected
    for criteria in (None, {}, {"true": None, "false": None}):
        assert ask(engine, STATE, {**NOUL, "criteria": criteria}) == ask(engine, STATE, NOUL) != expected


def test_null_texts_are_absent_texts(engine: SparrowEngine) -> None:
    bare = {"type": "choice", "criteria": {"refund": None, "bug": None}}
    empty = {"type": "choice", "instructions": "", "criteria": {"refund": "", "bug": ""}}
    assert ask(engine, None, {**bare, "instructions": None}) == ask(engine, "", empty) == ask(engine, None, bare)


def test_a_logit_that_is_not_finite_is_the_models_fault(monkeypatch: pytest.MonkeyPatch, engine: SparrowEngine) -> None:
    monkeypatch.setattr(SparrowModel, "logits", lambda *_: [[0.0, float("nan")]])
    [call] = engine.prepare(STATE, [{"q": NOUL}])
    with pytest.raises(NonFiniteForward):
        engine.predict(call)


def test_the_hash_of_a_call_is_that_of_its_canonical_json_and_follows_the_order_of_options(
    engine: SparrowEngine,
) -> None:
    calls = [{"q": CHOICE}, {"q": TURNED}]
    hashes = [call.prompt_sha256 for call in engine.prepare(STATE, calls)]
    assert hashes == canonical_hashes(STATE, calls)
    assert hashes[0] != hashes[1]


# Independence: all comparisons are of floats by equality.


def test_a_question_gets_the_same_numbers_alone_among_others_under_any_name_and_in_any_order(
    engine: SparrowEngine,
) -> None:
    alone = {name: ask(engine, STATE, question) for name, question in QUESTIONS.items()}
    [together] = run(engine, STATE, QUESTIONS)
    [turned] = run(engine, STATE, dict(reversed(QUESTIONS.items())))
    assert together.answer["answers"] == alone == turned.answer["answers"]
    separate = run(engine, STATE, *({f"other {name}": question} for name, question in QUESTIONS.items()))
    assert [result.answer["answers"] for result in separate] == [{f"other {name}": alone[name]} for name in alone]


def test_a_requests_numbers_do_not_depend_on_the_requests_before_or_between_its_calls(fresh: SparrowEngine) -> None:
    first = [result.answer["answers"] for result in run(loaded(), STATE, {"a": CHOICE}, {"b": SCORE})]
    for index in range(50):
        run(fresh, f"something else {index}", {"q": {**CHOICE, "instructions": f"question {index}"}}, QUESTIONS)
    calls = fresh.prepare(STATE, [{"a": CHOICE}, {"b": SCORE}])
    others = fresh.prepare("another request", [QUESTIONS])
    answers = []
    for call in calls:
        answers.append(fresh.predict(call).answer["answers"])
        fresh.predict(others[0])
        fresh.release()
    assert answers == first


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Grows by the packed token ids of every text that any engine pools."""
    pool = SparrowModel.pool
    seen: list[bytes] = []
    monkeypatch.setattr(SparrowModel, "pool", lambda model, ids: seen.append(ids) or pool(model, ids))
    return seen


def test_a_cached_question_gets_the_numbers_of_one_that_is_not(fresh: SparrowEngine, pooled: list[bytes]) -> None:
    miss = [result.answer["answers"] for result in run(fresh, STATE, QUESTIONS)]
    pooled.clear()
    assert [result.answer["answers"] for result in run(fresh, STATE, QUESTIONS)] == miss
    assert pooled == [fresh._model.encode(STATE)]


def test_known_options_in_another_order_are_not_pooled_again(fresh: SparrowEngine, pooled: list[bytes]) -> None:
    expected = ask(loaded(), STATE, TURNED)
    run(fresh, STATE, {"q": CHOICE})
    pooled.clear()
    assert ask(fresh, STATE, TURNED) == expected
    assert pooled == [fresh._model.encode(STATE)]


def test_a_salted_question_is_not_found_by_one_of_another_salt_or_of_none(
    fresh: SparrowEngine, pooled: list[bytes]
) -> None:
    def ask_salted(salt: str) -> Any:
        pooled.clear()
        [call] = fresh.prepare(STATE, [{"q": CHOICE}], Terms(cache_salt=salt))
        return fresh.predict(call).answer["answers"], len(pooled)

    state_and_options = 1 + 1 + len(CHOICE["criteria"])
    answer, _ = ask_salted("")
    assert ask_salted("one") == (answer, state_and_options)
    assert ask_salted("one") == (answer, 1)
    assert ask_salted("two") == (answer, state_and_options)
    assert ask_salted("") == (answer, 1)


def test_options_are_told_apart_by_the_type_of_their_question(engine: SparrowEngine) -> None:
    choice = ask(engine, STATE, {"type": "choice", "criteria": {"0": "can wait", "1": "today"}})
    score = ask(engine, STATE, {"type": "score", "criteria": ["can wait", "today"]})
    assert choice["probabilities"] != score["probabilities"]


# One state a request.


def test_a_requests_state_is_encoded_and_pooled_once_and_later_calls_say_so(
    fresh: SparrowEngine, pooled: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = SparrowModel.encode
    encoded: list[str] = []
    monkeypatch.setattr(SparrowModel, "encode", lambda model, text: encoded.append(text) or encode(model, text))
    results = run(fresh, STATE, {"q": NOUL}, {"q": CHOICE}, {"q": SCORE})
    ids = encode(fresh._model, STATE)
    assert (encoded.count(STATE), pooled.count(ids)) == (1, 1)
    assert [result.cached_tokens for result in results] == [0, count(ids), count(ids)]
    assert [result.cached_tokens for result in run(fresh, STATE, {"q": NOUL})] == [0]


def test_a_finished_request_leaves_no_state_behind(fresh: SparrowEngine) -> None:
    calls = fresh.prepare(STATE, [QUESTIONS])
    fresh.predict(calls[0])
    vector = weakref.ref(calls[0].payload[0].text.vector)
    before = fresh.memory()
    del calls
    fresh.release()
    gc.collect()
    assert vector() is None
    run(fresh, STATE * 50, QUESTIONS)
    assert fresh.memory() == before


# Bounds of what is kept.


def test_texts_that_are_very_long_are_not_kept(fresh: SparrowEngine) -> None:
    run(fresh, STATE, {"q": NOUL})
    kept = {"texts": len(fresh._texts), "prompts": len(fresh._prompts)}
    run(fresh, STATE, {"q": {**NOUL, "instructions": "word " * 1000}})
    assert {"texts": len(fresh._texts), "prompts": len(fresh._prompts)} == kept
    run(fresh, STATE, {"q": {**NOUL, "instructions": "short"}})
    assert {"texts": len(fresh._texts), "prompts": len(fresh._prompts)} == {name: n + 1 for name, n in kept.items()}


def test_memory_for_questions_stays_within_its_bounds_whatever_is_asked(fresh: SparrowEngine) -> None:
    for index in range(100):
        criteria = {f"{index} option {i}": f"description {index}" for i in range(255)}
        run(fresh, STATE, {"q": {"type": "choice", "instructions": f"{index}", "criteria": criteria}})
        for name, most in (("text_cache_bytes", 16 << 20), ("question_cache_bytes", 32 << 20)):
            assert 0 < fresh.memory()[name] <= most
    assert len(fresh._texts) == 8192
    assert 1 < len(fresh._prompts) < 100


@pytest.fixture
def cache() -> BoundedCache[str, int]:
    return BoundedCache(3, 100, 60)


def test_the_cache_lets_the_least_recently_used_entry_go_first(cache: BoundedCache[str, int]) -> None:
    for number, key in enumerate("abc"):
        cache.put(key, number, 10)
    assert cache.get("a") == 0
    cache.put("d", 3, 10)
    assert [cache.get(key) for key in "abcd"] == [0, None, 2, 3]
    assert (len(cache), cache.bytes) == (3, 30)


def test_the_cache_counts_bytes_and_keeps_nothing_too_large(cache: BoundedCache[str, int]) -> None:
    cache.put("large", 1, 61)
    assert (cache.get("large"), cache.bytes) == (None, 0)
    cache.put("a", 1, 60)
    cache.put("b", 2, 40)
    assert (cache.get("a"), cache.bytes) == (1, 100)
    cache.put("c", 3, 1)
    assert (cache.get("a"), cache.get("b"), cache.bytes) == (1, None, 61)
    cache.put("a", 4, 5)
    assert (cache.get("a"), cache.bytes) == (4, 6)
    cache.clear()
    assert (cache.get("a"), len(cache), cache.bytes) == (None, 0, 0)


def test_the_word_table_is_bounded_and_keeps_no_word_of_more_than_100_letters(engine: SparrowEngine) -> None:
    words = Words(engine._model._tokenizer, most=5)
    expected = [words[f"w{i}"] for i in range(12)]
    assert len(words) == 2
    assert words.bytes > 0
    assert [words[f"w{i}"] for i in range(12)] == expected
    size = len(words)
    assert words["a" * 101] == words["b" * 5000]
    assert len(words) == size


# The canary.


def test_the_canary_answers_all_three_types_bit_for_bit_alike_on_every_engine(engine: SparrowEngine) -> None:
    first = engine.canary()
    assert list(first) == ["noul", "choice", "score"]
    assert first == engine.canary() == loaded().canary()


def test_the_canary_sees_damaged_weights_and_not_what_was_kept_before(fresh: SparrowEngine) -> None:
    first = fresh.canary()
    fresh._model._table[1:] *= np.float32(1.01)
    fresh._model._table[fresh._model._tokenizer.vocab["money"]] += np.float32(0.5)
    assert fresh.canary() != first


def test_the_canary_empties_the_caches_that_a_fault_may_have_damaged(fresh: SparrowEngine) -> None:
    healthy = ask(fresh, STATE, CHOICE)
    for prompt, _ in fresh._prompts._items.values():
        assert prompt.rows is not None
        prompt.rows.fixed[:] = 7
    assert ask(fresh, STATE, CHOICE) != healthy
    fresh.canary()
    assert ask(fresh, STATE, CHOICE) == healthy
