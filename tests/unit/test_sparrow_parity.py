"""The sparrow engine's tokens and numbers are those of the package it serves, wherever the package does not cut."""

from __future__ import annotations

import json
import random
import re
import string
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparrow_decider import Decider
from sparrow_decider.static import _content as static_text

from scorer.engines import sparrow_model
from scorer.engines.sparrow import SparrowEngine
from scorer.engines.sparrow_model import SparrowModel
from shared.settings import ScorerSettings

ENGINE = SparrowEngine(ScorerSettings.from_env({"INTERN_DECISION_MAX_TOKENS": "100000"}))
ENGINE.load()
DECIDER: Decider = sparrow_model.load()
MODEL: SparrowModel = ENGINE._model
TOKENIZER = DECIDER.static.tok
CUT = 512

RUN = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
#: What normalising treats specially: spaces, controls, marks, final sigma, ideographs, characters that unfold.
ODD = (
    " \t\n\r\x0b\x0c\x1c\x00\x7f\x85\xa0\xad\u2028\u200b\u200d\u0301\u0328\ufffd\ufeff\ud800"
    "Σσς'İıßÅ漢豈。¿$_-[]#aAzZ019"
)


def package_ids(text: str) -> list[int]:
    """The package's ids of a text, without its cut."""
    ids: list[int] = TOKENIZER.encode(text, 10**9)
    return ids


def our_ids(text: str) -> list[int]:
    ids: list[int] = np.frombuffer(MODEL.encode(text), np.uint16).tolist()
    return ids


def ours(state: Any, question: dict[str, Any]) -> list[float]:
    """The engine's probabilities of one question asked alone."""
    [call] = ENGINE.prepare(state, [{"q": question}])
    return list(ENGINE.predict(call).answer["answers"]["q"]["probabilities"].values())


# Tokens.


def test_every_pair_of_ascii_characters_in_a_word_gives_the_packages_ids() -> None:
    chars = list(map(chr, range(128)))
    for first in chars:
        for text in [f"a{first}{second}B 7{first}{second}" for second in chars]:
            assert our_ids(text) == package_ids(text), repr(text)


def test_every_ascii_character_alone_and_at_either_end_gives_the_packages_ids() -> None:
    for char in map(chr, range(128)):
        for text in (char, char + "word", "word" + char, f" {char} ", char * 3, f"é{char}a", f"a{char}é"):
            assert our_ids(text) == package_ids(text), repr(text)


def test_every_character_of_the_basic_plane_inside_a_text_gives_the_packages_ids() -> None:
    for block in range(0, 0x10000, 256):
        text = " ".join(f"a{chr(code)}b {chr(code)}" for code in range(block, block + 256))
        assert our_ids(text) == package_ids(text), hex(block)


@RUN
@given(st.text(st.characters(max_codepoint=127)))
def test_any_ascii_text_gives_the_packages_ids(text: str) -> None:
    assert our_ids(text) == package_ids(text)


@RUN
@given(st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=()))))
def test_any_text_gives_the_packages_ids(text: str) -> None:
    assert our_ids(text) == package_ids(text)


@RUN
@given(st.text(st.sampled_from(ODD), max_size=60))
def test_texts_of_nothing_but_odd_characters_give_the_packages_ids(text: str) -> None:
    assert our_ids(text) == package_ids(text)


def test_every_entry_of_the_vocabulary_gives_the_packages_ids_as_a_word_and_inside_one() -> None:
    for piece in TOKENIZER.vocab:
        for text in (piece, "x" + piece.removeprefix("##"), piece + "ing"):
            assert our_ids(text) == package_ids(text), text


def test_words_around_the_packages_longest_give_its_ids() -> None:
    rng = random.Random(1)
    for size in (1, 2, 17, 18, 19, 98, 99, 100, 101, 200):
        for alphabet in (string.ascii_lowercase, "aé☃", string.digits):
            word = "".join(rng.choices(alphabet, k=size))
            assert our_ids(word) == package_ids(word), word


ENCODABLE = st.one_of(st.sampled_from(string.ascii_letters + ODD.replace("\ud800", "")), st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(ENCODABLE),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(ENCODABLE), inner, max_size=4),
    max_leaves=12,
)


@RUN
@given(JSON)
def test_compact_json_of_a_structured_state_gives_the_ids_of_the_packages_indented_json(state: Any) -> None:
    [call] = ENGINE.prepare(state, [{"q": {"type": "noul"}}])
    expected = package_ids(static_text(state))
    assert np.frombuffer(call.payload[0].text.ids, np.uint16).tolist() == expected


# Numbers.

