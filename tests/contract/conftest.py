"""Services of the contract tests. One of each kind lives for the whole run (a start and a stop take half a second);
every test gets it as new."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.helpers import hooked
from tests.harness import Local


@pytest.fixture(scope="session")
def _jev() -> Iterator[Local]:
    with hooked() as service:
        yield service


@pytest.fixture(scope="session")
def _native() -> Iterator[Local]:
    with hooked(SYSTEMONE_PROFILE="native") as service:
        yield service


@pytest.fixture
def service(_jev: Local) -> Local:
    """Both tiers in this process with default settings (profile ``jev``) and a ``HookedEngine``."""
    _jev.engine.reset()
    return _jev


@pytest.fixture
def native(_native: Local) -> Local:
    """The same with SYSTEMONE_PROFILE=native."""
    _native.engine.reset()
    return _native
