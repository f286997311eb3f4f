"""One state, many questions, paid once: what is shared, that it changes no answer, and that the counts are true."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from scorer.engines.labels import LabelsEngine
from scorer.engines.labels_chat import Chat
from scorer.engines.labels_prompt import Asked, Prompt, render
from scorer.engines.labels_prompts import Prompts
from scorer.engines.labels_request import CHUNK
from shared.settings import ScorerSettings
from shared.wire import Limits, Terms
from tests.unit.strategies import TEXT, json_values

Start = Callable[..., LabelsEngine]

STATE = "The parcel came late and the invoice was paid two times. " * 8
LIMITS = Limits(tokens=10**6)
#: A prompt read behind its prefix, in a batch, against the same read whole and alone; as probabilities.
NOISE = {"float32": 1e-5, "bfloat16": 0.05}


def noul(text: str) -> dict[str, Any]:
    return {"q": {"type": "noul", "instructions": text}}


def choice(options: int) -> dict[str, Any]:
    return {
        "q": {"type": "choice", "instructions": "Which?", "criteria": {f"v{i}": f"number {i}" for i in range(options)}}
    }


def answers(engine: LabelsEngine, state: Any, calls: list[Mapping[str, Any]], **terms: Any) -> list[dict[str, Any]]:
    prepared = engine.prepare(state, calls, Terms(**terms))
    found = [engine.predict(call).answer["answers"]["q"] for call in prepared]
    engine.release()
    return found


def whole(checkpoint: Path, **changes: str) -> LabelsEngine:
    """An engine that shares nothing."""
    named = {"ENGINE": "labels", "CHECKPOINT": str(checkpoint), "DEVICE": "cpu", "LABELS_BATCH_TOKENS": "1", **changes}
    engine = LabelsEngine(ScorerSettings.from_env({f"INTERN_DECISION_{n}": v for n, v in named.items()}), share=False)
    engine.load()
    return engine


def many(seed: int, count: int) -> list[dict[str, Any]]:
    """Questions of every type and of different lengths."""
    dice = random.Random(seed)
    words = ["late", "paid", "angry", "refund", "invoice", "parcel", "team", "urgent", "account", "locked", "password"]
    out: list[dict[str, Any]] = []
    for _ in range(count):
        text = " ".join(dice.choices(words, k=dice.randint(1, 30)))
        kind = dice.choice(["noul", "choice", "score"])
        question: dict[str, Any] = {"type": kind, "instructions": text}
        if kind == "choice":
            question["criteria"] = {word: dice.choice([None, text]) for word in dice.sample(words, dice.randint(2, 9))}
        elif kind == "score":
            question["criteria"] = dice.sample(words, dice.randint(2, 9))
        out.append({"q": question})
    return out


# -- it changes no answer ---


@pytest.mark.parametrize("dtype", NOISE)
def test_answers_equal_those_without_sharing_within_the_dtypes_noise_and_in_float32_the_argmax_always(
    tiny_lm: Path, start: Start, dtype: str
) -> None:
    ours, reference = start(tiny_lm, labels_dtype=dtype), whole(tiny_lm, LABELS_DTYPE=dtype)
    assert ours.info().model["prefix_sharing"]
    assert not reference.info().model["prefix_sharing"]
    for seed in range(4):
        calls = many(seed, 25)
        state = f"{STATE} {seed}"
        for again in range(2):
            for one, other in zip(answers(ours, state, calls), answers(reference, state, calls), strict=True):
                assert one["probabilities"] == pytest.approx(other["probabilities"], abs=NOISE[dtype]), again
                assert one["label_mass"] == pytest.approx(other["label_mass"], abs=NOISE[dtype])
                if dtype == "float32":
                    assert one["decision"] == other["decision"]
                    assert one["argmax_is_label"] == other["argmax_is_label"]


def test_a_repeated_request_is_answered_bit_for_bit_whether_its_prefix_was_kept_or_not(
    tiny_lm: Path, start: Start
) -> None:
    keeping, forgetful = start(tiny_lm), start(tiny_lm, labels_cache_mib=0)
    calls = many(5, 20)
    first = answers(keeping, STATE, calls)
    assert answers(keeping, STATE, calls) == first
    assert answers(forgetful, STATE, calls) == first


def test_a_read_changes_no_prefix_that_others_share(engine: LabelsEngine) -> None:
    reader = engine.reader
    prefix = reader.prefix(list(range(50, 90)))
    before = [(keys.clone(), values.clone()) for keys, values in prefix.layers]
    reader.read(prefix, [[60, 61], [62, 63, 64]], [[50, 51]] * 2)
    reader.read(prefix, [[60] * (CHUNK + 5)], [[50, 51]])
    for layer, kept in zip(prefix.layers, before, strict=True):
        for part, own in zip(layer, kept, strict=True):
            assert part.shape == own.shape
            assert part.equal(own)


def test_what_a_batch_holds_besides_and_its_padding_change_no_reading(engine: LabelsEngine) -> None:
    prefix = engine.reader.prefix(list(range(50, 90)))
    row, labels = [60, 61, 62], [50, 51, 52]
    (alone,) = engine.reader.read(prefix, [row], [labels])
    for others in ([[70]], [[70] * 9], [[70] * 9, [71]]):
        beside = engine.reader.read(prefix, [*others, row], [[50]] * len(others) + [labels])[-1]
        assert beside.logits == pytest.approx(alone.logits, abs=1e-5)
        assert beside.label_mass == pytest.approx(alone.label_mass, abs=1e-6)


def test_a_model_that_applies_its_head_another_way_is_read_at_the_same_places(engine: LabelsEngine) -> None:
    rows, labels = [[60, 61, 62], [70] * 9], [[50, 51]] * 2
    expected = engine.reader.read(None, rows, labels)
    hooks = engine.reader.model.get_output_embeddings()._forward_pre_hooks
    kept = dict(hooks)
    assert kept
    hooks.clear()
    try:
        found = engine.reader.read(None, rows, labels)
    finally:
        hooks.update(kept)
    for one, other in zip(found, expected, strict=True):
        assert one.logits == pytest.approx(other.logits, abs=1e-5)


def test_a_long_state_and_a_long_question_are_read_in_chunks_with_the_same_answer(tiny_lm: Path, start: Start) -> None:
    ours, reference = start(tiny_lm), whole(tiny_lm)
    calls = [noul("late " * (CHUNK + 100)), noul("late?")]
    state = "paid " * (CHUNK + 50)
    request = ours.prepare(state, calls)[0].payload[0]
    assert len(request.shared) > CHUNK
    assert len(request.reads[0].ids) > CHUNK
    for one, other in zip(answers(ours, state, calls), answers(reference, state, calls), strict=True):
        assert one["noul"] == pytest.approx(other["noul"], abs=1e-4)


# -- the ids are those of the whole prompt ---


@pytest.fixture(scope="session")
def chats(tiny_lm: Path) -> dict[str, Chat]:
    """The tiny model's chat; one that finds no safe border; one whose template has no control token at all."""
    from transformers import AutoTokenizer

    unsafe = Chat(AutoTokenizer.from_pretrained(tiny_lm))
    bare = AutoTokenizer.from_pretrained(tiny_lm)
    bare.chat_template = "{% for turn in messages %}[{{ turn.role }}] {{ turn.content }}\n{% endfor %}[assistant] "
    return {"borders": Chat(AutoTokenizer.from_pretrained(tiny_lm)), "unsafe": unsafe, "bare": Chat(bare)}


