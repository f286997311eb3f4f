"""Answers from a server: our own two processes, and a small one that says what a test wants."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scorer.bench import client as clients
from scorer.bench import folder, run
from scorer.bench.client import Client, TokenError, Unreachable, read_token
from scorer.bench.run import Options
from scorer.bench.server import UrlSource, surface_of
from scorer.bench.source import Answer, EngineSource, Failure, SourceBroken, fingerprint
from scorer.engines.fake import FakeEngine
from shared.settings import PREFIX, ScorerSettings
from tests.bench_offline.planted import checked, jev_row, write
from tests.harness import TOKEN, Pair, free_port

CHOICE = jev_row(0)["question"]
NOUL = {"type": "noul", "instructions": "Is it?"}
SCORE = {"type": "score", "instructions": "How much?", "criteria": ["none", "some", "all"]}


def source_of(url: str, token: str | None = TOKEN, **options: Any) -> UrlSource:
    source = UrlSource(Client(url, token, **options), url)
    source.load()
    return source


def ask(source: Any, *questions: Any, state: Any = "a state") -> list[Answer | Failure]:
    try:
        return list(source.ask(state, [{"q": question} for question in questions]))
    finally:
        source.close()


# -- against our own processes ---


@pytest.mark.parametrize("ending", ["", "/", "/v1/systemone", "/decide", "/decide/shared"])
def test_a_server_s_numbers_are_the_engine_s_own(served: Pair, tmp_path: Path, ending: str) -> None:
    data = write(tmp_path / "f.jsonl", [jev_row(number) for number in range(5)])
    url = f"http://127.0.0.1:{served.port}{ending}"
    files, found = checked(data, orderings="reverse", surface=surface_of(url))
    run.run(files, found, source := source_of(url), tmp_path / "url", Options(orderings="reverse"))
    source.close()
    env = {f"{PREFIX}ENGINE": "fake", f"{PREFIX}RUN_DIR": str(tmp_path)}
    inside = EngineSource(engine=FakeEngine(ScorerSettings.from_env(env)))
    run.run(files, found, inside, tmp_path / "engine", Options(orderings="reverse"))
    ours, own = (list(folder.records_of(tmp_path / name)) for name in ("url", "engine"))
    assert [record.key for record in ours] == [record.key for record in own]
    assert [record.probabilities for record in ours] == [record.probabilities for record in own]
    assert [record.prompt_sha256 for record in ours] == [record.prompt_sha256 for record in own]
    assert [record.input_tokens for record in ours] == [record.input_tokens for record in own]
    manifest = folder.manifest_of(tmp_path / "url")
    assert manifest is not None
    assert (manifest["source"], manifest["engine"]["engine"], manifest["engine"]["url"]) == ("url", "fake", url)


def test_every_type_is_read_from_systemone(served: Pair) -> None:
    source = source_of(f"http://127.0.0.1:{served.port}")
    outcomes = ask(source, CHOICE, NOUL, SCORE)
    assert [type(outcome) for outcome in outcomes] == [Answer, Answer, Answer]
    assert source.per_call == 16
    assert source.seconds > 0


def test_packed_questions_go_into_one_request(served: Pair, tmp_path: Path) -> None:
    row = {"id": "p", "state": "apple", "questions": dict.fromkeys(("x", "y", "z"), CHOICE)}
    data = write(tmp_path / "f.jsonl", [row])
    for ending in ("/decide", "/v1/systemone"):
        source = source_of(f"http://127.0.0.1:{served.port}{ending}")
        files, found = checked(data)
        run.run(files, found, source, tmp_path / ending[1:4], Options(packed=True))
        source.close()
        assert [record.questions for record in folder.records_of(tmp_path / ending[1:4])] == [3, 3, 3]


def test_many_rows_at_once_are_all_answered_once_and_the_run_can_be_continued(served: Pair, tmp_path: Path) -> None:
    data = write(tmp_path / "f.jsonl", [jev_row(number) for number in range(40)])
    files, found = checked(data)
    for cut in (False, True):
        source = source_of(f"http://127.0.0.1:{served.port}")
        outcome = run.run(files, found, source, tmp_path / "out", Options(), concurrency=6)
        source.close()
        assert (outcome.written, outcome.before) == ((3, 37) if cut else (40, 0))
        results = tmp_path / "out" / "results.jsonl"
        kept = results.read_bytes().splitlines(keepends=True)
        assert len({record.row for record in folder.records_of(tmp_path / "out")}) == 40
        results.write_bytes(b"".join(kept[:37]))


def test_a_refusal_is_that_call_s_failure_with_its_code_alone(served: Pair) -> None:
    source = source_of(f"http://127.0.0.1:{served.port}")
    bad = {**SCORE, "criteria": {"0": "none", "1": "all"}}
    first, second = ask(source, bad, CHOICE)
    assert first == Failure("http_422", "invalid_request")
    assert isinstance(second, Answer)


def test_an_engine_that_loses_an_option_is_a_failure_of_that_row(served: Pair) -> None:
    source = source_of(f"http://127.0.0.1:{served.port}")
    (outcome,) = ask(source, CHOICE, state={"fake": {"drop_option": True}})
    assert outcome == Failure("http_500", "scoring_failed")


def test_a_wrong_token_ends_the_run(served: Pair) -> None:
    source = source_of(f"http://127.0.0.1:{served.port}", "x" * 40)
    with pytest.raises(SourceBroken, match="does not take the token"):
        ask(source, CHOICE)


def test_a_server_that_is_not_there_ends_the_run_with_its_place() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(SourceBroken, match=r"no answer from 127\.0\.0\.1:[0-9]+: Connection refused"):
        source_of(url, sleep=lambda _: None)


# -- against a server that says what the test wants ---

Say = Callable[[str, Any], tuple[int, dict[str, str], Any]]


class Scripted:
    """Answers POSTs with ``say(path, body)``, GETs with 404; keeps what it was asked."""

    def __init__(self, say: Say) -> None:
        self.asked: list[tuple[str, Any, str | None]] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                scripted.asked.append((self.path, body, self.headers.get("Authorization")))
                self.answer(*say(self.path, body))

            def do_GET(self) -> None:
                self.answer(404, {}, {"error": "no"})

            def answer(self, status: int, headers: dict[str, str], body: Any) -> None:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def scripted() -> Iterator[Callable[[Say], Scripted]]:
    servers: list[Scripted] = []

    def start(say: Say) -> Scripted:
        servers.append(Scripted(say))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def good(_: str, body: Any) -> tuple[int, dict[str, str], Any]:
    answers = {name: {"type": "noul", "noul": 0.25} for name in body["questions"]}
    return 200, {}, {"model": "other-1", "answers": answers, "usage": {"input_tokens": 7}}


def test_a_plain_jev_server_is_understood(scripted: Callable[[Say], Scripted], tmp_path: Path) -> None:
    server = scripted(good)
    data = write(tmp_path / "f.jsonl", [jev_row(0, question=NOUL, labels=["no", "yes"], expected="no")])
    files, found = checked(data)
    source = source_of(server.url, None)
    run.run(files, found, source, tmp_path / "out", Options())
    source.close()
    (record,) = folder.records_of(tmp_path / "out")
    assert record.probabilities == {"no": 0.75, "yes": 0.25}
    assert (record.decision, record.confidence, record.input_tokens) == ("no", 0.75, 7)
    assert record.inference_ms == record.total_ms
    assert len(record.prompt_sha256) == 64
    path, body, bearer = server.asked[0]
    assert (path, bearer) == ("/v1/systemone", None)
    assert body == {"model": "jev-latest", "state": jev_row(0)["state"], "questions": {"q": NOUL}}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"type": "choice", "choice": "fruit", "probabilities": {"fruit": 1.0}}, "options are not exactly those asked"),
        ({"type": "choice", "probabilities": {"fruit": 0.5, "tools": 0.5, "birds": 0.5}}, "do not sum to 1"),
        (
            {"type": "choice", "choice": "birds", "probabilities": {"fruit": 0.5, "tools": 0.3, "birds": 0.2}},
            "the chosen option is not the most probable one",
        ),
        ({"type": "choice", "probabilities": {"fruit": True, "tools": 0, "birds": 0}}, "not a finite number"),
        ({"type": "score", "score": 1}, "missing or of another type"),
    ],
)
def test_an_unsound_answer_is_named(
    scripted: Callable[[Say], Scripted], tmp_path: Path, answer: Any, message: str
) -> None:
    server = scripted(lambda *_: (200, {}, {"model": "m", "answers": {"q": answer}}))
    files, found = checked(write(tmp_path / "f.jsonl", [jev_row(0)]))
    source = source_of(server.url)
    outcome = run.run(files, found, source, tmp_path / "out", Options())
    source.close()
    assert outcome.failed == {"broken_answer": 1}
    assert message in (tmp_path / "out" / "failures.jsonl").read_text()


@pytest.mark.parametrize("body", [b"<html>", b'{"model": "m"}', b'{"model": "m", "answers": NaN}', b"[]"])
def test_a_body_of_another_shape_is_a_failure(scripted: Callable[[Say], Scripted], body: bytes) -> None:
    server = scripted(lambda *_: (200, {}, body))
    assert ask(source_of(server.url), NOUL) == [
        Failure("broken_answer", "the response has not the shape of its surface")
    ]


def test_429_and_503_are_tried_again_after_what_retry_after_says(scripted: Callable[[Say], Scripted]) -> None:
    waits: list[float] = []
    date = formatdate(time.time() + 3600, usegmt=True)
    replies = [(429, {"Retry-After": "2"}), (503, {"Retry-After": date}), (503, {}), (429, {"Retry-After": "soon"})]

    def say(path: str, body: Any) -> tuple[int, dict[str, str], Any]:
        return (*replies.pop(0), {}) if replies else good(path, body)

    server = scripted(say)
    (outcome,) = ask(source_of(server.url, sleep=waits.append), NOUL)
    assert isinstance(outcome, Answer)
    # A server's hour is not waited for; without a number it is longer from try to try.
    assert waits == [2.0, 30.0, 2.0, 4.0]
    assert len(server.asked) == 5


def test_tries_are_bounded_and_nothing_else_is_tried_again(scripted: Callable[[Say], Scripted]) -> None:
    waits: list[float] = []
    busy = scripted(lambda *_: (429, {"Retry-After": "0"}, {"error": {"code": "busy", "message": "x"}}))
    assert ask(source_of(busy.url, sleep=waits.append), NOUL) == [Failure("http_429", "busy")]
    assert (len(busy.asked), len(waits)) == (clients.ATTEMPTS, clients.ATTEMPTS - 1)
    broken = scripted(lambda *_: (500, {}, {"error": {"code": "bad words of a caller", "message": "secret"}}))
    assert ask(source_of(broken.url), NOUL) == [Failure("http_500", "the server did not answer 200")]
    assert len(broken.asked) == 1


def test_a_model_that_is_replaced_under_the_run_ends_it(scripted: Callable[[Say], Scripted]) -> None:
    names = iter(("m@1", "m@1", "m@2"))

    def say(path: str, body: Any) -> tuple[int, dict[str, str], Any]:
        status, headers, told = good(path, body)
        return status, headers, {**told, "model": next(names)}

    source = source_of(scripted(say).url)
    with pytest.raises(SourceBroken, match="it was replaced during the run"):
        ask(source, NOUL, NOUL, NOUL)


def test_a_semif_server_without_native_answers_is_understood(scripted: Callable[[Say], Scripted]) -> None:
    def say(path: str, body: Any) -> tuple[int, dict[str, str], Any]:
        result = {"id": body["id"], "option_ids": ["tools", "fruit", "birds"], "probabilities": [0.4, 0.4, 0.2]}
        return 200, {}, {**result, "prompt_sha256": "ab", "input_tokens": 9, "forward_seconds": 0.5, "model": {"a": 1}}

    server = scripted(say)
    (outcome,) = ask(source_of(f"{server.url}/decide"), CHOICE)
    assert isinstance(outcome, Answer)
    assert outcome.answers["q"]["choice"] == "tools"
    assert (outcome.inference_ms, outcome.prompt_sha256, outcome.input_tokens) == (500.0, "ab", 9)
    path, body, _ = server.asked[0]
    assert path == "/decide"
    assert body["options"][0] == {"id": "fruit", "description": "apple pear plum"}


# -- addresses and tokens ---


@pytest.mark.parametrize("url", ["ftp://x", "http://", "x", "http://u@h/", "http://h/?q=1", "http://h/#f", "file:///x"])
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="the URL must be"):
        Client(url)


def test_a_connection_that_breaks_is_tried_again_and_then_named() -> None:
    waits: list[float] = []
    client = Client(f"http://127.0.0.1:{free_port()}", sleep=waits.append)
    with pytest.raises(Unreachable, match="Connection refused"):
        client.request("GET", "/health")
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0]
    client.close()


def test_the_token_comes_from_a_file_or_the_settings_and_is_never_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("short-but-theirs\n")
    assert read_token(path) == "short-but-theirs"
    assert read_token(None, none=True) is None
    monkeypatch.setenv(f"{PREFIX}API_TOKEN", TOKEN)
    monkeypatch.delenv(f"{PREFIX}API_TOKEN_FILE", raising=False)
    assert read_token(None) == TOKEN
    monkeypatch.delenv(f"{PREFIX}API_TOKEN")
    with pytest.raises(TokenError, match="or give --token-file or --no-token"):
        read_token(None)
    path.write_text("two words\n")
    with pytest.raises(TokenError) as caught:
        read_token(path)
    assert "two words" not in str(caught.value)
    with pytest.raises(TokenError, match="No such file"):
        read_token(tmp_path / "none")


def test_a_fingerprint_is_the_engine_s_and_not_the_place_s() -> None:
    pins = {"engine": "x", "model": {"a": 1}}
    assert fingerprint(pins) == fingerprint({"model": {"a": 1}, "engine": "x", "url": "http://h", "surface": "decide"})
    assert fingerprint(pins) != fingerprint({**pins, "model": {"a": 2}})
