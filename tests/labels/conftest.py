"""The checkpoints, built once a session, and engines on them. Where torch, transformers or granite-switch is missing
the tests that need it are not collected; ``make test`` installs them first."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from scorer.engines.labels import LabelsEngine
from shared.settings import ScorerSettings
from tests.labels.checkpoints import MARKER, build_tiny_granite, build_tiny_lm
from tests.labels.oracle import Oracle

_HERE = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
_GRANITE_HERE = bool(importlib.util.find_spec("granite_switch"))
collect_ignore_glob = [] if _HERE and _GRANITE_HERE else ["test_*granite*.py"] if _HERE else ["test_*.py"]


def scorer_settings(checkpoint: Path, **changes: object) -> ScorerSettings:
    """Settings that serve ``checkpoint`` on the CPU; ``changes`` are settings in lower case."""
    named = {"engine": "labels", "device": "cpu", "checkpoint": checkpoint} | changes
    return ScorerSettings.from_env({f"INTERN_DECISION_{name.upper()}": str(value) for name, value in named.items()})


@pytest.fixture(scope="session")
def start() -> Callable[..., LabelsEngine]:
    """A loaded engine on a checkpoint, with the settings (lower case) that are given."""

    def start(checkpoint: Path, **changes: object) -> LabelsEngine:
        engine = LabelsEngine(scorer_settings(checkpoint, **changes))
        engine.load()
        return engine

    return start


@pytest.fixture(scope="session")
def tiny_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny chat model."""
    return build_tiny_lm(tmp_path_factory.mktemp("labels") / "tiny-lm")


@pytest.fixture(scope="session")
def granite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Granite Switch checkpoint."""
    return build_tiny_granite(tmp_path_factory.mktemp("labels") / "tiny-granite")


@pytest.fixture(scope="session")
def engine(tiny_lm: Path, start: Callable[..., LabelsEngine]) -> LabelsEngine:
    """An engine on the tiny chat model that keeps nothing between requests; shared: leave it as you found it."""
    return start(tiny_lm, labels_marker=MARKER, labels_cache_mib=0)


@pytest.fixture(scope="session")
def oracle(tiny_lm: Path) -> Oracle:
    return Oracle(tiny_lm)
