"""The acceptance list's checks of a running server, over HTTP: what only a server can show."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from scorer.bench import checks, controls
from scorer.bench.checks import FAIL, NOT_APPLICABLE, PASS, Line, Scores
from scorer.bench.client import Client, Unreachable
from scorer.bench.forms import Row, refusals
from scorer.bench.server import UrlSource

__all__ = ["decidable", "same_numbers", "surface"]

_REPEATS = 5
_WAIT_S = 10.0
#: A queue that would take more idle connections than this to fill is left alone.
_MOST_STALLED = 512
_SPARE = 16
_DECISION: dict[str, Any] = {
    "id": "d",
    "state": controls.SENTENCE,
    **{name: value for name, value in controls.decisions(controls.BINARY[:1])[0].items() if name != "id"},
}


def decidable(rows: Sequence[Row]) -> list[Row]:
    """The rows that ``/decide`` can ask."""
    return [row for row in rows if not refusals(row, "none", "decide")]


def surface(client: Client, base: str, state: str) -> list[Line]:
    """401, 429, chunks and latency of the server at path ``base``; ``state`` is the long one."""
    health = client.request("GET", f"{base}/health", token=False).body
    told = health if isinstance(health, dict) else {}
    return [
        _unauthorized(client, base),
        _busy(client, base, told.get("max_queue")),
        _chunks(client, base, told),
        _latency(client, base, "21 binary questions, HTTP", controls.SENTENCE, controls.BINARY),
        _latency(client, base, "16 questions, long state, HTTP", state, controls.SIXTEEN),
    ]


def same_numbers(source: UrlSource, rows: Sequence[Row], inside: Scores, tolerance: float) -> Line:
    """Contract § Acceptance, 1: the service's answers against the engine's own, row by row."""
    asked = decidable(rows)
    scores, lost = checks.score(source, asked)
    names = {f"{row.file} {row.id} {field}" for row in asked for field in row.questions}
    line = checks.compared(
        "the engine's own numbers, HTTP", {name: inside[name] for name in names if name in inside}, scores, tolerance
    )
    return Line(line.name, line.expected, f"{line.found}; {lost[0]}", FAIL) if lost else line


def _unauthorized(client: Client, base: str) -> Line:
    """Contract § Acceptance, 8."""
    without = client.request("POST", f"{base}/decide", _DECISION, token=False)
    wrong = client.request("POST", f"{base}/decide", _DECISION, token="not-the-token-of-this-server-at-all")
    right = client.request("POST", f"{base}/decide", _DECISION)
    found = f"{without.status} without, {wrong.status} with a wrong one, {right.status} with the right one"
    good = (without.status, wrong.status, right.status) == (401, 401, 200)
    return Line("401", "401 without the token and with a wrong one, 200 with it", found, PASS if good else FAIL)


def _busy(client: Client, base: str, most: Any) -> Line:
    """Contract § Acceptance, 8: every slot is taken by a POST whose body does not come; the next POST is refused, and
    served once they have gone."""
    name, expected = "429", "429 with Retry-After past the queue, 200 when it is free again"
    if type(most) is not int or not 0 < most <= _MOST_STALLED:
        return Line(name, expected, "", NOT_APPLICABLE, "the server does not tell a queue that could be filled")
    stalled = []
    try:
        for _ in range(most):
            stalled.append(client.stall(f"{base}/decide"))
        _wait_until_full(client, base, most)
        full = client.request("POST", f"{base}/decide", _DECISION, retries=False)
        while full.status != 429 and len(stalled) < 2 * most + _SPARE:
            # One of ours may have been the one that was refused, while this POST had the last slot.
            stalled.append(client.stall(f"{base}/decide"))
            time.sleep(0.1)
            full = client.request("POST", f"{base}/decide", _DECISION, retries=False)
    except OSError as error:
        return Line(name, expected, f"no answer: {error}", FAIL)
    finally:
        for connection in stalled:
            connection.close()
    found = f"{full.status} {full.code} with {most} requests in progress".replace("  ", " ")
    if full.status != 429:
        return Line(name, expected, found, FAIL, "a proxy that reads bodies before it passes them on would hide it")
    after = client.request("POST", f"{base}/decide", _DECISION)
    found += f", Retry-After {full.headers.get('retry-after', 'missing')}; then {after.status}"
    good = "retry-after" in full.headers and after.status == 200
    return Line(name, expected, found, PASS if good else FAIL)


def _wait_until_full(client: Client, base: str, most: int) -> None:
    """Until /health counts every slot as taken, where it counts them."""
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end:
        health = client.request("GET", f"{base}/health", token=False).body
        used = health.get("slots_in_use") if isinstance(health, dict) else None
        if type(used) is not int or used >= most:
            return
        time.sleep(0.05)


def _chunks(client: Client, base: str, health: dict[str, Any]) -> Line:
    """Contract § Acceptance, 7."""
    per_call, most = health.get("max_questions_per_call", 16), health.get("max_decisions", 64)
    decisions = controls.decisions(controls.forty())[:most]
    expected = f"one request of {len(decisions)} equals its chunks of {per_call} asked one by one, bit for bit"
    name = "chunks, HTTP"
    if len(decisions) <= per_call:
        return Line(name, expected, "", NOT_APPLICABLE, f"max_decisions is {most}: one call holds them all")
    state = controls.SENTENCE * 3

    def ask(some: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
        reply = client.request("POST", f"{base}/decide/shared", {"state": state, "decisions": list(some)})
        results = reply.body.get("results") if reply.status == 200 and isinstance(reply.body, dict) else None
        return results if isinstance(results, list) else None

    together = ask(decisions)
    alone: list[dict[str, Any]] = []
    for start in range(0, len(decisions), per_call):
        alone += ask(decisions[start : start + per_call]) or []
    if together is None or len(alone) != len(decisions):
        return Line(name, expected, "a request was not answered", FAIL)
    # The place of a call in its request is the one thing that has to differ.
    same = sum(_without_index(x) == _without_index(y) for x, y in zip(together, alone, strict=True))
    return Line(name, expected, f"{same} of {len(decisions)} results equal", PASS if same == len(decisions) else FAIL)


def _without_index(result: dict[str, Any]) -> dict[str, Any]:
    call = result.get("call")
    if not isinstance(call, dict):
        return result
    return {**result, "call": {name: value for name, value in call.items() if name != "index"}}


def _latency(client: Client, base: str, name: str, state: str, questions: Sequence[Any]) -> Line:
    """Contract § Acceptance, 4: from here and server-side."""
    expected = "an answer; the time is for reading"
    body = {"state": state, "decisions": controls.decisions(questions)}
    outer: list[float] = []
    inner: list[float] = []
    for _ in range(_REPEATS):
        try:
            reply = client.request("POST", f"{base}/decide/shared", body)
        except Unreachable as error:
            return Line(name, expected, str(error), FAIL)
        if reply.status != 200:
            outcome = NOT_APPLICABLE if reply.status in (413, 422) else FAIL
            why = "the shape is over a limit of this server" if outcome == NOT_APPLICABLE else ""
            return Line(name, expected, f"{reply.status} {reply.code}", outcome, why)
        outer.append(1000 * reply.seconds)
        timing = reply.body.get("timing") or {}
        inner.append(1000 * float(timing.get("total_seconds") or 0.0))
    found = (
        f"median {statistics.median(outer):.4g} ms from here, slowest of {_REPEATS} {max(outer):.4g} ms, "
        f"{statistics.median(inner):.4g} ms on the inference thread"
    )
    return Line(name, expected, found, PASS)
