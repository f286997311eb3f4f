"""The official client, openai 3.57.0, against the running service: only ``base_url`` is changed (wire/decisions.md §9,
granite D1)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.lib.decisions_tool_runner import DecisionsToolRunner
from openai.types import Decision

from tests.harness import TOKEN, Pair, pair, wait_for

P: Any = {"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"}
QUESTIONS: list[Any] = [
    P,
    {"type": "predicate", "instructions": "Unnamed?"},
    {
        "type": "choice",
        "name": "team",
        "instructions": [{"type": "input_text", "text": "Which team?"}, {"type": "input_json", "data": {"hint": None}}],
        "choices": [{"value": "billing", "description": "Payments"}, {"value": "tech"}],
    },
    {"type": "choice", "name": "paid", "instructions": "Paid?", "choices": [{"value": False}, {"value": True}]},
    {
        "type": "score",
        "name": "anger",
        "instructions": "How angry?",
        "levels": [{"label": "calm"}, {"label": "angry", "description": "shouts"}, {"label": "angry"}],
    },
]
INPUTS: dict[str, Any] = {
    "a string": "I was charged twice.",
    "an empty string": "",
    "a message": [{"role": "user", "content": "I was charged twice."}],
    "parts": [
        {"role": "user", "type": "message", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "user", "content": [{"type": "input_json", "data": {"k": [1, None]}}]},
    ],
}


def scripted(**script: Any) -> Any:
    """An input that scripts the fake engine."""
    return [{"role": "user", "content": [{"type": "input_json", "data": {"fake": script}}]}]


class Counted(httpx2.HTTPTransport):
    """The real transport, keeping each response's status."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[int] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        self.statuses.append(response.status_code)
        return response


class Caller:
    """A client on a service, and the statuses it met."""

    def __init__(self, service: Pair, **more: Any) -> None:
        self.transport = Counted()
        options: dict[str, Any] = {"api_key": TOKEN, "base_url": f"http://127.0.0.1:{service.port}/v1"}
        http_client = openai.DefaultHttpxClient(transport=self.transport)
        self.client = OpenAI(**{**options, **more}, http_client=http_client)

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_error: object) -> None:
        self.client.close()

    def ask(self, given: Any = "x", questions: Any = None, **more: Any) -> Decision:
        asked = questions or [P]
        return self.client.decisions.create(model="any", input=given, questions=asked, **more)


@pytest.fixture
def caller(served: Pair) -> Iterator[Caller]:
    with Caller(served, _strict_response_validation=True) as one:
        yield one


def check(answer: Decision) -> None:
    """An answer to QUESTIONS that hangs together."""
    urgent, unnamed, team, paid, anger = answer.answers
    assert urgent.type == unnamed.type == "predicate"
    assert (urgent.name, unnamed.name) == ("urgent", None)
    assert 0 <= urgent.probability <= 1
    assert team.type == paid.type == "choice"
    assert [item.value for item in team.probabilities] == ["billing", "tech"]
    assert team.choice == max(team.probabilities, key=lambda item: item.probability).value
    assert [item.value for item in paid.probabilities] == [False, True]
    assert type(paid.choice) is bool
    assert anger.type == "score"
    assert [(item.value, item.label) for item in anger.probabilities] == [(0, "calm"), (1, "angry"), (2, "angry")]
    assert anger.score == pytest.approx(sum(item.value * item.probability for item in anger.probabilities))
    for one in (team, paid, anger):
        assert sum(item.probability for item in one.probabilities) == pytest.approx(1.0, abs=1e-6)
        assert 0 <= one.confidence <= 1
    assert answer.usage.input_tokens == answer.usage.total_tokens > 0
    assert answer.usage.output_tokens == answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.model_extra == {}
    assert all(one.model_extra == {} for one in answer.answers)


def test_the_client_is_the_pinned_release() -> None:
    assert openai.__version__ == "3.57.0"


