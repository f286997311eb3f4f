"""Fixtures shared by all tiers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import Local, Pair


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--examples", type=int, default=20, help="bodies of each kind that schemathesis tries a route with"
    )


@pytest.fixture
def local() -> Iterator[Local]:
    """Both tiers in this process, default settings, the recording fake engine."""
    service = Local()
    yield service
    service.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Pair]:
    """A real pair of processes with default settings, shared by a module's tests: leave it as you found it."""
    service = Pair()
    yield service
    service.close()
