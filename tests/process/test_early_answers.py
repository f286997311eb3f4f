"""401, 413 and 429 reach a client that still sends, direct and through nginx (architecture.md §1.9; trouble.md ranks 9
and 52; failure test 20)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from shared.rundir import RunDir
from shared.slots import SlotTable
from tests.harness import TOKEN, Pair, pair
from tests.process.clients import CLIENTS
from tests.process.nginx import front, needs_nginx
from tests.process.support import invariants, padded, starts

LIMIT = 1 << 20
QUEUE = 4
SIZES = {"70 kB": 70_000, "1 MiB": LIMIT, "1 MiB + 1": LIMIT + 1, "3 MiB": 3 << 20, "8 MiB": 8 << 20}
CODES = {401: "unauthorized", 413: "request_too_large", 429: "busy"}

Client = Callable[[str, bytes, str], tuple[int, Any]]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pair]:
    with pair(MAX_QUEUE=str(QUEUE)) as running:
        yield running


@pytest.fixture(scope="module", params=["direct", pytest.param("nginx", marks=needs_nginx)])
def service(request: pytest.FixtureRequest, pool: Pair) -> Iterator[Pair]:
    if request.param == "direct":
        yield pool
    else:
        with front(pool) as proxy:
            yield proxy
    invariants(pool)


@contextmanager
def full(service: Pair) -> Iterator[None]:
    """Every slot is taken, by this process."""
    table = SlotTable(RunDir(service.dir).slots)
    with ExitStack() as stack:
        for _ in range(QUEUE):
            slot = table.acquire(b"x" * 16)
            assert slot is not None
            stack.enter_context(slot)
        yield
    table.close()


def refused(service: Pair, client: Client, status: int, size: int, times: int) -> None:
    """``times`` requests of ``size`` bytes, all of which get this status and nothing else."""
    calls = service.record_calls()
    before = len(starts(calls()))
    data = padded(size)
    outcomes: Counter[str] = Counter()
    with ExitStack() as stack:
        if status == 429:
            stack.enter_context(full(service))
        for _ in range(times):
            try:
                found, body = client(
                    f"http://127.0.0.1:{service.port}/decide", data, "x" * 40 if status == 401 else TOKEN
                )
                outcomes[f"{found} {body['error']['code']}"] += 1
            except Exception as error:  # a lost answer
                outcomes[repr(error)] += 1
    assert outcomes == {f"{status} {CODES[status]}": times}
    assert len(starts(calls())) == before


CASES = [(status, size) for status in CODES for size in SIZES if status != 413 or SIZES[size] > LIMIT]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("status", "size"), CASES)
def test_an_early_answer_reaches_a_client_that_still_sends(
    service: Pair, client: Client, status: int, size: str
) -> None:
    refused(service, client, status, SIZES[size], times=2)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("status", "size"), CASES)
def test_200_early_answers_to_a_client_that_still_sends(service: Pair, client: Client, status: int, size: str) -> None:
    refused(service, client, status, SIZES[size], times=200)