@pytest.mark.parametrize("given", INPUTS.values(), ids=INPUTS)
def test_every_kind_of_input_and_question_is_parsed_by_the_strict_client(caller: Caller, given: Any) -> None:
    answer = caller.ask(given, QUESTIONS)
    check(answer)
    assert answer.model == "fake@0"
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")


def test_a_real_model_answers_the_client_and_its_shared_work_shows() -> None:
    with pair(ENGINE="sparrow") as service, Caller(service, _strict_response_validation=True) as one:
        answer = one.ask("I was charged twice, send my money back.", QUESTIONS)
        check(answer)
        assert answer.usage.input_tokens_details.cached_tokens > 0
        assert [model.id for model in one.client.models.list()] == [answer.model]


def test_the_caching_fields_of_the_client_change_nothing(caller: Caller) -> None:
    bare = caller.ask("x", QUESTIONS)
    more = caller.ask(
        [
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}],
            }
        ],
        QUESTIONS,
        prompt_cache_key="k",
        prompt_cache_options={"mode": "explicit", "ttl": "30m"},
        safety_identifier=None,
        extra_body={"cache_salt": "s" * 43},
    )
    assert more.answers == bare.answers


def test_the_raw_response_has_the_request_id(caller: Caller) -> None:
    raw = caller.client.decisions.with_raw_response.create(model="m", input="x", questions=[P])
    assert raw.request_id is not None
    assert raw.request_id.startswith("req_")
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().answers[0].name == "urgent"