LAYOUTS: dict[str, Callable[..., Prompt]] = {}


def layout(function: Callable[..., Prompt]) -> Callable[..., Prompt]:
    LAYOUTS[function.__name__] = function
    return function


layout(render)


@layout
def question_first(state: str, asked: Asked, letters: list[str], marker: str) -> Prompt:
    messages, labels = render(state, asked, letters, marker)
    return Prompt(messages[::-1], labels)


@layout
def other_first_turn_for_scores(state: str, asked: Asked, letters: list[str], marker: str) -> Prompt:
    messages, labels = render(state, asked, letters, marker)
    return Prompt(messages[::-1] if asked.type == "score" else messages, labels)


def test_a_state_is_tokenised_once_where_a_control_token_parts_it_from_the_question(chats: dict[str, Chat]) -> None:
    for kind, parts in (("borders", True), ("bare", False)):
        chat = chats[kind]
        Prompts(chat, render, "")
        texts = [
            chat.text(render("It is late.", Asked("noul", text, ()), [], "").messages) for text in ("Is it?", "Or not?")
        ]
        head = chat.head(*texts)
        assert ("It is late." in head) is parts
        assert all(text.startswith(head) for text in texts)
        if parts:
            assert all(chat.ids(text) == chat.ids(head) + chat.ids(text[len(head) :]) for text in texts)


