"""langchain-openai 1.7.4's decisions against the running service (wire/decisions.md §9)."""

from __future__ import annotations

import asyncio
import importlib.metadata
import warnings
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from tests.harness import TOKEN, Pair

with warnings.catch_warnings():
    # It says that it is in beta when the class is made, not when it is used.
    warnings.simplefilter("ignore")
    from langchain_openai.decisions import Choice, Level, OpenAIDecisions, Predicate, Score

QUESTIONS: dict[str, Any] = {
    "urgent": Predicate(instructions="Urgent?"),
    "team": Choice(instructions="Which team?", choices={"billing": "Payments", "tech": None}),
    "paid": Choice(instructions="Paid?", choices={True: None, False: "not yet"}),
    "anger": Score(instructions="How angry?", levels=["calm", Level(label="angry", description="shouts")]),
}
STATES: dict[str, Any] = {
    "text": "I was charged twice.",
    "a human message": HumanMessage("I was charged twice."),
    "human messages": [HumanMessage("one"), HumanMessage([{"type": "text", "text": "two"}])],
    "a conversation": [SystemMessage("s"), HumanMessage("h"), AIMessage("a")],
    "an object": {"ticket": 7, "tags": ["late", None], "ok": True},
    "a list": [1, "x"],
}


def model(service: Pair, **more: Any) -> OpenAIDecisions:
    options: dict[str, Any] = {"model": "any", "api_key": TOKEN, "base_url": f"http://127.0.0.1:{service.port}/v1"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return OpenAIDecisions(**{**options, **more})


def check(response: Any) -> None:
    assert list(response.answers) == list(QUESTIONS)
    assert 0 <= response.predicates["urgent"].probability <= 1
    assert set(response.choices["team"].probabilities) == {"billing", "tech"}
    assert type(response.choices["paid"].choice) is bool
    assert set(response.choices["paid"].probabilities) == {True, False}
    anger = response.scores["anger"]
    assert anger.legend == {0: "calm", 1: "angry"}
    assert anger.score == pytest.approx(anger.probabilities[1])
    assert response.refusals == {}
    assert response.model == "fake@0"
    assert response.request_id.startswith("req_")
    assert response.usage.input_tokens > 0
    assert response.usage.output_tokens == 0


def test_the_package_is_the_pinned_release() -> None:
    assert importlib.metadata.version("langchain-openai") == "1.7.4"


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_every_state_that_it_sends_is_answered(served: Pair, state: Any) -> None:
    check(model(served).invoke({"input": state, "questions": QUESTIONS}))


def test_its_async_call_is_answered(served: Pair) -> None:
    check(asyncio.run(model(served).ainvoke({"input": "x", "questions": QUESTIONS})))


def test_an_image_is_refused_as_a_bad_request_which_its_fallback_looks_for(served: Pair) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(openai.BadRequestError) as refusal:
        model(served).invoke({"input": HumanMessage([image]), "questions": QUESTIONS})
    assert refusal.value.param == "input[0].content[0]"


def test_a_wrong_key_is_an_authentication_error(served: Pair) -> None:
    with pytest.raises(openai.AuthenticationError):
        model(served, api_key="wrong-key").invoke({"input": "x", "questions": QUESTIONS})
