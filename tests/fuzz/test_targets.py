"""Every fuzz target over its seeds, over random bytes, and over what hypothesis makes of it: everywhere, without
atheris. ``make fuzz`` runs the same functions for longer, guided by coverage."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import reference_json
from tests.fuzz.__main__ import TARGETS
from tests.harness import ROOT

MODULES = {name: importlib.import_module(f"tests.fuzz.fuzz_{name}") for name in TARGETS}
SEEDED = [pytest.param(name, seed, id=f"{name}-{n}") for name in TARGETS for n, seed in enumerate(MODULES[name].SEEDS)]


@pytest.mark.parametrize(("name", "seed"), SEEDED)
def test_a_target_holds_for_its_seeds(name: str, seed: bytes) -> None:
    MODULES[name].check(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_for_3000_damaged_seeds_and_random_bytes(name: str) -> None:
    rng = random.Random(20261201)
    seeds = MODULES[name].SEEDS
    for _ in range(3000):
        data = bytearray(rng.choice(seeds) if rng.random() < 0.7 else rng.randbytes(rng.randrange(80)))
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        MODULES[name].check(bytes(data + rng.randbytes(rng.randrange(12))))


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_for_what_hypothesis_tries(name: str) -> None:
    @settings(max_examples=300)
    @given(st.binary(max_size=120))
    def holds(data: bytes) -> None:
        MODULES[name].check(data)

    holds()


NOTICED = [
    ("json", "shared.jsonio.loads", lambda data: [data], b"[]"),
    ("json", "shared.jsonio.loads", lambda data: 1 / 0, b"[]"),
    ("json", "shared.jsonio._has_lone_surrogate", lambda text: False, b'"\\ud800"'),
    ("json", "shared.jsonio._depth", lambda value: 0, b"[" * 65 + b"]" * 65),
    ("schemas", "tests.fuzz.fuzz_schemas.load", lambda schema, body: {}, bytes(5)),
    ("body", "tests.fuzz.fuzz_body.BodyReader.read", lambda self, environ: b"other", bytes([3, 0, 0, 9, 0, 0, 65])),
    ("wire", "shared.wire._is_id", lambda text: True, b'\x03\x01{"v":2,"id":"a b"}'),
    ("wire", "shared.wire.encode_job", lambda job: b"{}", bytes([2, 0, 0])),
]


@pytest.mark.parametrize(("target", "name", "broken", "data"), NOTICED)
def test_a_target_notices_code_that_breaks_its_rule(
    target: str, name: str, broken: Any, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fuzzer whose oracle cannot fail finds nothing, for ever."""
    module = MODULES[target]
    module.check(data)
    if name == "shared.wire.encode_job":
        monkeypatch.setitem(module.ENCODE, module.wire.decode_job, broken)
    else:
        monkeypatch.setattr(name, broken)
    with pytest.raises((AssertionError, ZeroDivisionError, ValueError)):
        module.check(data)


RULES = [
    (b"[" * 64 + b"]" * 64, True),
    (b"[" * 65 + b"]" * 65, False),
    (b'"\\ud800"', False),
    (b'"\\ud83d\\ude00"', True),
    (b"1e999", False),
    (b"-0", True),
    (b'{"a":1,"a":1}', False),
    (b"01", False),
    (b"NaN", False),
    (b"9" * 4301, False),
]


@pytest.mark.parametrize(("data", "taken"), RULES)
def test_the_reference_reader_knows_the_rule(data: bytes, taken: bool) -> None:
    try:
        reference_json.read(data)
    except reference_json.Refused:
        assert not taken
    else:
        assert taken


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_make_fuzz_runs_a_target_and_finds_nothing(name: str) -> None:
    pytest.importorskip("atheris")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--seconds", "2", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "stat::number_of_executed_units" in ended.stderr