@pytest.fixture(scope="session", params=[(kind, name) for kind in ("borders", "unsafe", "bare") for name in LAYOUTS])
def spied(request: pytest.FixtureRequest, chats: dict[str, Chat]) -> tuple[Chat, Prompts, list[str]]:
    """A chat, prompts of a layout, and every text that they render."""
    kind, name = request.param
    chat, seen = chats[kind], []

    def spying(*args: Any) -> Prompt:
        prompt = LAYOUTS[name](*args)
        seen.append(chat.text(prompt.messages))
        return prompt

    prompts = Prompts(chat, spying, "### DECISION")
    if kind == "unsafe":
        chat.parts_safely = False
    return chat, prompts, seen


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.data())
def test_shared_ids_and_a_rest_are_what_the_whole_prompt_tokenises_to(
    spied: tuple[Chat, Prompts, list[str]], data: st.DataObject
) -> None:
    chat, prompts, seen = spied
    state = data.draw(json_values() | TEXT)
    texts = data.draw(st.lists(TEXT, min_size=1, max_size=4))
    calls = [{"q": {"type": "score", "instructions": text, "criteria": [text, text]}} for text in texts]
    calls.append(noul("Is it?"))
    seen.clear()
    request = prompts.request(state, calls, "", LIMITS, 10**9)[0].payload[0]
    wholes = seen[-len(calls) :]
    for read, text in zip(request.reads, wholes, strict=True):
        assert [*request.shared, *read.ids] == chat.ids(text)
        assert read.tokens == len(chat.ids(text))
        assert read.ids


def test_what_is_shared_depends_on_the_state_alone(engine: LabelsEngine) -> None:
    shared = {
        tuple(engine.prepare(STATE, calls)[0].payload[0].shared)
        for calls in ([noul("")], [noul("\n\nIs it?")], [choice(3), noul("Is it?")], many(1, 9))
    }
    assert len(shared) == 1
    assert len(shared.pop()) > 50


def test_a_layout_in_one_turn_shares_the_state_as_well(tiny_lm: Path, start: Start) -> None:
    engine = start(tiny_lm, labels_renderer="scorer.engines.labels_prompt:render_one_turn")
    one, other = engine.prepare(STATE, [noul("Is it late?"), noul("Is it paid?")])
    assert len(one.payload[0].shared) > 50
    engine.predict(one)
    assert engine.predict(other).cached_tokens > 50


# -- models that cannot ---


def other_model(folder: Path, tiny_lm: Path, kind: str) -> Path:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_lm)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "initializer_range": 0.2,
    }
    torch.manual_seed(7)
    model: Any
    if kind == "sliding":
        model = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, head_dim=16, sliding_window=16))
    else:
        hybrid = transformers.Lfm2Config(**sizes, layer_types=["conv", "full_attention"], conv_L_cache=3)
        model = transformers.Lfm2ForCausalLM(hybrid)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["sliding", "hybrid"])
