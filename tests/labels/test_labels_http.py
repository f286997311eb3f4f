"""The tiny chat model behind both tiers: what a client sees of its answers, its limits and its failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jevcompat import report, runner

from scorer.engines.labels import LabelsEngine
from tests.harness import D1, S1, SHARED1, TOKEN, Local, pair, wait_for

STATE = "The parcel came late and the invoice was paid two times."


@pytest.fixture(scope="module")
def service(tiny_lm: Path) -> Iterator[Local]:
    """Both tiers in this process on a loaded engine, shared: leave it as you found it."""
    local = Local(
        LabelsEngine, CHECKPOINT=str(tiny_lm), DEVICE="cpu", MAX_BODY_BYTES="33554432", LABELS_MODEL_NAME="tiny"
    )
    yield local
    local.close()


def ask(service: Local, questions: dict[str, Any], state: Any = STATE) -> dict[str, Any]:
    status, body = service.post("/v1/systemone", {"model": "jev-latest", "state": state, "questions": questions})
    assert status == 200, body
    found: dict[str, Any] = body
    return found


def predicates(number: int) -> dict[str, Any]:
    return {f"p{i}": {"type": "noul", "instructions": f"Is the parcel number {i}?"} for i in range(number)}


def test_s7_each_question_has_its_diagnostics_and_the_answer_is_jevs(service: Local) -> None:
    body = ask(service, S1["questions"])
    assert body["model"] == service.engine.info().served_model
    assert body["model"].startswith("tiny@")
    for name, kind in (("team", "choice"), ("urgent", "noul"), ("mood", "score")):
        answer = body["answers"][name]
        assert answer["type"] == kind
        assert 0 < answer["x_label_mass"] <= 1
        assert isinstance(answer["x_argmax_is_label"], bool)
        assert {key for key in answer if not key.startswith("x_")} <= {
            "type", "choice", "noul", "score", "confidence", "legend", "probabilities"
        }  # fmt: skip
    assert body["x_backend"] == "labels"


def test_usage_counts_every_prompt_and_what_was_not_read_again(service: Local) -> None:
    first = ask(service, S1["questions"], STATE + " Once.")["usage"]
    again = ask(service, S1["questions"], STATE + " Once.")["usage"]
    assert again["input_tokens"] == first["input_tokens"]
    assert 0 < first["x_cached_tokens"] < again["x_cached_tokens"] < again["input_tokens"]


def test_400_predicates_in_one_request_are_answered_in_order(service: Local) -> None:
    questions = predicates(400)
    answers = ask(service, questions)["answers"]
    assert list(answers) == list(questions)
    for name in ("p0", "p7", "p123", "p399"):
        alone = ask(service, {name: questions[name]})["answers"][name]
        assert answers[name]["noul"] == pytest.approx(alone["noul"], abs=1e-5)
    assert len({answer["noul"] for answer in answers.values()}) > 300


def test_401_predicates_are_refused(service: Local) -> None:
    status, body = service.post("/v1/systemone", {"model": "m", "state": STATE, "questions": predicates(401)})
    assert (status, body["error"]["code"]) == (422, "invalid_request")


def test_255_options_are_served_and_sum_to_1(service: Local) -> None:
    criteria = {f"v{i}": f"number {i}" for i in range(255)}
    answer = ask(service, {"q": {"type": "choice", "instructions": "Which?", "criteria": criteria}})["answers"]["q"]
    assert list(answer["probabilities"]) == list(criteria)
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-9)


def test_c10_to_c11_too_many_tokens_are_a_422_that_says_how_many(service: Local) -> None:
    for questions, limit in (
        ({"q": {"type": "noul", "instructions": "very " * 40000}}, 32768),
        ({f"q{i}": {"type": "noul", "instructions": "very " * 9000} for i in range(4)}, 65536),
    ):
        status, body = service.post("/v1/systemone", {"model": "m", "state": STATE, "questions": questions})
        assert (status, body["error"]["code"]) == (422, "invalid_request")
        assert f"above {limit}" in body["error"]["message"]


def test_health_tells_the_limits_and_what_is_read(service: Local) -> None:
    body = service.client.get("/health").get_json()
    assert body["engine"] == "labels"
    assert body["max_tokens"] == 32768
    assert body["systemone"]["max_options"] == 255
    assert body["systemone"]["max_request_tokens"] == 65536
    assert body["systemone"]["max_long_request_tokens"] == 262144
    assert body["model"]["prefix_sharing"] is True
    assert "prefix_cache_bytes" in body["memory"]


def test_decide_and_decide_shared_take_the_engine_as_any_other(service: Local) -> None:
    status, body = service.post("/decide", D1)
    assert status == 200
    assert body["native"]["label_mass"] > 0
    assert body["calibration"] == {"method": "none", "temperature": 1.0}
    status, both = service.post("/decide/shared", SHARED1)
    assert status == 200
    status, one = service.post("/decide", {**D1, "state": SHARED1["state"]})
    assert both["results"][0]["probabilities"] == pytest.approx(one["probabilities"], abs=1e-5)


def test_questions_of_concurrent_requests_never_meet(service: Local) -> None:
    """Each request's batches are its own: many at once are answered as one after the other."""
    questions = [predicates(n + 1) for n in range(6)]
    states = [f"{STATE} {n}" for n in range(6)]
    expected = [ask(service, asked, state)["answers"] for asked, state in zip(questions, states, strict=True)]
    found: list[Any] = [None] * 6

    def run(n: int) -> None:
        found[n] = ask(service, questions[n], states[n])["answers"]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_out_of_memory_is_a_503_and_a_bad_forward_a_500_and_the_service_goes_on(
    service: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    expected = ask(service, S1["questions"])["answers"]
    for error, status, code in (
        (torch.OutOfMemoryError("CUDA out of memory"), 503, "out_of_memory"),
        (RuntimeError("a kernel failed"), 500, "scoring_failed"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(service.engine.reader, "_forward", failing_once(service.engine.reader, error))
            found, body = service.post("/v1/systemone", S1)
            assert (found, body["error"]["code"]) == (status, code)
            # After a failure that is not out of memory the canary must answer, on the model that works again.
            wait_for(lambda: service.client.get("/health").get_json()["busy_seconds"] in (None, 0), what="idle")
        assert ask(service, S1["questions"])["answers"] == expected
    assert service.exit_code is None


def failing_once(reader: Any, error: Exception) -> Any:
    forward, left = reader._forward, [error]

    def fail(*args: Any) -> Any:
        if left:
            raise left.pop()
        return forward(*args)

    return fail


@pytest.mark.slow
def test_the_jev_profile_meets_every_must_and_every_should(tiny_lm: Path) -> None:
    with pair(start=False, ENGINE="labels", CHECKPOINT=str(tiny_lm), DEVICE="cpu", STRICT_MODEL="1") as running:
        running.start_scorer()
        running.start_web()
        running.wait_ready(90)
        found = runner.run(f"http://127.0.0.1:{running.port}", key=TOKEN)
    summary = found.summary()
    assert summary["conformant"], report.terminal(found, evidence=3)
    assert (summary["MUST"]["passed"], summary["MUST"]["tested"]) == (32, 32)
    assert (summary["SHOULD"]["passed"], summary["SHOULD"]["tested"]) == (15, 15)