@pytest.mark.parametrize(
    ("given", "questions", "param", "code"),
    [
        ([{"role": "system", "content": "s"}], [P], "input[0].role", "unsupported_value"),
        ([{"type": "function_call_output", "call_id": "c", "output": "o"}], [P], "input[0].type", "unsupported_value"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}],
            [P],
            "input[0].content[0]",
            "unsupported_value",
        ),
        ("x", [{**P, "extra": 1}], "questions[0].extra", "unknown_parameter"),
        ("x", [P] * 401, "questions", "invalid_value"),
        ("w " * 9000, [P], None, "context_length_exceeded"),
    ],
)
def test_a_bad_request_is_one_attempt_and_says_where_and_why(
    caller: Caller, given: Any, questions: Any, param: str | None, code: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        caller.ask(given, questions)
    error = refusal.value
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert error.request_id is not None
    assert str(error).startswith("Error code: 400 - ")
    assert error.body["message"] in str(error)  # type: ignore[index]
    assert caller.transport.statuses == [400]


def test_a_wrong_key_is_an_authentication_error(served: Pair) -> None:
    with Caller(served, api_key="wrong-key") as stranger:
        with pytest.raises(openai.AuthenticationError) as refusal:
            stranger.ask()
        assert refusal.value.code == "invalid_api_key"
        assert stranger.transport.statuses == [401]


def test_a_base_url_without_v1_is_told_so(served: Pair) -> None:
    with Caller(served, base_url=f"http://127.0.0.1:{served.port}") as lost:
        with pytest.raises(openai.NotFoundError) as refusal:
            lost.ask()
        assert "/v1" in str(refusal.value)
        assert lost.transport.statuses == [404]


def test_a_strict_server_refuses_an_unknown_model() -> None:
    with pair(STRICT_MODEL="1") as service, Caller(service) as caller:
        with pytest.raises(openai.NotFoundError) as refusal:
            caller.ask()
        assert (refusal.value.code, refusal.value.param) == ("model_not_found", "model")
        assert caller.client.decisions.create(model="fake@0", input="x", questions=[P]).answers


def test_a_503_of_the_cap_is_retried_after_the_servers_wait_and_recovers() -> None:
    with (
        pair(MAX_CONCURRENT_DECISIONS="1") as service,
        Caller(service) as caller,
        Caller(service) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        service.script(sleep_s=0.7)
        busy = pool.submit(other.ask)
        wait_for(lambda: service.request("GET", "/health")[2]["busy_seconds"] > 0, what="the cap reached")
        service.script()
        began = time.monotonic()
        assert caller.ask().answers
        assert time.monotonic() - began >= 1.0, "Retry-After is at least a second"
        assert busy.result().answers
        assert caller.transport.statuses[0] == 503
        assert caller.transport.statuses[-1] == 200


def test_a_429_is_retried_too() -> None:
    with (
        pair(MAX_QUEUE="1") as service,
        Caller(service) as caller,
        Caller(service) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        service.script(sleep_s=0.7)
        busy = pool.submit(other.ask)
        wait_for(lambda: service.request("GET", "/health")[2]["busy_seconds"] > 0, what="a full queue")
        service.script()
        assert caller.ask().answers
        assert busy.result().answers
        assert caller.transport.statuses[0] == 429
        assert caller.transport.statuses[-1] == 200


def test_a_failure_that_would_only_repeat_itself_is_one_attempt(served: Pair) -> None:
    with Caller(served) as caller:
        with pytest.raises(openai.InternalServerError) as failure:
            caller.ask(scripted(error=["runtime", "boom"]))
        assert caller.transport.statuses == [500]
        assert (failure.value.type, failure.value.code) == ("server_error", None)
        assert "boom" not in str(failure.value)


def test_no_memory_is_retried(served: Pair) -> None:
    with Caller(served, max_retries=1) as caller:
        with pytest.raises(openai.InternalServerError) as failure:
            caller.ask(scripted(error=["oom", "x"]))
        assert caller.transport.statuses == [503, 503]
        assert failure.value.code == "overloaded"


def test_a_timeout_of_the_client_drops_the_work_that_is_left(served: Pair) -> None:
    calls = served.record_calls()
    known = len(calls())
    with Caller(served, max_retries=0, timeout=0.5) as caller, pytest.raises(openai.APITimeoutError):
        caller.ask(scripted(sleep_s=0.3), [P] * 40)
    wait_for(lambda: served.slots_in_use() == 0, what="the slot")
    assert len([line for line in calls()[known:] if "start" in line]) <= 6


def test_the_async_client_works_too(served: Pair) -> None:
    async def ask() -> list[Decision]:
        async with AsyncOpenAI(
            api_key=TOKEN, base_url=f"http://127.0.0.1:{served.port}/v1/", _strict_response_validation=True
        ) as client:
            wanted = (client.decisions.create(model="m", input=f"state {i}", questions=QUESTIONS) for i in range(8))
            answers = await asyncio.gather(*wanted)
            with pytest.raises(openai.BadRequestError):
                await client.decisions.create(model="m", input=[], questions=[P])
            hasty, slow = client.with_options(max_retries=0, timeout=0.2), scripted(sleep_s=0.5)
            with pytest.raises(openai.APITimeoutError):
                await hasty.decisions.create(model="m", input=slow, questions=[P])
            return answers

    answers = asyncio.run(ask())
    for answer in answers:
        check(answer)
    assert len({answer._request_id for answer in answers}) == 8


def test_the_clients_tool_runner_is_served(served: Pair) -> None:
    closed: list[str] = []
    candidates: list[Any] = [
        {"id": "close", "description": "Close it", "execute": lambda: closed.append("done")},
        {"id": "done", "description": "Nothing is left to do", "done": True},
    ]
    runner = DecisionsToolRunner(
        observe=lambda: "The ticket is " + ("closed." if closed else "open."),
        candidates=lambda _seen: candidates[bool(closed) :],
        verify=lambda _seen: bool(closed),
    )
    with Caller(served) as caller:
        result = runner.run(caller.client, {"model": "m", "input": "Close the ticket."})
    assert result["status"] == "verified"
    assert result["completed_candidate_ids"] == ["close"]
    assert [decision.answers[0].name for decision in result["decisions"]] == ["next_action"]
