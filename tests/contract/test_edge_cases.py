"""E01 to E15 of wire/systemone.md §12: 39 checks over real HTTP, in the ``jev`` profile."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.helpers import assert_details, assert_error
from tests.harness import BEARER, Pair, strict_json

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PATH = "/v1/systemone"
N: dict[str, Any] = {"type": "noul", "instructions": "Refund?"}
C: dict[str, Any] = {"type": "choice", "instructions": "Which?", "criteria": {"x": None, "y": None}}

CHECKS: dict[str, Callable[[Pair], None]] = {}


def check(name: str) -> Callable[[Callable[[Pair], None]], Callable[[Pair], None]]:
    """Register one of the 39."""

    def register(function: Callable[[Pair], None]) -> Callable[[Pair], None]:
        assert name not in CHECKS
        CHECKS[name] = function
        return function

    return register


def body(questions: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "jev-latest", "state": "Refund me", "questions": questions, **more}


def good(served: Pair, questions: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The answers of a 200."""
    status, answer = served.post(PATH, body(questions, **more))
    assert status == 200, answer
    assert list(answer["answers"]) == list(questions)
    return dict(answer["answers"])


def refused(served: Pair, sent: Any, kind: str | None = None) -> list[dict[str, Any]]:
    """The detail list of a 422L; one of its items has type ``kind``."""
    answer = served.post(PATH, sent)
    assert_error(answer, 422, "invalid_request")
    found = assert_details(answer[1])
    assert kind is None or kind in [item["type"] for item in found], found
    return found