TEXTS = st.text(ENCODABLE, max_size=80)
CONTENT = TEXTS | st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2) | st.lists(TEXTS, max_size=2)
SIDE = CONTENT.filter(lambda content: content is not None)
QUESTIONS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("noul")},
        # A null side is where the two differ: here it takes the default description.
        optional={
            "instructions": CONTENT,
            "criteria": st.none() | st.fixed_dictionaries({}, optional={"true": SIDE, "false": SIDE}),
        },
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("choice"),
            "instructions": CONTENT,
            "criteria": st.dictionaries(TEXTS, CONTENT, min_size=2, max_size=18),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("score"),
            "instructions": CONTENT,
            "criteria": st.lists(CONTENT, min_size=2, max_size=10),
        }
    ),
)


@RUN
@given(CONTENT, QUESTIONS)
def test_any_question_gets_the_packages_probabilities(state: Any, question: dict[str, Any]) -> None:
    expected = DECIDER.probs(state, question)[3].tolist()
    assert ours(state, question) == pytest.approx(expected, rel=0, abs=1e-6)


@RUN
@given(CONTENT, QUESTIONS)
def test_logits_are_the_packages_up_to_the_rounding_of_float32(state: Any, question: dict[str, Any]) -> None:
    [call] = ENGINE.prepare(state, [{"q": question}])
    ENGINE.predict(call)
    request, _, asked = call.payload
    kind, names, descriptions, _ = DECIDER.probs(state, question)
    options = list(zip(names, descriptions, strict=True))
    expected = DECIDER.static.logits(state, question.get("instructions"), kind, options)
    [logits] = MODEL.logits(request.text.vector, [asked["q"].prompt.rows])
    assert logits == pytest.approx(expected.tolist(), rel=0, abs=1e-5)


def rounded(number: Any) -> Any:
    """Equal to what rounds to ``number``; 1e-6 more, for a number in the middle of two."""
    return pytest.approx(number, rel=0, abs=0.5e-4 + 1e-6)


WORDS = re.findall(
    r"\S+",
    """
    I was charged twice please refund the second payment my order has not arrived yet where is it the app crashes when
    opening a file how do I change my delivery address thanks for quick help nothing works and nobody answers today
    urgent invoice card account password locked café naïve № 4471-B 12.50 $ 3% (see above) we're très déçu не работает
""",
)


def cases() -> list[tuple[Any, dict[str, Any]]]:
    """A fixed list of 300 states and questions of every type and size."""
    rng = random.Random(7)

    def text(most: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))

    out: list[tuple[Any, dict[str, Any]]] = []
    for index in range(300):
        state: Any = text(200)
        if index % 5 == 0:
            state = {"message": text(40), "history": [text(20), index, None, True], "empty": {}}
        kind = ("noul", "choice", "score")[index % 3]
        size = rng.randint(2, 10) if index % 7 else 60
        criteria: Any = None
        if kind == "choice":
            criteria = {f"{text(2)} {i}": text(8) if i % 4 else None for i in range(size)}
        elif kind == "score":
            criteria = [text(6) for _ in range(min(size, 10))]
        elif index % 2:
            criteria = {"true": text(6), "false": text(6)}
        out.append((state, {"type": kind, "instructions": text(12), "criteria": criteria}))
    return out


def test_answers_are_those_of_the_packages_ask_up_to_its_rounding_to_four_digits() -> None:
    for state, question in cases():
        assert len(package_ids(json.dumps(state, ensure_ascii=False))) < CUT
        [call] = ENGINE.prepare(state, [{"q": question}])
        mine, its = ENGINE.predict(call).answer["answers"]["q"], DECIDER.ask(state, {"q": question})["q"]
        if question["type"] == "noul":
            assert mine["noul"] == rounded(its["noul"])
            continue
        assert mine["probabilities"] == rounded(its["probabilities"])
        if question["type"] == "choice":
            assert mine["choice"] == its["choice"]
        else:
            assert mine["score"] == rounded(its["score"])


def test_beyond_512_tokens_the_numbers_are_those_of_the_package_with_its_cut_lifted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(3)
    long = " ".join(rng.choices(WORDS, k=2000)) + " I want my money back"
    options = {"refund": long + " refund", "other": "anything else"}
    question = {"type": "choice", "instructions": long, "criteria": options}
    cut = DECIDER.probs(long, question)[3].tolist()
    monkeypatch.setattr(DECIDER.static, "max_len", 10**9)
    whole = DECIDER.probs(long, question)[3].tolist()
    assert ours(long, question) == pytest.approx(whole, rel=0, abs=1e-6)
    assert ours(long, question) != pytest.approx(cut, rel=0, abs=1e-3)


@RUN
@given(CONTENT, st.lists(QUESTIONS, min_size=2, max_size=12))
def test_questions_of_one_request_get_the_bits_they_get_alone(state: Any, questions: list[dict[str, Any]]) -> None:
    # They are scored together; a neighbour must not show in the last bit (BLAS picks kernels by shape, SIMD by length).
    together = [ENGINE.predict(call).answer for call in ENGINE.prepare(state, [{"q": one} for one in questions])]
    for answer, question in zip(together, questions, strict=True):
        [alone] = ENGINE.prepare(state, [{"q": question}])
        assert answer["answers"] == ENGINE.predict(alone).answer["answers"]
