"""Faults of trouble.md that concern the HTTP core, by rank, as far as they show without ending a process.

Not here, and why:

    3, 5, 7, 10, 14, 18, 22, 24, 27, 31, 34, 37, 42, 44, 46   the list has no such rank
    6, 29, 30, 32, 33, 35   processes die, start or drain: tests/process
    23   control tokens in a prompt: needs the checkpoint's tokenizer, so tests/intern; the other engines have no prompt
    28   test_decisions*.py, with the parts of 8, 17, 39 and 40 that name /v1/decisions
    36   there is no /metrics route; what /health counts over workers is rank 11's and 12's
    49, 50   GPU and the torch stack: tests/gpu and tests/unit/test_intern_*
    52   needs an nginx: not part of this tier; ranks 9 and 19 are its tables without the proxy
    15   here only the part that any engine shows: the failed call's frames are let go
    25   here the rules shared by every engine; the rendered prompt of the checkpoint is tests/intern's
    45   here with the fake engine's token count, where a word is a token
    48   all values: test_config.py; the checkpoint's path: tests/unit/test_intern_load.py
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import http.client
import json
import logging
import select
import socket
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
import requests

from scorer.engines.base import OutOfMemory
from scorer.engines.questions import check_questions, read_options
from tests.contract.helpers import (
    ROUTES,
    assert_error,
    assert_refused,
    changed,
    gated,
    hooked,
    in_background,
    ordered,
    shared,
    wait_until_in_use,
    without,
)
from tests.harness import BEARER, D1, S1, SHARED1, TOKEN, Local, Pair, decision, pair, strict_json, wait_for

HEAD = f"POST /decide HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
MIB = 1 << 20


def settle(service: Local | Pair, before: Any) -> None:
    """SETTLE: a D1 gives 200 with the same numbers as before the fault."""
    status, result = service.post("/decide", D1)
    assert status == 200
    assert result["probabilities"] == before[1]["probabilities"]


def answer_of(connection: socket.socket) -> tuple[int, Any]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    text = response.read()
    assert response.getheader("Content-Type") == "application/json", text[:200]
    return response.status, strict_json(text)


def send_chunks(port: int, chunks: Iterator[bytes] | list[bytes], path: str = "/decide") -> tuple[int, int, Any]:
    """POST chunk by chunk until the server stops reading; bytes sent, status, body."""
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(HEAD.replace(b"/decide", path.encode()) + b"Transfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for chunk in chunks:
                connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                sent += len(chunk)
            connection.sendall(b"0\r\n\r\n")
        return sent, *answer_of(connection)


# -- rank 1 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ROUTES)
def test_rank_01_an_over_limit_chunked_body_is_refused_and_not_cut(served: Pair, path: str) -> None:
    calls = served.record_calls()
    before = len(calls())
    good = json.dumps(ROUTES[path]).encode()
    big = json.dumps(changed(ROUTES[path], state="x" * (MIB * 6 // 5))).encode()
    for chunks in ([big[i : i + 50_000] for i in range(0, len(big), 50_000)], [good] + [b" " * 65536] * 48):
        _, status, body = send_chunks(served.port, chunks, path)
        assert_error((status, body), 413, "request_too_large")
    assert len(calls()) == before
    assert send_chunks(served.port, [good[:10], good[10:]], path)[1] == 200


def test_rank_01_an_endless_chunked_body_is_refused_and_reading_stops(served: Pair) -> None:
    workers = [psutil.Process(pid) for pid in served.worker_pids()]
    resident = [worker.memory_info().rss for worker in workers]
    growth = [0]
    sent = answered_at = 0
    answer = None
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            while sent < 512 * MIB:
                # Like curl, it looks for an answer between two chunks; unlike curl, it goes on after it.
                if answer is None and select.select([connection], [], [], 0)[0]:
                    answer, answered_at = answer_of(connection), sent
                connection.sendall(b"10000\r\n" + b"y" * 65536 + b"\r\n")
                sent += 65536
                growth += [worker.memory_info().rss - was for worker, was in zip(workers, resident, strict=True)]
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert answer is not None
    assert_error(answer, 413, "request_too_large")
    assert answered_at < 32 * MIB, "the answer did not come near the limit (sockets buffer some MiB)"
    assert sent < 128 * MIB, "the server went on reading"
    assert max(growth) < 8 * MIB
    assert served.post("/decide", D1)[0] == 200
    assert served.slots_in_use() == 0


# -- rank 2 ------------------------------------------------------------------------------------------------------


def test_rank_02_health_and_429_do_not_wait_behind_scoring_requests(served: Pair) -> None:
    slow = changed(D1, state={"fake": {"sleep_s": 0.07}})
    with ThreadPoolExecutor(32) as pool:
        waiting = [pool.submit(served.post, "/decide", slow) for _ in range(32)]
        wait_for(lambda: served.slots_in_use() > 25, what="a full queue")
        polls = 0
        while not all(one.done() for one in waiting):
            # The rule's own bound is the client's timeout here.
            assert served.request("GET", "/health", timeout=1.0)[0] == 200
            polls += 1
        assert [one.result()[0] for one in waiting] == [200] * 32
    assert polls > 5


# -- rank 4 ------------------------------------------------------------------------------------------------------


def test_rank_04_a_late_answer_never_reaches_another_request() -> None:
    with pair(REQUEST_BUDGET_S="0.4", WORKERS="1") as service:

        def ask(connection: http.client.HTTPConnection, name: str, sleep_s: float) -> int:
            ids = [f"{name}-x", f"{name}-y"]
            state = {"fake": {"sleep_s": sleep_s}, "name": name}
            connection.request("POST", "/decide", json.dumps(decision(name, ids, state=state)), BEARER)
            response = connection.getresponse()
            body = strict_json(response.read())
            if response.status == 200:
                assert (body["id"], body["option_ids"], list(body["native"]["probabilities"])) == (name, ids, ids)
            else:
                assert response.status in (503, 504), body
            return response.status

        def rounds(number: int, count: int) -> list[int]:
            connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
            found = []
            for index in range(count):
                found.append(ask(connection, f"a{number}-{index}", 0.5))
                found.append(ask(connection, f"b{number}-{index}", 0))
            connection.close()
            return found

        found = rounds(0, 5)
        assert found[::2] == [504] * 5, "A was to time out"
        assert found[1::2] == [200] * 5
        with ThreadPoolExecutor(8) as pool:
            assert 504 in {status for one in pool.map(lambda number: rounds(number, 1), range(1, 9)) for status in one}
        # With the budget over, the scorer may still be at work on the last of them.
        wait_for(lambda: service.slots_in_use() == 0, what="all slots free")
        assert service.post("/decide", D1)[0] == 200


# -- rank 8 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("fault", ["nan", "infinite_confidence", "drop_option", "drop_answer"])
def test_rank_08_a_broken_number_or_a_missing_answer_is_never_a_200(service: Local, path: str, fault: str) -> None:
    before = service.post("/decide", D1)
    if fault == "infinite_confidence":
        service.engine.edit = lambda answer: [one.update(confidence=float("inf")) for one in answer["answers"].values()]
    assert_error(service.post(path, changed(ROUTES[path], state={"fake": {fault: True}})), 500, "scoring_failed")
    service.engine.edit = None
    settle(service, before)


@pytest.mark.parametrize("script", [{"nan": True}, {"drop_option": True}, {"drop_answer": True}])
def test_rank_08_neither_in_the_native_profile(native: Local, script: dict[str, Any]) -> None:
    answer = native.post("/v1/systemone", changed(S1, state={"fake": script}))
    assert_error(answer, 500, "scoring_failed")


# -- rank 9 ------------------------------------------------------------------------------------------------------

BIG = b"x" * (5 * MIB)


def by_urllib(url: str, headers: dict[str, str]) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, BIG, headers, method="POST"), timeout=20) as response:
            return response.status, strict_json(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, strict_json(error.read())


def by_requests(url: str, headers: dict[str, str]) -> tuple[int, Any]:
    response = requests.post(url, BIG, headers=headers, timeout=20)
    return response.status_code, strict_json(response.content)


def outcomes(client: Callable[..., tuple[int, Any]], port: int, headers: dict[str, str]) -> list[Any]:
    found: list[Any] = []
    for _ in range(20):
        try:
            status, body = client(f"http://127.0.0.1:{port}/decide", headers)
            found.append((status, body["error"]["code"]))
        except (OSError, http.client.HTTPException) as error:
            found.append(repr(error))
    return found


@pytest.mark.parametrize("client", [by_urllib, by_requests])
@pytest.mark.parametrize("case", ["wrong token", "too large", "queue full"])
def test_rank_09_an_early_answer_reaches_a_client_that_is_still_sending(case: str, client: Any) -> None:
    with pair(MAX_QUEUE="1") as service, contextlib.ExitStack() as cleanup:
        calls = service.record_calls()
        if case == "queue full":
            # An upload that does not end (within BODY_DEADLINE_S, 10 s) holds the only slot.
            upload = cleanup.enter_context(socket.create_connection(("127.0.0.1", service.port)))
            upload.sendall(HEAD + b"Content-Length: 500\r\n\r\n{")
            wait_for(lambda: service.slots_in_use() == 1, what="a full queue")
        headers = {"Authorization": "Bearer wrong"} if case == "wrong token" else BEARER
        expected = {
            "wrong token": (401, "unauthorized"),
            "too large": (413, "request_too_large"),
            "queue full": (429, "busy"),
        }
        found = outcomes(client, service.port, headers)
        assert found.count(expected[case]) >= 19, found
        assert calls() == []


# -- rank 11, 12 -------------------------------------------------------------------------------------------------


def test_rank_11_max_queue_holds_for_the_service_and_over_all_routes_together() -> None:
    with pair(MAX_QUEUE="8", WORKERS="4") as service:
        bodies = [(path, json.dumps(body).encode()) for path, body in ROUTES.items()]
        for _ in range(5):
            with contextlib.ExitStack() as cleanup:
                last: dict[socket.socket, bytes] = {}
                for number in range(40):
                    path, body = bodies[number % 3]
                    connection = cleanup.enter_context(
                        socket.create_connection(("127.0.0.1", service.port), timeout=20)
                    )
                    # Admission comes before the body, so one byte that is missing keeps the slot.
                    connection.sendall(
                        HEAD.replace(b"/decide", path.encode()) + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1]
                    )
                    last[connection] = body[-1:]
                while len(last) > 8:
                    ready = select.select(list(last), [], [], 20)[0]
                    assert ready, "a request over the limit was not refused"
                    for connection in ready:
                        assert_error(answer_of(connection), 429, "busy")
                        connection.close()
                        del last[connection]
                assert service.slots_in_use() == 8
                for connection, byte in last.items():
                    connection.sendall(byte)
                assert [answer_of(connection)[0] for connection in last] == [200] * 8
            wait_for(lambda: service.slots_in_use() == 0, what="all slots free")


def test_rank_12_no_error_path_loses_a_slot() -> None:
    with hooked(MAX_QUEUE="4", MAX_BODY_BYTES="3000") as service:

        def state(**script: Any) -> bytes:
            return json.dumps(changed(D1, state={"fake": script})).encode()

        faults: list[tuple[int, bytes, dict[str, str]]] = [
            (422, b"{not json", BEARER),
            (413, b" " * 3001, BEARER),
            (401, b"{}", {}),
            (422, b"[]", BEARER),
            (422, state(error=["value", "x"]), BEARER),
            (503, state(error=["oom", "x"]), BEARER),
            (500, state(error=["runtime", "x"]), BEARER),
            (500, state(nan=True), BEARER),
            (500, state(drop_option=True), BEARER),
            (422, b"\x28\xb5", {**BEARER, "Content-Encoding": "zstd"}),
            (415, b"{}", {**BEARER, "Content-Encoding": "br"}),
            (422, b"x", {**BEARER, "Content-Encoding": "gzip"}),
        ]
        for status, body, headers in faults:
            for _ in range(50):
                assert service.post("/decide", body, headers)[0] == status
            wait_until_in_use(service, 0)
        with in_background(service) as post, gated(service) as gate:
            waiting = [post("/decide", D1) for _ in range(4)]
            wait_until_in_use(service, 4)
            gate.open()
            assert [one.result()[0] for one in waiting] == [200] * 4


def test_rank_12_a_reset_in_the_middle_of_a_body_loses_no_slot() -> None:
    with pair(MAX_QUEUE="4") as service:
        body = json.dumps(D1).encode()
        for _ in range(50):
            connection = socket.create_connection(("127.0.0.1", service.port), timeout=10)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[: len(body) // 2])
            connection.close()
        wait_for(lambda: service.slots_in_use() == 0, what="all slots free")
        slow = changed(D1, state={"fake": {"sleep_s": 0.2}})
        with ThreadPoolExecutor(4) as pool:
            assert [one[0] for one in pool.map(lambda _: service.post("/decide", slow), range(4))] == [200] * 4
        assert service.slots_in_use() == 0


# -- rank 13 -----------------------------------------------------------------------------------------------------

ORDER = ["z", "a", "10", "9", "2"]


def reply_pairs(service: Local, path: str, body: Any) -> Any:
    """The raw reply with its objects as lists of pairs."""
    response = service.client.post(path, data=json.dumps(body).encode(), headers=BEARER)
    assert response.status_code == 200
    return json.loads(response.data, object_pairs_hook=list)


def test_rank_13_key_order_is_kept_on_the_way_to_the_engine_and_back(service: Local) -> None:
    body = decision("d", ORDER, state={"b": 1, "a": 2})
    reply = dict(reply_pairs(service, "/decide", body))
    [call] = service.engine.calls
    assert list(call["state"]) == ["b", "a"]
    assert list(call["questions"]["q"]["criteria"]) == ORDER
    assert reply["option_ids"] == ORDER
    assert [name for name, _ in dict(reply["native"])["probabilities"]] == ORDER
    swapped = decision("d", [ORDER[1], ORDER[0], *ORDER[2:]], state={"b": 1, "a": 2})
    assert service.post("/decide", swapped)[1]["prompt_sha256"] != reply["prompt_sha256"]


@pytest.mark.parametrize("profile", ["service", "native"])
def test_rank_13_key_order_is_kept_on_systemone(profile: str, request: pytest.FixtureRequest) -> None:
    service: Local = request.getfixturevalue(profile)
    criteria = {name: f"desc {name}" for name in ORDER}
    questions = {name: {"type": "choice", "instructions": "?", "criteria": criteria} for name in ("zeta", "alpha")}
    questions["level"] = {"type": "score", "instructions": "?", "criteria": [f"level {i}" for i in range(10)]}
    reply = dict(reply_pairs(service, "/v1/systemone", {"state": {"b": 1, "a": 2}, "questions": questions}))
    assert [name for name, _ in reply["answers"]] == ["zeta", "alpha", "level"]
    zeta, _, level = (dict(one) for _, one in reply["answers"])
    assert [name for name, _ in zeta["probabilities"]] == ORDER
    for part in ("probabilities", "legend"):
        assert [name for name, _ in level[part]] == [str(i) for i in range(10)]
    asked = [question for call in service.engine.calls for question in call["questions"].values()]
    assert list(asked[0]["criteria"]) == ORDER
    assert list(service.engine.calls[0]["state"]) == ["b", "a"]


# -- rank 15 -----------------------------------------------------------------------------------------------------


class Tracked:
    """Something that a weak reference can follow."""


@pytest.mark.parametrize(
    "error", [OutOfMemory("x"), RuntimeError("CUDA out of memory. Tried"), ValueError("too long"), KeyError("x")]
)
def test_rank_15_a_failed_calls_frames_are_let_go(service: Local, error: Exception) -> None:
    refs: list[weakref.ref[Tracked]] = []

    def before(_call: Any) -> None:
        tensor = Tracked()
        refs.append(weakref.ref(tensor))
        raise error

    service.engine.before = before
    released = service.engine.released
    for _ in range(3):
        service.post("/decide", D1)
    service.engine.before = None
    assert service.post("/decide", D1)[0] == 200
    assert service.engine.released > released
    gc.collect()
    error.__traceback__ = error.__context__ = None  # this test's own hold on the frames
    assert [ref() for ref in refs] == [None] * 3


# -- rank 16 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("open_close", [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"])
def test_rank_16_deep_nesting_is_422_above_a_fixed_depth_and_200_below(
    service: Local, open_close: tuple[str, str]
) -> None:
    before = service.post("/decide", D1)
    opening, closing = open_close
    found = {}
    for depth in (1, 60, 63, 64, 65, 500, 900, 2000, 20_000, 200_000):
        state = opening * depth + "1" + closing * depth
        body = json.dumps(changed(D1, state="HERE")).replace('"HERE"', state).encode()
        if len(body) > MIB:
            continue
        answer = service.post("/decide", body)
        found[depth] = answer[0]
        if answer[0] != 200:
            assert_error(answer, 422, "invalid_request")
        settle(service, before)
    # The cap is 64 with the body itself as the first level.
    assert found == {depth: 200 if depth <= 63 else 422 for depth in found}
    assert max(found) >= 20_000


@pytest.mark.parametrize("path", ROUTES)
def test_rank_16_brackets_without_an_end_are_422(service: Local, path: str) -> None:
    for text in (b"[" * 200_000, b'{"a":' * 100_000, b'{"id":"d","state":' + b"[" * 100_000):
        assert_refused(service, path, text)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000, "1e5000", "9" * 5000 + ".5"])
def test_rank_16_giant_numbers_are_422(service: Local, path: str, number: str) -> None:
    body = json.dumps(changed(ROUTES[path], state=["HERE"])).replace('"HERE"', number)
    assert_refused(service, path, body.encode())


def test_rank_16_an_integer_within_the_limit_is_taken_as_it_is(service: Local) -> None:
    assert service.post("/decide", changed(D1, state=[10**300]))[0] == 200
    assert service.engine.calls[0]["state"] == [10**300]


# -- rank 17 -----------------------------------------------------------------------------------------------------

MARK = "MARKED"
_OPTIONS = D1["options"]
PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "state text": ("/decide", changed(D1, state=MARK)),
    "a name in the state": ("/decide", changed(D1, state={MARK: 1})),
    "deep in the state": ("/decide", changed(D1, state=[{"a": [MARK]}])),
    "question": ("/decide", changed(D1, question=MARK)),
    "option id": ("/decide", changed(D1, options=[{**_OPTIONS[0], "id": MARK}, _OPTIONS[1]])),
    "option description": ("/decide", changed(D1, options=[{**_OPTIONS[0], "description": MARK}, _OPTIONS[1]])),
    "decision id": ("/decide", changed(D1, id=MARK)),
    "shared decision id": ("/decide/shared", shared(decision(MARK, "ab"))),
    "systemone question id": ("/v1/systemone", {"state": "s", "questions": {MARK: S1["questions"]["urgent"]}}),
    "systemone option": (
        "/v1/systemone",
        {
            "state": "s",
            "questions": {"q": {"type": "choice", "instructions": "?", "criteria": {MARK: None, "b": None}}},
        },
    ),
    "systemone level": (
        "/v1/systemone",
        {"state": "s", "questions": {"q": {"type": "score", "instructions": "?", "criteria": [MARK, "b"]}}},
    ),
    "an unread name": ("/decide", changed(D1, unread={MARK: MARK})),
}


@pytest.mark.parametrize(("path", "body"), PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("escape", ["\\ud800", "\\udfff", "\\uD83D", "x\\udc00y", "\\ude00\\ud83d"])
def test_rank_17_a_lone_surrogate_is_422_wherever_it_stands(service: Local, path: str, body: Any, escape: str) -> None:
    before = service.post("/decide", D1)
    assert_refused(service, path, json.dumps(body).replace(MARK, escape).encode())
    settle(service, before)


@pytest.mark.parametrize(("path", "body"), PLACES.values(), ids=PLACES)
def test_rank_17_a_pair_is_taken_and_echoed_unchanged(service: Local, path: str, body: Any) -> None:
    text = json.dumps(body).replace(MARK, "\\ud83d\\ude00")
    response = service.client.post(path, data=text.encode(), headers=BEARER)
    assert response.status_code == 200
    asked = json.dumps(service.engine.calls, ensure_ascii=False)
    assert "\U0001f600" in json.dumps(strict_json(response.data), ensure_ascii=False) + asked or "unread" in body


# -- rank 19 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/nope", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
        ("GET", "/decide", 405, "method_not_allowed"),
        ("PUT", "/decide", 405, "method_not_allowed"),
        ("DELETE", "/decide/shared", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/decide/", 404, "not_found"),
        ("GET", "/static/x", 404, "not_found"),
        ("OPTIONS", "/decide", 405, "method_not_allowed"),
        ("POST", "/decide/%2e%2e/health", 404, "not_found"),
    ],
)
def test_rank_19_every_error_of_the_framework_is_json_in_the_envelope(
    served: Pair, method: str, path: str, status: int, code: str
) -> None:
    found, headers, body = served.request(method, path)
    assert_error((found, body), status, code)
    assert ("allow" in headers) == (status == 405)


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "text/plain",
        "application/json; charset=utf-8",
        "application/octet-stream",
        "application/x-www-form-urlencoded",
        "nonsense",
    ],
)
def test_rank_19_a_json_body_is_served_whatever_its_content_type(served: Pair, content_type: str | None) -> None:
    headers = {**BEARER} if content_type is None else {**BEARER, "Content-Type": content_type}
    assert served.request("POST", "/decide", D1, headers)[0] == 200


def test_rank_19_a_gzip_body_is_unpacked(served: Pair) -> None:
    packed = gzip.compress(json.dumps(D1).encode())
    assert served.request("POST", "/decide", packed, {**BEARER, "Content-Encoding": "gzip"})[0] == 200


@pytest.mark.parametrize("encoding", ["br", "deflate", "compress", "gzip, gzip", "x"])
def test_rank_19_another_encoding_is_415_in_the_envelope(served: Pair, encoding: str) -> None:
    status, headers, body = served.request("POST", "/decide", b"{}", {**BEARER, "Content-Encoding": encoding})
    assert_error((status, body), 415, "unsupported_media_type")
    assert "zstd" in headers["accept-encoding"]


@pytest.mark.parametrize("packed", [b"", b"{}", b"\x1f\x8b", gzip.compress(b"{}")[:-4], gzip.compress(b"{}") + b"more"])
def test_rank_19_a_broken_gzip_body_is_422(served: Pair, packed: bytes) -> None:
    status, _, body = served.request("POST", "/decide", packed, {**BEARER, "Content-Encoding": "gzip"})
    assert_error((status, body), 422, "invalid_request")


def test_rank_19_a_gzip_bomb_is_413_and_costs_no_memory(served: Pair) -> None:
    bomb = gzip.compress(bytes(200 << 20))
    assert len(bomb) < MIB
    workers = [psutil.Process(pid) for pid in served.worker_pids()]
    resident = sum(worker.memory_info().rss for worker in workers)
    for _ in range(3):
        status, _, body = served.request("POST", "/decide", bomb, {**BEARER, "Content-Encoding": "gzip"})
        assert_error((status, body), 413, "request_too_large")
    assert sum(worker.memory_info().rss for worker in workers) - resident < 16 * MIB


def test_rank_19_an_empty_body_is_422(served: Pair) -> None:
    for path in ROUTES:
        assert_error(served.post(path, b""), 422, "invalid_request")


# -- rank 20 -----------------------------------------------------------------------------------------------------

RIGHT = b"Bearer " + TOKEN.encode()
AUTHORIZATIONS = {
    "a byte over 0x7F": (b"Authorization: Bearer caf\xe9\r\n", 401),
    "UTF-8": ("Authorization: Bearer caf\u00e9\r\n".encode(), 401),
    "Basic": (b"Authorization: Basic " + TOKEN.encode() + b"\r\n", 401),
    "no header": (b"", 401),
    "the token's case changed": (b"Authorization: Bearer " + TOKEN.swapcase().encode() + b"\r\n", 401),
    "two headers": (b"Authorization: " + RIGHT + b"\r\nAuthorization: " + RIGHT + b"\r\n", 401),
    "a right and a wrong one": (b"Authorization: " + RIGHT + b"\r\nAuthorization: Bearer x\r\n", 401),
    "lower-case scheme": (b"Authorization: bearer " + TOKEN.encode() + b"\r\n", 200),
    "upper-case scheme and name": (b"AUTHORIZATION: BEARER " + TOKEN.encode() + b"\r\n", 200),
}


@pytest.mark.parametrize(("line", "status"), AUTHORIZATIONS.values(), ids=AUTHORIZATIONS)
def test_rank_20_the_auth_check_neither_crashes_nor_is_too_picky(served: Pair, line: bytes, status: int) -> None:
    calls = served.record_calls()
    before = len(calls())
    body = json.dumps(D1).encode()
    reply = served.raw(
        b"POST /decide HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        + line
        + b"Content-Length: %d\r\n\r\n" % len(body)
        + body
    )
    assert int(reply.split(b" ", 2)[1]) == status
    assert b"content-type: application/json" in reply.lower()
    if status == 401:
        assert_error((401, strict_json(reply.partition(b"\r\n\r\n")[2])), 401, "unauthorized")
        assert len(calls()) == before
    assert "Traceback" not in served.log("web")
    assert served.request("GET", "/health", headers={})[0] == 200


# -- rank 21 -----------------------------------------------------------------------------------------------------

TWICE = {
    "a question": (
        "/v1/systemone",
        "team",
        b'{"state":"s","questions":{"team":{"type":"noul","instructions":"a"},'
        b'"team":{"type":"noul","instructions":"b"}}}',
    ),
    "an option": (
        "/v1/systemone",
        "billing",
        b'{"state":"s","questions":{"team":{"type":"choice","instructions":"a",'
        b'"criteria":{"billing":"x","billing":"y"}}}}',
    ),
    "a name at the top": ("/decide", "state", b'{"state":"other",' + json.dumps(D1).encode()[1:]),
    "a name in the state": ("/decide", "k", b'{"state":{"k":1,"k":1},' + json.dumps(without(D1, "state")).encode()[1:]),
    "written in two ways": (
        "/decide",
        "k",
        b'{"state":{"k":1,"\\u006b":2},' + json.dumps(without(D1, "state")).encode()[1:],
    ),
}


@pytest.mark.parametrize(("path", "name", "body"), TWICE.values(), ids=TWICE)
def test_rank_21_the_same_name_twice_is_422_naming_it(service: Local, path: str, name: str, body: bytes) -> None:
    assert f'"{name}"' in assert_refused(service, path, body)


def test_rank_21_the_same_option_id_twice_is_422(service: Local) -> None:
    assert_refused(service, "/decide", changed(D1, options=[_OPTIONS[0], _OPTIONS[0], _OPTIONS[1]]))


# -- rank 25 -----------------------------------------------------------------------------------------------------

LEFT_OUT: dict[str, dict[str, Any]] = {
    "noul without criteria": {"type": "noul", "instructions": "Urgent?"},
    "noul, criteria null": {"type": "noul", "instructions": "Urgent?", "criteria": None},
    "noul, one side": {"type": "noul", "instructions": "Urgent?", "criteria": {"true": "yes, today"}},
    "choice, null descriptions": {"type": "choice", "instructions": "Mood?", "criteria": {"calm": None, "angry": None}},
    "structured instructions": {"type": "noul", "instructions": {"question": "Urgent?", "note": "weekend"}},
    "instructions missing": {"type": "choice", "criteria": {"calm": "c", "angry": "a"}},
    "instructions null": {"type": "score", "instructions": None, "criteria": ["calm", "angry"]},
    "one option": {"type": "choice", "instructions": "?", "criteria": {"only": "one"}},
    "one level": {"type": "score", "instructions": "?", "criteria": ["only"]},
    "no option": {"type": "choice", "instructions": "?", "criteria": {}},
    "a list of options": {"type": "choice", "instructions": "?", "criteria": ["calm", "angry"]},
    "score without criteria": {"type": "score", "instructions": "?"},
}


@pytest.mark.parametrize("question", LEFT_OUT.values(), ids=LEFT_OUT)
@pytest.mark.parametrize("state", ["text", [{"role": "user", "content": "hi"}]])
def test_rank_25_the_native_profile_says_exactly_what_the_engines_own_validation_says(
    native: Local, question: dict[str, Any], state: Any
) -> None:
    body = {"state": state, "questions": {"q": question}}
    try:
        check_questions(body["questions"], 16)
        read_options(question, 255)
    except ValueError:
        assert_refused(native, "/v1/systemone", body)
    else:
        assert native.post("/v1/systemone", body)[0] == 200


@pytest.mark.parametrize("question", LEFT_OUT.values(), ids=LEFT_OUT)
def test_rank_25_the_jev_profile_scores_or_refuses_and_asks_in_plain_texts(
    service: Local, question: dict[str, Any]
) -> None:
    status, _ = service.post("/v1/systemone", {"state": "s", "questions": {"q": question}})
    bad = question.get("criteria") in ({}, ["calm", "angry"]) and question["type"] == "choice"
    assert status == (422 if bad or (question["type"] == "score" and "criteria" not in question) else 200)
    for call in service.engine.calls:
        [asked] = call["questions"].values()
        criteria = asked.get("criteria", {})
        texts = [asked["instructions"], *(criteria.values() if isinstance(criteria, dict) else criteria)]
        assert all(isinstance(text, str) for text in texts)
        assert not any(mark in text for text in texts for mark in ("None", "{'", "null"))


def test_rank_25_on_decide_a_null_description_is_422(service: Local) -> None:
    assert_refused(service, "/decide", changed(D1, options=[_OPTIONS[0], {"id": "x", "description": None}]))


# -- rank 26 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["service", "native"])
@pytest.mark.parametrize("model", ["absent", "jev-latest", None, 7, {"a": 1}])
def test_rank_26_any_model_value_is_200_and_the_replys_model_a_string(
    profile: str, model: Any, request: pytest.FixtureRequest
) -> None:
    service: Local = request.getfixturevalue(profile)
    body = without(S1, "model") if model == "absent" else changed(S1, model=model)
    status, answer = service.post("/v1/systemone", body)
    assert status == 200, answer
    assert answer["model"] == "fake@0"


@pytest.mark.parametrize("profile", ["service", "native"])
def test_rank_26_images_are_refused_and_null_or_an_empty_list_is_none(
    profile: str, request: pytest.FixtureRequest
) -> None:
    service: Local = request.getfixturevalue(profile)
    assert "images not supported" in assert_refused(service, "/v1/systemone", changed(S1, images=["x"]))
    for images in (None, []):
        assert service.post("/v1/systemone", changed(S1, images=images))[0] == 200


def test_rank_26_unknown_names_are_ignored_alike_at_every_depth(service: Local) -> None:
    more = {"unknown": 1}
    options = [{**option, **more} for option in _OPTIONS]
    bodies = [
        ("/decide", {**D1, **more}),
        ("/decide", {**D1, "options": options}),
        ("/decide/shared", {**SHARED1, **more}),
        ("/decide/shared", shared({**decision("d", "ab"), **more})),
        ("/v1/systemone", {**S1, **more}),
        ("/v1/systemone", {**S1, "questions": {name: {**one, **more} for name, one in S1["questions"].items()}}),
    ]
    assert [service.post(path, body)[0] for path, body in bodies] == [200] * len(bodies)
    assert "unknown" not in json.dumps(service.engine.calls)


# -- rank 38 -----------------------------------------------------------------------------------------------------

COERCED = [
    *({"id": value} for value in (5, True, None, "", ["x"], {"a": 1}, 1.5)),
    *({"question": value} for value in ("", 5, None, True, ["x"])),
    *({"options": [{"id": value, "description": "x"}, _OPTIONS[1]]} for value in (1, None, True, ["x"])),
    *({"options": [{"id": "x", "description": value}, _OPTIONS[1]]} for value in (5, True, None, ["x"], {})),
    *({"orderings": value} for value in (True, 1, "ALL", "Rotations", "", "yes")),
    *({"state": value} for value in (5, True, None, "", {}, [], 0.0)),
]


@pytest.mark.parametrize("change", COERCED, ids=json.dumps)
def test_rank_38_nothing_is_coerced(service: Local, change: dict[str, Any]) -> None:
    assert_refused(service, "/decide", changed(D1, **change))
    assert service.engine.prepared == 0


def test_rank_38_strings_that_look_like_other_types_stay_strings(service: Local) -> None:
    body = {
        "id": "5",
        "state": "true",
        "question": "null",
        "options": [{"id": "1", "description": "2"}, {"id": "", "description": ""}],
    }
    status, result = service.post("/decide", body)
    assert status == 200
    assert (result["id"], result["option_ids"]) == ("5", ["1", ""])
    assert service.engine.calls == [
        {
            "state": "true",
            "questions": {"q": {"type": "choice", "instructions": "null", "criteria": {"1": "2", "": ""}}},
        }
    ]


# -- rank 39, 40 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    "where", [{"state": {"score": "HERE"}}, {"state": ["HERE"]}, {"unread": "HERE"}], ids=json.dumps
)
def test_rank_39_a_literal_that_is_no_json_is_422(
    service: Local, path: str, literal: str, where: dict[str, Any]
) -> None:
    text = json.dumps(changed(ROUTES[path], **where)).replace('"HERE"', literal)
    assert_refused(service, path, text.encode())


def test_rank_39_the_words_as_strings_are_texts(service: Local) -> None:
    assert service.post("/decide", changed(D1, state=["NaN", "Infinity"]))[0] == 200


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("body", [b"", b"[]", b'"x"', b"5", b"null", b"{", b'{"a":1}{"b":2}', b"true", b"{}"])
def test_rank_40_a_wrong_top_level_is_422(service: Local, path: str, body: bytes) -> None:
    assert_refused(service, path, body)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        *(("/decide", {"options": value}) for value in ({}, {"a": "b"}, "ab", [None], [[]], [None, None], [[], []], 5)),
        *(("/decide/shared", {"decisions": value}) for value in ([], "x", {}, [None], [[]], 5)),
        *(
            ("/v1/systemone", {"questions": value})
            for value in ([], "x", {"q": None}, {"q": "noul"}, {"q": []}, {"q": 5}, {}, 5)
        ),
    ],
)
def test_rank_40_a_wrong_nested_container_is_422(service: Local, path: str, change: dict[str, Any]) -> None:
    assert_refused(service, path, changed(ROUTES[path], **change))


@pytest.mark.parametrize("path", ROUTES)
def test_rank_40_odd_encodings_are_treated_alike_everywhere(service: Local, path: str) -> None:
    text = json.dumps(ROUTES[path])
    # Decided: a byte order mark is tolerated, any encoding but UTF-8 is not.
    assert service.post(path, b"\xef\xbb\xbf" + text.encode())[0] == 200
    for encoded in (
        text.encode("utf-16"),
        text.encode("utf-16-le"),
        text.encode("utf-32"),
        b"\xff\xfe" + text.encode(),
    ):
        assert_refused(service, path, encoded)
    for bad in (b"\xe9", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"):
        assert_refused(service, path, json.dumps(changed(ROUTES[path], state="HERE")).encode().replace(b"HERE", bad))


# -- rank 41 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "status"), [(0, 422), (1, 422), (2, 200), (16, 200), (17, 422)])
def test_rank_41_options_of_decide(service: Local, count: int, status: int) -> None:
    assert service.post("/decide", decision("d", [f"o{i}" for i in range(count)], state="s"))[0] == status


@pytest.mark.parametrize(("count", "status"), [(0, 422), (1, 200), (16, 200), (17, 422)])
def test_rank_41_questions_of_systemone_in_the_native_profile(native: Local, count: int, status: int) -> None:
    questions = {f"q{i}": S1["questions"]["urgent"] for i in range(count)}
    assert native.post("/v1/systemone", {"state": "s", "questions": questions})[0] == status


@pytest.mark.parametrize(
    ("count", "packed"), [(1, [1]), (16, [16]), (17, [16, 1]), (40, [16, 16, 8]), (64, [16] * 4), (65, None)]
)
def test_rank_41_decisions_of_decide_shared(service: Local, count: int, packed: list[int] | None) -> None:
    body = shared(*(decision(f"d{i}", "ab") for i in range(count)))
    if packed is None:
        assert_refused(service, "/decide/shared", body)
        return
    status, answer = service.post("/decide/shared", body)
    assert (status, answer["timing"]["questions_per_call"]) == (200, packed)
    for number, result in enumerate(answer["results"]):
        index, size = number // 16, packed[number // 16]
        field = "q" if size == 1 else f"q{number % 16 + 1}"
        assert result["call"] == {"index": index, "field": field, "questions": size}
        assert service.engine.calls[index]["questions"][field]["instructions"] == f"question of d{number}?"


def test_rank_41_orderings_are_counted_after_expansion(service: Local) -> None:
    assert service.post("/decide", decision("d", "abcd", state="s", orderings="all"))[0] == 200
    assert_refused(service, "/decide", decision("d", "abcde", state="s", orderings="all"))
    assert (
        service.post("/decide/shared", shared(*(decision(f"d{i}", "abc", orderings="all") for i in range(10))))[0]
        == 200
    )
    assert_refused(service, "/decide/shared", shared(*(decision(f"d{i}", "abc", orderings="all") for i in range(11))))


# -- rank 43 -----------------------------------------------------------------------------------------------------


def test_rank_43_served_numbers_are_the_engines_bit_by_bit(service: Local) -> None:
    numbers = [0.79] + [0.014] * 15
    ids = [f"o{i}" for i in range(16)]
    body = decision("d", ids, state={"fake": {"probabilities": numbers}})
    result = service.post("/decide", body)[1]
    assert result["probabilities"] == numbers
    assert result["native"]["probabilities"] == dict(zip(ids, numbers, strict=True))
    criteria = dict.fromkeys(ids)
    question = {"type": "choice", "instructions": "?", "criteria": criteria}
    answer = service.post("/v1/systemone", {"state": body["state"], "questions": {"q": question}})[1]["answers"]["q"]
    assert list(answer["probabilities"].values()) == numbers
    assert ordered(answer["x_native"]) == ordered(service.engine.answers[-1]["answers"]["q"])


@pytest.mark.parametrize(
    "numbers", [[0.1 + 0.2, 1 - (0.1 + 0.2)], [1 / 3, 2 / 3], [0.5000000000000001, 0.4999999999999999]]
)
def test_rank_43_floats_survive_the_round_trip(service: Local, numbers: list[float]) -> None:
    result = service.post("/decide", changed(D1, state={"fake": {"probabilities": numbers}}))[1]
    assert result["probabilities"] == numbers


def test_rank_43_in_a_tie_top_is_natives_choice_and_combined_top_the_callers_first(service: Local) -> None:
    script = {"fake": {"probabilities": [0.5, 0.5]}}
    result = service.post("/decide", decision("d", "ba", state=script))[1]
    assert result["top"] == result["native"]["choice"] == "a"
    combined = service.post("/decide", decision("d", "ba", state=script, orderings="all"))[1]["combined"]
    assert (combined["top"], combined["probabilities"]) == ("b", [0.5, 0.5])


def test_rank_43_two_orderings_that_disagree_with_equal_combined_mass(service: Local) -> None:
    # The fake engine prefers the first place, so the two orderings name different winners.
    result = service.post("/decide", decision("d", "ba", state="s", orderings="all"))[1]
    assert [one["top"] for one in result["orderings"]] == ["b", "a"]
    assert result["combined"]["top"] == "b"
    assert result["combined"]["agreement"] == 0.5


# -- rank 45 -----------------------------------------------------------------------------------------------------


def test_rank_45_long_input_is_scored_whole_up_to_the_limit_and_refused_after_it() -> None:
    with hooked(MAX_TOKENS="60") as service:
        found = []
        for words in range(1, 90):
            state = " ".join(["w"] * words)
            status, body = service.post("/decide", changed(D1, state=state))
            found.append(status)
            if status == 200:
                assert service.engine.calls[-1]["state"] == state
                last = body["input_tokens"]
            else:
                assert "60" in assert_error((status, body), 422, "invalid_request")
        first_refused = found.index(422)
        assert found == [200] * first_refused + [422] * (89 - first_refused)
        assert last == 60
        assert len(service.engine.calls) == first_refused


def test_rank_45_a_shared_request_is_422_when_only_its_second_chunk_is_too_long(service: Local) -> None:
    decisions = [decision(f"d{i}", "ab") for i in range(16)] + [{**decision("e", "ab"), "question": "w " * 8200}]
    assert_refused(service, "/decide/shared", shared(*decisions))


# -- rank 47 -----------------------------------------------------------------------------------------------------


def test_rank_47_a_500_tells_nothing_and_the_log_keeps_no_callers_text() -> None:
    secret = "secret-STATE-123"
    with pair(LOG_LEVEL="DEBUG", LOG_FORMAT="text") as service:
        state = {
            "fake": {"error": ["runtime", f"boom /srv/models/x {secret}"]},
            "text": f"{secret}\n2026-11-30T00:00:00.000Z error forged: line",
        }
        texts = []
        for path, body in ROUTES.items():
            answer = service.post(path, changed(body, state=state))
            texts.append(assert_error(answer, 500, "scoring_failed"))
            assert secret not in json.dumps(answer[1])
            assert "/srv" not in json.dumps(answer[1])
            assert "Traceback" not in json.dumps(answer[1])
        assert len(set(texts)) == 1, "the message is not a fixed one"
        for odd in ({"id": secret}, {"options": [{"id": secret}]}, {"state": secret}):
            service.post("/decide", changed(D1, **odd))
        service.post("/decide", f'{{"{secret}":1,"{secret}":2}}'.encode())
        service.request(
            "GET", f"/{secret}?{secret}={secret}", headers={"User-Agent": secret, "X-Request-ID": f"{secret} x"}
        )
        log = service.log("scorer") + service.log("web")
    assert secret not in log
    assert "forged" not in log
    assert TOKEN not in log
    failures = [line for line in service.log("scorer").splitlines() if "the engine failed" in line]
    assert len(failures) == len(ROUTES), "one record a failure"
    assert all("RuntimeError" in line and "predict" in line for line in failures)


def test_rank_47_a_bug_of_ours_is_a_500_with_a_fixed_message(service: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    from web import assemble

    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append

    def bug(*_args: Any) -> Any:
        raise LookupError("secret-STATE-123")

    monkeypatch.setattr(assemble, "decide_result", bug)
    logging.getLogger("web.app").addHandler(handler)
    try:
        status, body = service.post("/decide", D1)
    finally:
        logging.getLogger("web.app").removeHandler(handler)
    # INV-1: any failure while building the response is a scoring_failed inside the envelope.
    assert_error((status, body), 500, "scoring_failed")
    assert "secret" not in json.dumps(body)
    [record] = records
    assert "secret" not in str(record.__dict__)
    assert record.fields["exception"] == "LookupError"
    assert service.client.get("/health").json["slots_in_use"] == 0


# -- rank 51 -----------------------------------------------------------------------------------------------------


def test_rank_51_a_neighbours_request_changes_no_number(service: Local) -> None:
    seen = {tuple(service.post("/decide", D1)[1]["probabilities"]) for _ in range(10)}
    with in_background(service) as post:
        others = [post("/decide", changed(D1, state="w " * (1 << (number % 12)))) for number in range(24)]
        seen |= {tuple(post("/decide", D1).result()[1]["probabilities"]) for _ in range(10)}
        assert {one.result()[0] for one in others} == {200}
    for script in ({"error": ["oom", "x"]}, {"error": ["runtime", "x"]}, {"error": ["value", "x"]}, {"nan": True}):
        service.post("/decide", changed(D1, state={"fake": script}))
        seen.add(tuple(service.post("/decide", D1)[1]["probabilities"]))
    seen.add(tuple(service.post("/decide/shared", {**SHARED1, "state": D1["state"]})[1]["results"][0]["probabilities"]))
    assert len(seen) == 1
