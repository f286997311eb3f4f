"""The pure parts of the ``labels`` engine: layout, escaping, labels, batches, adapters.

The numbers are those of wire/decisions.md.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.engines.base import StartRefused
from scorer.engines.labels_adapter import check_activation, choose_adapter
from scorer.engines.labels_prompt import Asked, Escape, breakable, candidates, plain, render, render_one_turn
from scorer.engines.labels_request import CHUNK, LABELS_A_READ, Read, Request, batches
from scorer.engines.questions import read_options

JOINER = "⁠"
LETTERS = list(candidates())
NOTHING = Escape([])


def turns(kind: str, criteria: Any = None, instructions: Any = "Which?", marker: str = "") -> list[str]:
    question = {"type": kind, "criteria": criteria}
    asked = plain(instructions, read_options(question, 255), NOTHING)
    return [message["content"] for message in render("the state", asked, LETTERS, marker).messages]


# -- the layout ---


def test_c3_two_user_turns_hold_the_state_and_the_marker_the_question_and_its_options() -> None:
    asked = plain("Which?", read_options({"type": "choice", "criteria": {"a": "first", "b": "second"}}, 9), NOTHING)
    prompt = render("the state", asked, LETTERS, "### DECISION")
    assert prompt.messages == [
        {"role": "user", "content": "State:\nthe state"},
        {"role": "user", "content": "### DECISION\nWhich?\nA: first\nB: second"},
    ]
    assert prompt.labels == ["A", "B"]


def test_the_same_stands_in_one_turn_for_a_template_that_takes_no_two() -> None:
    asked = plain("Which?", read_options({"type": "choice", "criteria": {"a": None, "b": None}}, 9), NOTHING)
    prompt = render_one_turn("the state", asked, LETTERS, "#!")
    assert prompt.messages == [{"role": "user", "content": "State:\nthe state\n\n#!\nWhich?\nA: a\nB: b"}]
    assert prompt.labels == ["A", "B"]


def test_without_a_marker_or_instructions_there_is_no_line_of_theirs() -> None:
    assert turns("choice", {"a": None})[1] == "Which?\nA: a"
    assert turns("choice", {"a": None}, instructions=None)[1] == "A: a"
    assert turns("choice", {"a": None}, instructions=None, marker="#!")[1] == "#!\nA: a"


def test_c4_letters_run_from_a_to_z_and_then_aa_ab() -> None:
    assert LETTERS[:3] == ["A", "B", "C"]
    assert LETTERS[25:29] == ["Z", "AA", "AB", "AC"]
    assert LETTERS[51:53] == ["AZ", "BA"]
    assert len(LETTERS) == len(set(LETTERS)) == 702


def test_c6_a_noul_shows_no_and_then_yes_and_the_descriptions_of_its_sides() -> None:
    assert turns("noul")[1] == "Which?\nA: No / false\nB: Yes / true"
    sides = {"true": "it is late", "false": None}
    assert turns("noul", sides)[1] == "Which?\nA: No / false\nB: Yes / true: it is late"


@pytest.mark.parametrize("description", [None, ""])
def test_c7_an_option_without_a_description_is_shown_as_its_value(description: str | None) -> None:
    assert turns("choice", {"late": description, "lost": "gone"})[1] == "Which?\nA: late\nB: gone"
    assert turns("score", ["calm", description])[1] == "Which?\nA: calm\nB: 1"
    assert turns("score", {"3": description, "5": "angry"})[1] == "Which?\nA: 3\nB: angry"


def test_values_that_are_no_strings_are_compact_json() -> None:
    assert turns("choice", {"a": {"b": [1, None]}}, instructions=["é", 1])[1] == '["é",1]\nA: {"b":[1,null]}'


# -- escaping ---

FORBIDDEN = ["<|im_end|>", "<|im_start|>", "### DECISION", "<|", "aa", "ab", "ba"]
PIECES = st.lists(st.sampled_from([*FORBIDDEN, "<", "|", ">", "a", "b", "#", " ", "é", JOINER]), max_size=12)


@given(PIECES.map("".join))
def test_c9_an_escaped_text_holds_nothing_forbidden_and_differs_by_joiners_alone(text: str) -> None:
    escaped = Escape(FORBIDDEN)(text)
    assert not [word for word in FORBIDDEN if word in escaped]
    assert escaped.replace(JOINER, "") == text.replace(JOINER, "")


def test_c9_the_joiner_stands_behind_the_first_character() -> None:
    assert Escape(["<|im_end|>"])("a<|im_end|>b") == f"a<{JOINER}|im_end|>b"


@given(st.text())
def test_a_text_without_anything_forbidden_is_left_alone(text: str) -> None:
    assert Escape(["<|im_end|>", ""])(text) == text.replace("<|im_end|>", f"<{JOINER}|im_end|>")
    assert NOTHING(text) == text


def test_what_cannot_be_broken_is_told_and_hangs_nothing() -> None:
    assert breakable("##")
    assert not any(map(breakable, ["", "#", JOINER, JOINER * 2, f"{JOINER}a"]))
    assert Escape(["#", JOINER * 2])(f"a # {JOINER * 3}") == f"a # {JOINER * 3}"


def test_values_instructions_and_descriptions_are_escaped() -> None:
    options = read_options({"type": "choice", "criteria": {"x!!": "y!!", "z": {"k": "!!"}}}, 9)
    broken = f"!{JOINER}!"
    assert plain("i!!", options, Escape(["!!"])) == Asked(
        "choice", f"i{broken}", ((f"x{broken}", f"y{broken}"), ("z", f'{{"k":"{broken}"}}'))
    )


# -- batches and reads ---


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(0, 4000), st.integers(1, 40000))
def test_every_question_is_in_one_batch_within_the_budget_and_with_little_padding(
    lengths: list[int], shared: int, budget: int
) -> None:
    plan = batches(lengths, shared, budget)
    assert sorted(index for batch in plan for index in batch) == list(range(len(lengths)))
    for batch in plan:
        own = [lengths[index] for index in batch]
        assert len(batch) == 1 or len(batch) * (shared + max(own)) <= budget
        assert len(batch) * max(own) <= 1.5 * sum(own)
        assert len(batch) == 1 or max(own) <= CHUNK
    assert batches(lengths, shared, budget) == plan


def test_questions_of_like_length_are_read_together() -> None:
    assert batches([30, 31, 30, 33], 1000, 5000) == [[0, 2, 1, 3]]
    assert batches([30, 31, 30, 33], 1000, 3000) == [[0, 2], [1, 3]]
    assert batches([30, 900, 31], 0, 5000) == [[0, 2], [1]]


@pytest.mark.parametrize(("labels", "times"), [(1, 1), (128, 1), (129, 2), (255, 2), (257, 3)])
def test_c15_c16_a_read_takes_128_labels(labels: int, times: int) -> None:
    assert LABELS_A_READ == 128
    assert Read([1], list(range(labels)), 1).times == times


def test_a_requests_tokens_are_the_shared_ones_once_and_each_rest() -> None:
    request = Request([1] * 10, "", [Read([1] * 3, [1], 13), Read([1] * 4, [1], 14)])
    assert request.tokens == 17
    request.part(True, 1000)
    assert request.batch_of == {0: [0, 1], 1: [0, 1]}
    request.part(False, 14)
    assert request.batch_of == {0: [0], 1: [1]}


# -- adapters ---

SWITCH = SimpleNamespace(adapter_names=["rag", "decision"], adapter_token_ids=[70, 71])
PLAIN = SimpleNamespace()


def test_a_plain_model_has_no_adapter() -> None:
    assert choose_adapter(PLAIN, None, "") is None


@pytest.mark.parametrize(
    ("names", "asked", "chosen"),
    [
        (["rag", "decision"], None, "decision"),
        (["rag", "decision"], "rag", "rag"),
        (["judge"], None, "judge"),
    ],
)
def test_the_adapter_is_the_one_asked_for_or_the_only_one_or_decision(
    names: list[str], asked: str | None, chosen: str
) -> None:
    assert choose_adapter(SimpleNamespace(adapter_names=names), asked, "#!") == chosen


@pytest.mark.parametrize(
    ("config", "asked", "marker", "message"),
    [
        (SWITCH, "judge", "#!", r"LABELS_ADAPTER=judge: .* rag, decision"),
        (SimpleNamespace(adapter_names=["a", "b"]), None, "#!", "no decision adapter; it has a, b"),
        (SimpleNamespace(adapter_names=[]), None, "#!", "no decision adapter"),
        (SimpleNamespace(adapter_names=None), None, "#!", "no decision adapter"),
        (PLAIN, "decision", "#!", "no decision adapter"),
        (SWITCH, None, "", "LABELS_MARKER must be set"),
    ],
)
def test_c30_a_checkpoint_or_settings_that_name_no_usable_adapter_refuse_the_start(
    config: Any, asked: str | None, marker: str, message: str
) -> None:
    with pytest.raises(StartRefused, match=message):
        choose_adapter(config, asked, marker)


@pytest.mark.parametrize("ids", [[1, 2], [1, 71, 71, 2], [1, 70, 2], [71, 70, 2]])
def test_c30_a_marker_turns_its_adapter_on_exactly_once_and_no_other(ids: list[int]) -> None:
    with pytest.raises(StartRefused, match="once and never"):
        check_activation(SWITCH, "decision", "#!", ids, len(ids))


def test_c30_it_is_the_marker_that_turns_it_on_before_the_question() -> None:
    check_activation(SWITCH, "decision", "#!", [1, 71, 2, 3], 2)
    with pytest.raises(StartRefused, match=r"LABELS_MARKER=#!.*behind the question"):
        check_activation(SWITCH, "decision", "#!", [1, 2, 3, 71], 2)
    two_streams = SimpleNamespace(**vars(SWITCH), dual_stream=True)
    check_activation(two_streams, "decision", "#!", [1, 2, 3, 71], 2)


def test_a_leading_token_that_turns_adapters_off_shifts_the_others() -> None:
    config = SimpleNamespace(adapter_names=["rag", "decision"], adapter_token_ids=[69, 70, 71])
    check_activation(config, "decision", "#!", [71, 1], 1)
    with pytest.raises(StartRefused):
        check_activation(config, "decision", "#!", [70, 1], 1)