def test_a_model_whose_layers_cannot_be_parted_is_read_whole_and_says_so(
    tmp_path: Path, tiny_lm: Path, start: Start, kind: str
) -> None:
    engine = start(other_model(tmp_path / kind, tiny_lm, kind))
    assert engine.info().model["prefix_sharing"] is False
    calls = many(3, 8)
    prepared = engine.prepare(STATE, calls)
    results = [engine.predict(call) for call in prepared]
    assert {result.cached_tokens for result in results} == {0}
    alone = [answers(engine, STATE, [call])[0] for call in calls]
    for one, other in zip(results, alone, strict=True):
        assert one.answer["answers"]["q"]["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    assert engine.memory()["prefix_cache_bytes"] == 0


# -- the counts are true ---


def test_20_questions_over_2000_tokens_forward_at_most_1_3_times_the_state_and_the_questions(
    tiny_lm: Path, start: Start
) -> None:
    engine = start(tiny_lm, labels_cache_mib=0)
    state = "the parcel came late and " * 400
    calls = [noul(f"Question {i}: is it {'very ' * (i % 7)}late?") for i in range(20)]
    before = engine.reader.forwarded
    prepared = engine.prepare(state, calls)
    request = prepared[0].payload[0]
    assert len(request.shared) >= 2000
    for call in prepared:
        engine.predict(call)
    forwarded = engine.reader.forwarded - before
    assert request.tokens <= forwarded <= 1.3 * request.tokens
    assert sum(call.input_tokens for call in prepared) > 14 * forwarded, "read whole it would be many times that"


def test_cached_tokens_are_those_that_were_not_forwarded(tiny_lm: Path, start: Start) -> None:
    # Of one length, so that a batch has no padding and the model's own count can be compared.
    engine = start(tiny_lm)
    calls = [noul(f"Is it {word}?") for word in ("late", "paid")]
    for _ in range(3):
        before = engine.reader.forwarded
        prepared = engine.prepare(STATE, calls)
        assert len({call.input_tokens for call in prepared}) == 1
        cached = sum(engine.predict(call).cached_tokens for call in prepared)
        assert sum(call.input_tokens for call in prepared) - cached == engine.reader.forwarded - before


def test_c16_a_further_read_of_a_prompt_counts_as_cached_whole(engine: LabelsEngine) -> None:
    (call,) = engine.prepare(STATE, [choice(200)])
    before = engine.reader.forwarded
    result = engine.predict(call)
    prompt = call.payload[0].reads[0].tokens
    assert call.input_tokens == 2 * prompt
    assert result.cached_tokens == prompt == engine.reader.forwarded - before


def test_several_questions_of_one_call_are_read_apart_and_counted_each(engine: LabelsEngine) -> None:
    packed = {"q1": noul("Is it late?")["q"], "q2": choice(3)["q"]}
    (call,) = engine.prepare(STATE, [packed])
    result = engine.predict(call)
    alone = engine.prepare(STATE, [{"q": question} for question in packed.values()])
    singles = [engine.predict(one) for one in alone]
    assert call.input_tokens == sum(one.input_tokens for one in alone)
    assert result.cached_tokens == sum(one.cached_tokens for one in singles) == len(alone[0].payload[0].shared)
    for name, single in zip(packed, singles, strict=True):
        assert result.answer["answers"][name] == single.answer["answers"]["q"]
    assert call.prompt_sha256 not in {one.prompt_sha256 for one in alone}


def test_prompt_sha256_is_of_the_prompts_text(engine: LabelsEngine, oracle: Any) -> None:
    import hashlib

    (call,) = engine.prepare("x", [noul("Is it?")])
    text = oracle.tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "State:\nx"},
            {"role": "user", "content": "### DECISION\nIs it?\nA: No / false\nB: Yes / true"},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert call.prompt_sha256 == hashlib.sha256(text.encode()).hexdigest()


# -- what is kept ---


def test_prefixes_are_kept_within_the_bound_and_the_oldest_go_first(tiny_lm: Path, start: Start) -> None:
    engine = start(tiny_lm, labels_cache_mib=1)
    states = [f"{i} {STATE}" for i in range(40)]
    for state in states:
        answers(engine, state, [noul("Is it?")])
        assert 0 < engine.memory()["prefix_cache_bytes"] <= 1 << 20

    def cached(state: str) -> bool:
        (call,) = engine.prepare(state, [noul("Is it?")])
        return engine.predict(call).cached_tokens > 0

    assert cached(states[-1])
    assert not cached(states[0])


def test_a_prefix_larger_than_the_bound_serves_its_own_request_and_is_not_kept(tiny_lm: Path, start: Start) -> None:
    engine = start(tiny_lm, labels_cache_mib=0)
    for _ in range(2):
        first, second = engine.prepare(STATE, [noul("Is it late?"), noul("Is it paid?")])
        assert engine.predict(first).cached_tokens == 0
        assert engine.predict(second).cached_tokens > 0
    assert engine.memory()["prefix_cache_bytes"] == 0


def test_an_abandoned_request_costs_no_more_than_the_batch_it_was_in(tiny_lm: Path, start: Start) -> None:
    engine = start(tiny_lm, labels_batch_tokens=1200)
    prepared = engine.prepare(STATE, [noul(f"Is it number {i}?") for i in range(30)])
    before = engine.reader.forwarded
    engine.predict(prepared[0])
    request = prepared[0].payload[0]
    read = [one.reading is not None for one in request.reads]
    assert read.count(True) == len(request.batch_of[0]) < 20
    assert engine.reader.forwarded - before < request.tokens


def test_calls_may_be_asked_in_any_order_and_twice(engine: LabelsEngine) -> None:
    prepared = engine.prepare(STATE, many(8, 12))
    forward = [engine.predict(call).answer["answers"] for call in prepared]
    again = engine.prepare(STATE, many(8, 12))
    backward = [engine.predict(call).answer["answers"] for call in reversed(again)]
    assert backward[::-1] == forward
    assert [engine.predict(call).answer["answers"] for call in again] == forward
