"""The tiny checkpoint, built once a session, and engines on it. Where torch or transformers is missing nothing here is
collected, so that the other tests run without them; ``make test`` installs them first."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from scorer.engines.intern import InternEngine
from scorer.engines.intern_tiny.build import Built, build
from shared.settings import ScorerSettings

_HERE = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
collect_ignore_glob = [] if _HERE else ["test_*.py"]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The tiny checkpoint."""
    return build(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def start(built: Built) -> Callable[..., InternEngine]:
    """A loaded engine with the settings (lower case, as text) that are given; ``dtype`` is the constructor's."""

    def start(dtype: str = "bfloat16", **changes: str | Path) -> InternEngine:
        settings = built.settings() | {f"INTERN_DECISION_{name.upper()}": str(value) for name, value in changes.items()}
        engine = InternEngine(ScorerSettings.from_env(settings), dtype=dtype)
        engine.load()
        return engine

    return start


@pytest.fixture(scope="session", params=["float32", "bfloat16"])
def engine(request: pytest.FixtureRequest, start: Callable[..., InternEngine]) -> InternEngine:
    """A loaded engine, shared: leave it as you found it."""
    return start(request.param)
