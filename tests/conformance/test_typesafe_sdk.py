"""The official client, typesafe-sdk 0.7.5 with its zstd codec, against the running service."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
import typesafe_sdk
from typesafe_sdk import (
    AsyncTypeSafeClient,
    Choice,
    Image,
    Noul,
    NoulCriteria,
    RetryPolicy,
    Score,
    TypeSafeAPIError,
    TypeSafeAuthenticationError,
    TypeSafeClient,
    TypeSafeInternalServerError,
    TypeSafeNotFoundError,
    TypeSafeRateLimitError,
    TypeSafeUnprocessableEntityError,
)

from tests.harness import TOKEN, Pair, pair, wait_for

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

QUESTIONS: dict[str, Any] = {
    "refund": Noul(instructions="Is a refund wanted?", criteria=NoulCriteria(true="asks for money", false=None)),
    "team": Choice(
        instructions="Which team?", criteria={"billing": "Payments", "tech": None, "\ud658\ubd88": {"owns": ["x"]}}
    ),
    "anger": Score(instructions="How angry?", criteria=["calm", "annoyed", {"label": "angry"}]),
}


class Wire(httpx2.BaseTransport):
    """The real transport, keeping every request's headers and body and every response's status."""

    def __init__(self) -> None:
        self._real = httpx2.HTTPTransport()
        self.sent: list[tuple[httpx2.Headers, bytes]] = []
        self.statuses: list[int] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append((httpx2.Headers(request.headers), request.read()))
        response = self._real.handle_request(request)
        self.statuses.append(response.status_code)
        return response

    def close(self) -> None:
        self._real.close()


class Caller:
    """An SDK client on a service, and what it put on the wire."""

    def __init__(self, service: Pair, **more: Any) -> None:
        self.wire = Wire()
        options: dict[str, Any] = {
            "api_key": TOKEN,
            "base_url": f"http://127.0.0.1:{service.port}",
            "model": "jev-latest",
        }
        self.client = TypeSafeClient(transport=self.wire, **{**options, **more})

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_error: object) -> None:
        self.client.close()


@pytest.fixture
def caller(served: Pair) -> Iterator[Caller]:
    with Caller(served) as one:
        yield one


def test_the_sdk_is_the_pinned_release() -> None:
    assert typesafe_sdk.__version__ == "0.7.5"


def test_every_answer_type_is_parsed(caller: Caller) -> None:
    result = caller.client.system_one("I was charged twice.", QUESTIONS)
    assert set(result.answers) == set(QUESTIONS)
    assert 0 <= result.nouls["refund"].noul <= 1
    team = result.choices["team"]
    assert set(team.probabilities) == {"billing", "tech", "\ud658\ubd88"}
    assert team.choice == max(team.probabilities, key=lambda name: team.probabilities[name])
    assert 0 <= team.confidence <= 1
    anger = result.scores["anger"]
    assert [str(level) for level in anger.legend] == ["0", "1", "2"]
    assert list(anger.legend.values()) == ["calm", "annoyed", {"label": "angry"}]
    assert anger.score == pytest.approx(sum(int(level) * p for level, p in anger.probabilities.items()))
    assert isinstance(result.model, str)
    assert result.usage.input_tokens is not None
    assert result.usage.input_tokens > 0
    assert result.usage.output_tokens == 0


def test_the_sdk_parses_the_native_profile_too() -> None:
    with pair(SYSTEMONE_PROFILE="native") as service, Caller(service) as caller:
        result = caller.client.system_one(
            "I was charged twice.",
            {**QUESTIONS, "anger": Score(instructions="How angry?", criteria=["calm", "annoyed", "angry"])},
        )
        assert result.choices["team"].choice == "billing"
        assert result.scores["anger"].legend
        assert 0 <= result.nouls["refund"].noul <= 1
        assert result.model == "fake@0"


def test_sparrow_answers_the_sdk() -> None:
    with pair(ENGINE="sparrow") as service, Caller(service) as caller:
        result = caller.client.system_one("I was charged twice, send my money back.", QUESTIONS)
        assert sum(result.choices["team"].probabilities.values()) == pytest.approx(1.0, abs=1e-6)
        assert result.model.startswith("sparrow")
        assert caller.client.models.list().models[0].name == result.model


@pytest.mark.parametrize("state", ["", "text", {"a": [1, None]}, {}, [], [{"role": "user", "content": "hi"}]])
def test_every_state_that_the_sdk_sends_is_answered(caller: Caller, state: Any) -> None:
    assert caller.client.system_one(state, {"q": Noul(instructions="?")}).nouls["q"]


def test_raw_questions_are_answered(caller: Caller) -> None:
    result = caller.client.system_one("s", {"q": {"type": "noul", "instructions": None, "criteria": {"true": "t"}}})
    assert result.nouls["q"]


def test_the_models_list(caller: Caller) -> None:
    [model] = caller.client.models.list().models
    assert model.name == caller.client.system_one("s", {"q": Noul(instructions="?")}).model
    assert model.description
    assert model.release_date


def test_a_body_of_1_kib_or_more_is_really_sent_as_zstd_and_answered(caller: Caller) -> None:
    state = "Please send it back. " * 150
    result = caller.client.system_one(state, QUESTIONS)
    assert set(result.answers) == set(QUESTIONS)
    [(headers, body)] = caller.wire.sent
    assert headers["content-encoding"] == "zstd"
    assert int(headers["content-length"]) == len(body) < len(state)
    assert body.startswith(b"\x28\xb5\x2f\xfd")
    assert state.encode() in zstd.decompress(body)


def test_a_compressed_request_gets_the_numbers_of_the_plain_one(served: Pair, caller: Caller) -> None:
    state = {"text": "word " * 600}
    with Caller(served, compression=False) as plain:
        one, other = (each.client.system_one(state, QUESTIONS) for each in (caller, plain))
        assert "content-encoding" not in plain.wire.sent[0][0]
    assert one.answers == other.answers


def test_a_short_body_is_sent_plain(caller: Caller) -> None:
    caller.client.system_one("s", {"q": Noul(instructions="?")})
    assert "content-encoding" not in caller.wire.sent[0][0]


def test_the_request_id_is_on_results_and_errors(served: Pair, caller: Caller) -> None:
    result = caller.client.system_one("s", {"q": Noul(instructions="?")})
    assert result.request_id.startswith("req_")
    assert caller.client.models.list().request_id.startswith("req_")
    with Caller(served, api_key="wrong-key") as stranger, pytest.raises(TypeSafeAPIError) as refusal:
        stranger.client.system_one("s", {"q": Noul(instructions="?")})
    assert refusal.value.request_id is not None
    assert refusal.value.request_id.startswith("req_")
    assert refusal.value.request_id in str(refusal.value)


def test_a_wrong_key_is_an_authentication_error_at_once(served: Pair) -> None:
    with Caller(served, api_key="wrong-key") as stranger:
        with pytest.raises(TypeSafeAuthenticationError) as refusal:
            stranger.client.system_one("s", {"q": Noul(instructions="?")})
        with pytest.raises(TypeSafeAuthenticationError):
            stranger.client.models.list()
        assert stranger.wire.statuses == [401, 401]
    assert refusal.value.status == 401
    assert "bearer" in str(refusal.value).lower()


@pytest.mark.parametrize(
    "questions",
    [
        {"q": {"type": "boolean", "instructions": "?"}},
        {"q": {"type": "score", "instructions": "?", "criteria": {"0": "a", "1": "b"}}},
        {"q": {"type": "box", "instructions": "dog"}},
        {"q": Choice(instructions="?", criteria={f"o{i}": None for i in range(256)})},
    ],
)
def test_a_bad_question_is_an_unprocessable_entity_error_that_names_it(caller: Caller, questions: Any) -> None:
    with pytest.raises(TypeSafeUnprocessableEntityError) as refusal:
        caller.client.system_one("s", questions)
    assert "questions.q" in str(refusal.value)
    assert caller.wire.statuses == [422]


def test_an_image_is_refused_with_a_readable_error(caller: Caller) -> None:
    picture = Image(b"\x89PNG\r\n\x1a\n" + bytes(32))
    with pytest.raises(TypeSafeAPIError) as refusal:
        caller.client.system_one({"photo": picture}, {"q": Noul(instructions="?")})
    assert 400 <= refusal.value.status < 500
    assert len(caller.wire.statuses) == 1
    assert "not supported" in str(refusal.value)


def test_an_unknown_model_is_answered_and_with_strict_model_not_found(caller: Caller) -> None:
    assert caller.client.system_one("s", {"q": Noul(instructions="?")}, model="no-such-model").nouls["q"]
    with pair(STRICT_MODEL="1") as service, Caller(service) as strict:
        assert strict.client.system_one("s", {"q": Noul(instructions="?")}).nouls["q"]
        with pytest.raises(TypeSafeNotFoundError) as refusal:
            strict.client.system_one("s", {"q": Noul(instructions="?")}, model="no-such-model")
        assert strict.wire.statuses == [200, 404]
    assert refusal.value.status == 404


def test_a_429_is_retried_after_the_servers_wait_and_recovers() -> None:
    with pair(MAX_QUEUE="1") as service, Caller(service) as caller, ThreadPoolExecutor(1) as pool:
        state = {"fake": {"sleep_s": 0.7}}
        busy = pool.submit(
            service.post, "/v1/systemone", {"state": state, "questions": {"q": {"type": "noul", "instructions": "?"}}}
        )
        wait_for(lambda: service.slots_in_use() == 1, what="a full queue")
        began = time.monotonic()
        result = caller.client.system_one("s", {"q": Noul(instructions="?")})
        waited = time.monotonic() - began
        assert result.nouls["q"]
        assert busy.result()[0] == 200
        assert caller.wire.statuses[0] == 429
        assert caller.wire.statuses[-1] == 200
        assert waited >= 1.0, "Retry-After is at least a second"
        assert caller.wire.sent[-1][0]["x-typesafe-retry-count"] == str(len(caller.wire.sent) - 1)


def test_a_429_without_retries_is_a_rate_limit_error_with_its_wait() -> None:
    with (
        pair(MAX_QUEUE="1") as service,
        ThreadPoolExecutor(1) as pool,
        Caller(service, retry=RetryPolicy(max_retries=0)) as caller,
    ):
        busy = pool.submit(
            service.post,
            "/v1/systemone",
            {"state": {"fake": {"sleep_s": 0.7}}, "questions": {"q": {"type": "noul", "instructions": "?"}}},
        )
        wait_for(lambda: service.slots_in_use() == 1, what="a full queue")
        with pytest.raises(TypeSafeRateLimitError) as refusal:
            caller.client.system_one("s", {"q": Noul(instructions="?")})
        assert busy.result()[0] == 200
    assert refusal.value.retry_after_ms is not None
    assert 1000 <= refusal.value.retry_after_ms <= 5000


def test_a_503_is_an_internal_server_error_after_3_attempts(served: Pair) -> None:
    # Waits of its own: the server's (2 s each) would only be waited for.
    quick = RetryPolicy(backoff_initial=0, respect_retry_after=False)
    with Caller(served, retry=quick) as caller:
        with pytest.raises(TypeSafeInternalServerError) as refusal:
            caller.client.system_one({"fake": {"error": ["oom", "x"]}}, {"q": Noul(instructions="?")})
        assert caller.wire.statuses == [503] * 3
    assert refusal.value.status == 503
    assert 1 <= int(refusal.value.headers["retry-after"]) <= 5


def test_a_500_is_an_internal_server_error_after_3_attempts(caller: Caller) -> None:
    with pytest.raises(TypeSafeInternalServerError) as refusal:
        caller.client.system_one({"fake": {"error": ["runtime", "boom"]}}, {"q": Noul(instructions="?")})
    assert refusal.value.status == 500
    assert caller.wire.statuses == [500] * 3
    assert "boom" not in str(refusal.value)


def test_the_async_client_works_too(served: Pair) -> None:
    async def ask() -> Any:
        async with AsyncTypeSafeClient(
            api_key=TOKEN, base_url=f"http://127.0.0.1:{served.port}", model="jev-latest"
        ) as client:
            return await asyncio.gather(*(client.system_one(f"state {i}", QUESTIONS) for i in range(8)))

    results = asyncio.run(ask())
    assert [set(result.answers) for result in results] == [set(QUESTIONS)] * 8
    assert len({result.request_id for result in results}) == 8
