"""The tiny checkpoint behind both tiers: what a client sees of its answers, its refusals and its failures."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scorer.engines.intern import InternEngine
from scorer.engines.intern_tiny.build import Built
from shared.settings import PREFIX
from tests.harness import D1, ROOT, S1, Local, Pair, wait_for
from tests.intern.test_intern_tiny import NOUL, REFUSED, STATE, THREE


def tiny(built: Built) -> dict[str, str]:
    """The settings of the tiny checkpoint, without their prefix."""
    return {name.removeprefix(PREFIX): value for name, value in built.settings().items()}


@pytest.fixture(scope="module")
def service(built: Built) -> Iterator[Local]:
    """Both tiers in this process on a loaded engine, shared: leave it as you found it."""
    local = Local(InternEngine, **tiny(built))
    yield local
    local.close()


@pytest.fixture
def own_service(built: Built) -> Iterator[Local]:
    """A service that a test may break."""
    local = Local(InternEngine, **tiny(built))
    yield local
    local.close()


def error_code(reply: tuple[int, Any]) -> tuple[int, str]:
    return reply[0], reply[1]["error"]["code"]


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def untimed(body: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs from call to call."""
    return {name: value for name, value in body.items() if not name.endswith("seconds") and name != "timing"}


def test_native_systemone_is_the_engines_own_answer(service: Local, start: Callable[..., InternEngine]) -> None:
    status, body = service.post("/v1/systemone", {"state": STATE, "questions": THREE})
    assert status == 200
    engine = start()
    (call,) = engine.prepare(STATE, [THREE])
    own = engine.predict(call).answer
    assert untimed(body) == untimed(own) | {"model": engine.info().served_model}
    assert list(body["answers"]) == list(own["answers"])


def test_jev_systemone_asks_one_question_a_call_under_a_positional_name(
    built: Built, start: Callable[..., InternEngine]
) -> None:
    local = Local(InternEngine, **tiny(built), SYSTEMONE_PROFILE="jev")
    try:
        status, body = local.post(
            "/v1/systemone", {"model": "jev-latest", "state": STATE, "questions": {"refund": NOUL}}
        )
    finally:
        local.close()
    assert status == 200
    engine = start()
    (call,) = engine.prepare(STATE, [{"q": NOUL}])
    assert body["answers"]["refund"]["noul"] == engine.predict(call).answer["answers"]["q"]["noul"]


@pytest.mark.parametrize("state", ["It is late.", {"b": 1, "a": [None, "é"]}], ids=["text", "object"])
def test_decisions_and_jev_systemone_get_the_same_numbers(built: Built, state: Any) -> None:
    # The checkpoint prints an object state in a form of its own, so the object itself has to reach it on both routes.
    part = {"type": "input_json", "data": state}
    asked = {
        "model": "m",
        "input": state if isinstance(state, str) else [{"role": "user", "content": [part]}],
        "questions": [
            {"type": "predicate", "instructions": "Late?"},
            {"type": "choice", "instructions": "?", "choices": [{"value": True, "description": "y"}, {"value": "no"}]},
            {"type": "score", "instructions": "?", "levels": [{"label": "low"}, {"label": "high", "description": "h"}]},
        ],
    }
    questions = {
        "a": {"type": "noul", "instructions": "Late?"},
        "b": {"type": "choice", "instructions": "?", "criteria": {"true": "y", "no": None}},
        "c": {"type": "score", "instructions": "?", "criteria": ["low", "high: h"]},
    }
    local = Local(InternEngine, **tiny(built), SYSTEMONE_PROFILE="jev")
    try:
        status, ours = local.post("/v1/decisions", asked)
        assert status == 200, ours
        status, theirs = local.post("/v1/systemone", {"state": state, "questions": questions})
        assert status == 200, theirs
    finally:
        local.close()
    late, paid, level = ours["answers"]
    assert late["probability"] == theirs["answers"]["a"]["noul"]
    for one, other in ((paid, theirs["answers"]["b"]), (level, theirs["answers"]["c"])):
        assert [item["probability"] for item in one["probabilities"]] == list(other["probabilities"].values())
        assert one["confidence"] == other["confidence"]
    assert level["score"] == theirs["answers"]["c"]["score"]
    assert ours["usage"]["input_tokens"] == theirs["usage"]["input_tokens"]


def test_decide_passes_the_engines_numbers_untouched(service: Local, start: Callable[..., InternEngine]) -> None:
    status, body = service.post("/decide", D1)
    assert status == 200
    engine = start()
    criteria = {option["id"]: option["description"] for option in D1["options"]}
    question = {"type": "choice", "instructions": D1["question"], "criteria": criteria}
    (call,) = engine.prepare(D1["state"], [{"q": question}])
    native = engine.predict(call).answer["answers"]["q"]
    assert body["native"] == native
    assert body["probabilities"] == list(native["probabilities"].values())
    assert (body["prompt_sha256"], body["input_tokens"]) == (call.prompt_sha256, call.input_tokens)