def refused_on_a_live_connection(served: Pair, sent: bytes) -> None:
    """422L, and the same connection then serves a good request."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    try:
        connection.request("POST", PATH, sent, BEARER)
        response = connection.getresponse()
        answer = response.status, strict_json(response.read())
        assert_error(answer, 422, "invalid_request")
        assert_details(answer[1])
        sock = connection.sock
        connection.request("POST", PATH, json.dumps(body({"q": N})), BEARER)
        response = connection.getresponse()
        assert response.status == 200
        response.read()
        assert connection.sock is sock is not None, "the connection was closed"
    finally:
        connection.close()


def compressed(served: Pair, sent: bytes) -> tuple[int, Any]:
    status, _, answer = served.request("POST", PATH, sent, {**BEARER, "Content-Encoding": "zstd"})
    return status, answer


@check("E01 a body cut short")
def _(served: Pair) -> None:
    refused(served, b'{"model":"jev-latest","state":"x","questions":{', "json_invalid")


@check("E02 no questions")
def _(served: Pair) -> None:
    refused(served, body({}), "too_short")


@check("E03 an unknown type")
def _(served: Pair) -> None:
    found = refused(served, body({"q": {"type": "boolean", "instructions": "?"}}))
    assert any("q" in item["loc"] for item in found)


@check("E04 levels as a map")
def _(served: Pair) -> None:
    question = {"type": "score", "instructions": "Anger?", "criteria": {"0": "Calm", "1": "Angry"}}
    refused(served, body({"q": question}), "list_type")


def _noul_criteria(number: int, criteria: Any) -> None:
    @check(f"E05.{number} noul criteria {json.dumps(criteria)}")
    def _(served: Pair) -> None:
        assert 0 <= good(served, {"q": {**N, "criteria": criteria}})["q"]["noul"] <= 1


for _number, _criteria in enumerate(
    (
        {"true": "asks for money"},
        {"false": "only asks"},
        {"true": "t", "false": None},
        None,
        {},
    ),
    1,
):
    _noul_criteria(_number, _criteria)


@check("E06.a a noul with a described side only")
def _(served: Pair) -> None:
    good(served, {"q": {"type": "noul", "criteria": {"true": "threat"}}})


@check("E06.b a noul with nothing")
def _(served: Pair) -> None:
    refused(served, body({"q": {"type": "noul"}}))


@check("E07 null, structured and non-ASCII options")
def _(served: Pair) -> None:
    criteria = {"Billing": None, "Technical": {"owns": ["bugs"]}, "\ud658\ubd88 \U0001f642": None}
    answer = good(served, {"q": {"type": "choice", "instructions": "Team?", "criteria": criteria}})["q"]
    assert set(answer["probabilities"]) == set(criteria)


def options(count: int) -> dict[str, Any]:
    return {"type": "choice", "instructions": "?", "criteria": {f"o{i}": None for i in range(count)}}


@check("E08.a 255 options")
def _(served: Pair) -> None:
    assert len(good(served, {"q": options(255)})["q"]["probabilities"]) == 255


@check("E08.b 256 options")
def _(served: Pair) -> None:
    refused(served, body({"q": options(256)}))


@check("E09.a one option")
def _(served: Pair) -> None:
    answer = good(served, {"q": {"type": "choice", "instructions": "?", "criteria": {"Only": None}}})["q"]
    assert (answer["choice"], answer["probabilities"], answer["confidence"]) == ("Only", {"Only": 1}, 1)


@check("E09.b one level")
def _(served: Pair) -> None:
    answer = good(served, {"q": {"type": "score", "instructions": "?", "criteria": ["Only"]}})["q"]
    assert (answer["score"], answer["confidence"], answer["legend"]) == (0, 1, {"0": "Only"})


@check("E10.a a structured level")
def _(served: Pair) -> None:
    question = {"type": "score", "instructions": "?", "criteria": ["Calm", {"label": "Angry"}]}
    assert good(served, {"q": question})["q"]["legend"]["1"] == {"label": "Angry"}


@check("E10.b a null level")
def _(served: Pair) -> None:
    refused(served, body({"q": {"type": "score", "instructions": "?", "criteria": ["Calm", None]}}))


@check("E11 ids do not matter")
def _(served: Pair) -> None:
    one = good(served, {"a b": N, "\uc9c8\ubb38": C})
    other = good(served, {"zz": C, "\U0001f3af": N})
    assert one["a b"]["noul"] == other["\U0001f3af"]["noul"]
    assert one["\uc9c8\ubb38"]["probabilities"] == other["zz"]["probabilities"]


@check("E12 unknown fields")
def _(served: Pair) -> None:
    good(served, {"q": {**N, "x_note": 1}}, x_nonce="n", seed=7, cache_salt="s")


def _hostile(number: int, name: str, sent: bytes) -> None:
    @check(f"E13.{number} {name}")
    def _(served: Pair) -> None:
        refused_on_a_live_connection(served, sent)


def _with_state(state: bytes) -> bytes:
    return json.dumps(body({"q": N}, state="HERE")).encode().replace(b'"HERE"', state)


for _number, (_name, _sent) in enumerate(
    {
        "a lone surrogate as option name": json.dumps(body({"q": {**C, "criteria": {"HERE": None}}}))
        .encode()
        .replace(b"HERE", b"\\ud800"),
        "a 5000-digit integer": _with_state(b"[" + b"9" * 5000 + b"]"),
        "1e400": _with_state(b"[1e400]"),
        "NaN": _with_state(b"[NaN]"),
        "100000 brackets": _with_state(b"[" * 100_000),
        "a byte that is not UTF-8": _with_state(b'"\xe9"'),
        "UTF-16": json.dumps(body({"q": N})).encode("utf-16"),
        "an empty body": b"",
    }.items(),
    1,
):
    _hostile(_number, _name, _sent)


@check("E14.a a zstd body")
def _(served: Pair) -> None:
    sent = json.dumps(body({"q": N}, state="x" * 4000)).encode()
    packed = zstd.compress(sent)
    assert len(packed) < len(sent)
    status, answer = compressed(served, packed)
    assert status == 200
    assert answer["answers"]["q"]["type"] == "noul"


@check("E14.b a zstd body cut short")
def _(served: Pair) -> None:
    status, answer = compressed(served, zstd.compress(json.dumps(body({"q": N}, state="x" * 4000)).encode())[:-5])
    assert 400 <= status < 500
    assert answer["detail"]


@check("E14.c a zstd bomb of 200 MB")
def _(served: Pair) -> None:
    packer = zstd.ZstdCompressor()
    block = bytes(1 << 20)
    bomb = b"".join(packer.compress(block) for _ in range(200)) + packer.flush()
    assert len(bomb) < 100_000
    assert_error(compressed(served, bomb), 413, "request_too_large")


@check("E14.d an asset")
def _(served: Pair) -> None:
    asset = {"<image:a>": {"type": "image", "format": "png", "data_base64": "AA=="}}
    status, answer = served.post(PATH, body({"q": N}, assets=asset))
    assert 400 <= status < 500
    assert answer["detail"]


@check("E14.e a box question")
def _(served: Pair) -> None:
    status, answer = served.post(PATH, body({"q": {"type": "box", "instructions": "dog"}}))
    assert 400 <= status < 500
    assert answer["detail"]


@check("E14.f a multipart body")
def _(served: Pair) -> None:
    part = (
        b'--b\r\nContent-Disposition: form-data; name="request"\r\nContent-Type: application/json\r\n\r\n'
        + json.dumps(body({"q": N})).encode()
        + b"\r\n--b--\r\n"
    )
    status, _, answer = served.request(
        "POST", PATH, part, {**BEARER, "Content-Type": "multipart/form-data; boundary=b"}
    )
    assert 400 <= status < 500
    assert answer["detail"]


def _unauthorized(served: Pair, headers: dict[str, str]) -> None:
    status, _, answer = served.request("POST", PATH, body({"q": N}), headers)
    assert_error((status, answer), 401, "unauthorized")
    assert answer["detail"]["error_type"] == "authentication_error"


@check("E15.a no key")
def _(served: Pair) -> None:
    _unauthorized(served, {})


@check("E15.a a wrong key")
def _(served: Pair) -> None:
    _unauthorized(served, {"Authorization": "Bearer wrong"})


@check("E15.b a plain request")
def _(served: Pair) -> None:
    status, headers, answer = served.request("POST", PATH, body({"q": N}))
    assert status == 200
    assert type(answer["usage"]["input_tokens"]) is type(answer["usage"]["output_tokens"]) is int
    assert isinstance(answer["model"], str)
    assert headers["x-typesafe-request-id"]


@check("E15.c GET")
def _(served: Pair) -> None:
    status, _, answer = served.request("GET", PATH)
    assert_error((status, answer), 405, "method_not_allowed")


@check("E15.d the models")
def _(served: Pair) -> None:
    status, _, answer = served.request("GET", "/v1/models")
    assert status == 200
    assert answer["models"]
    for model in answer["models"]:
        assert all(isinstance(model[name], str) for name in ("name", "description", "release_date"))


@pytest.mark.parametrize("name", CHECKS)
def test_edge_case(served: Pair, name: str) -> None:
    CHECKS[name](served)


def test_there_are_39_checks_of_15_cases() -> None:
    assert len(CHECKS) == 39
    assert {name[:3] for name in CHECKS} == {f"E{number:02}" for number in range(1, 16)}
