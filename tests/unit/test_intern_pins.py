"""Pins: the built-in release, and the only form in which another one may be named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.pins import INTERN_DECISION_4B, Pin, PinError, dump_pin, read_pin

GOOD = {"name": "Some-Model", "revision": "0a" * 20, "sha256": "0b" * 32}


def test_the_4b_release_of_the_contract_is_built_in() -> None:
    pin = INTERN_DECISION_4B
    assert pin.name == "Intern-Decision-4B"
    assert pin.revision == "0e5e6aa7d6d750e2b1504ba11a8136cb58aeb3cd"
    assert pin.sha256 == "c904e2c67ca0775621a22375ee373d2ba30b52117cda870c6c9ef74143b29863"


def test_a_pins_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    path.write_bytes(dump_pin(Pin(**GOOD)))
    assert read_pin(path) == Pin(**GOOD)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        json.dumps({**GOOD, "more": 1}),
        json.dumps({"name": "x"}),
        '{"name":"a","name":"b"}',
        *(
            json.dumps({**GOOD, name: value})
            for name, value in [
                ("name", ""),
                ("name", "a b"),
                ("name", 5),
                ("revision", "0a"),
                ("revision", "0A" * 20),
                ("revision", None),
                ("revision", "../" + "0" * 37),
                ("sha256", "0b" * 31),
                ("sha256", "0B" * 32),
                ("sha256", ["0b" * 32]),
                ("sha256", "0b" * 32 + "\n"),
            ]
        ),
    ],
)
def test_a_malformed_pins_file_is_refused_naming_the_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "pins.json"
    path.write_text(content)
    with pytest.raises(PinError, match=r"pins\.json: "):
        read_pin(path)


def test_a_missing_pins_file_is_refused_naming_the_file(tmp_path: Path) -> None:
    with pytest.raises(PinError, match=r"none\.json: No such file"):
        read_pin(tmp_path / "none.json")


def test_a_pins_file_can_hold_any_name_a_file_may_call_itself(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    value: dict[str, Any] = {**GOOD, "name": "owner/Some.Model-0.8B"}
    path.write_text(json.dumps(value))
    assert read_pin(path).name == "owner/Some.Model-0.8B"