def test_health_shows_the_pins_the_stack_and_the_kernels(service: Local, built: Built) -> None:
    body = service.client.get("/health").get_json()
    assert body["engine"] == "intern"
    assert body["model"]["revision"] == built.checkpoint.name
    assert body["model"]["kernels"] == {"flash-linear-attention": False, "causal-conv1d": False}
    assert body["max_tokens"] == 8192


@pytest.mark.parametrize("questions", [questions for questions, _ in REFUSED])
def test_what_the_engine_refuses_is_a_422_and_costs_no_forward(
    service: Local, monkeypatch: pytest.MonkeyPatch, questions: Any
) -> None:
    monkeypatch.setattr(service.engine._decider, "predict", failing(AssertionError()))
    reply = service.post("/v1/systemone", {"state": STATE, "questions": questions})
    assert error_code(reply) == (422, "invalid_request")


def test_a_second_chunk_that_is_too_long_is_a_422_before_the_first_forward(
    service: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.engine._decider, "predict", failing(AssertionError()))
    decisions = [{**D1, "id": f"d{n}"} for n in range(17)]
    decisions[16]["question"] = "word " * 9000
    for one in decisions:
        del one["state"]
    status, body = service.post("/decide/shared", {"state": "x", "decisions": decisions})
    assert status == 422
    assert "above 8192; truncation is forbidden" in body["error"]["message"]


@pytest.mark.parametrize("message", ["CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA error: out of memory"])
def test_an_oom_is_a_503_and_the_next_answer_is_bit_identical(
    service: Local, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    first = service.post("/v1/systemone", S1)
    with monkeypatch.context() as patch:
        patch.setattr(service.engine._decider.backend, "score", failing(RuntimeError(message)))
        assert error_code(service.post("/v1/systemone", S1)) == (503, "out_of_memory")
    assert untimed(service.post("/v1/systemone", S1)[1]) == untimed(first[1])


@pytest.mark.parametrize("error", [ValueError("Invalid probability distribution"), KeyError("secret-STATE-123")])
def test_a_passing_failure_is_a_500_and_the_next_answer_is_bit_identical(
    service: Local, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    first = service.post("/v1/systemone", S1)
    predict = service.engine._decider.predict
    calls: list[Any] = []

    def once(request: Any) -> Any:
        calls.append(request)
        if len(calls) == 1:
            raise error
        return predict(request)

    monkeypatch.setattr(service.engine._decider, "predict", once)
    reply = service.post("/v1/systemone", S1)
    assert error_code(reply) == (500, "scoring_failed")
    assert "secret" not in str(reply)
    assert untimed(service.post("/v1/systemone", S1)[1]) == untimed(first[1])
    assert len(calls) == 3  # the failed call, the canary, the next call


def test_a_fatal_cuda_error_is_answered_and_ends_the_scorer(own_service: Local) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered\n")
    own_service.engine._decider.predict = failing(error)
    assert error_code(own_service.post("/v1/systemone", S1)) == (500, "scoring_failed")
    wait_for(lambda: own_service.exit_code == 70, what="exit code 70")


def test_a_canary_that_answers_otherwise_ends_the_scorer(own_service: Local) -> None:
    norm = own_service.engine._decider.backend.model.model.language_model.norm
    predict = own_service.engine._decider.predict

    def corrupting(request: Any) -> Any:
        own_service.engine._decider.predict = predict
        norm.weight.data.add_(0.25)
        raise KeyError

    own_service.engine._decider.predict = corrupting
    assert error_code(own_service.post("/v1/systemone", S1)) == (500, "scoring_failed")
    wait_for(lambda: own_service.exit_code == 70, what="exit code 70")


def test_answers_are_bit_identical_alone_beside_eight_clients_and_after_a_restart(built: Built) -> None:
    pair = Pair(start=False, **tiny(built))
    pair.start_scorer()
    pair.start_web()
    pair.wait_ready(60)
    try:

        def ask() -> dict[str, Any]:
            status, _, body = pair.request("POST", "/v1/systemone", S1, timeout=60)
            assert status == 200
            return untimed(body)

        alone = ask()
        stop, others = threading.Event(), []

        def crowd(number: int) -> None:
            length = 10 * number
            while not stop.is_set():
                length = (length * 7 + 13) % 400
                status, _, _ = pair.request(
                    "POST", "/v1/systemone", {**S1, "state": "word " * length + "."}, timeout=60
                )
                others.append(status)

        threads = [threading.Thread(target=crowd, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        beside = [ask() for _ in range(8)]
        stop.set()
        for thread in threads:
            thread.join()
        assert all(one == alone for one in beside)
        assert set(others) == {200}
        assert pair.scorer is not None
        pair.scorer.terminate()
        pair.scorer.wait(20)
        pair.start_scorer()
        pair.wait_ready(60)
        assert ask() == alone
    finally:
        pair.close()


def test_the_web_tier_never_imports_what_only_an_engine_needs(tmp_path: Path) -> None:
    code = "import sys, web.wsgi; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    environment = {f"{PREFIX}API_TOKEN": "x" * 40, f"{PREFIX}RUN_DIR": str(tmp_path / "run")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
