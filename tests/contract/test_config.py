"""Contract § Configuration: every value is validated; a bad one is refused at startup naming the variable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.settings import PREFIX, ScorerSettings, SettingsError, WebSettings, unknown_names
from tests.harness import ROOT, TOKEN

REVISION = "0e5e6aa7d6d750e2b1504ba11a8136cb58aeb3cd"


def web(**values: str) -> WebSettings:
    return WebSettings.from_env(
        {f"{PREFIX}API_TOKEN": TOKEN, **{PREFIX + name: value for name, value in values.items()}}
    )


def scorer(**values: str) -> ScorerSettings:
    return ScorerSettings.from_env({PREFIX + name: value for name, value in values.items()})


WEB_INTEGERS = ["MAX_DECISIONS", "MAX_BODY_BYTES", "MAX_QUEUE"]
NO_INTEGER = [
    "",
    " ",
    "0.5",
    "1.5",
    "8192.7",
    "1e3",
    "0x10",
    "1_000",
    " 5 ",
    "+5",
    "-1",
    "\u0661\u0662",
    "five",
    "5\n",
    "nan",
    "inf",
]


def test_the_contracts_defaults() -> None:
    found = web()
    assert (found.max_decisions, found.max_body_bytes, found.max_queue) == (64, 1 << 20, 32)
    model = scorer()
    assert str(model.checkpoint) == f"/hf/hub/models--internlm--Intern-Decision-4B/snapshots/{REVISION}"
    assert (model.device, model.vram_cap_gib, model.max_tokens, model.release_slack_mib) == ("cuda", None, 8192, 512)
    assert model.keep_vision is False
    assert model.engine == "intern"


@pytest.mark.parametrize("name", WEB_INTEGERS)
@pytest.mark.parametrize("value", [*NO_INTEGER, "0"])
def test_the_web_tiers_integers_must_be_whole_and_at_least_1(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{PREFIX}{name} "):
        web(**{name: value})


@pytest.mark.parametrize("value", [*NO_INTEGER, "0"])
def test_max_tokens_must_be_whole_and_at_least_1(value: str) -> None:
    with pytest.raises(SettingsError, match=f"{PREFIX}MAX_TOKENS "):
        scorer(MAX_TOKENS=value)


@pytest.mark.parametrize("value", NO_INTEGER)
def test_release_slack_mib_must_be_whole_and_at_least_0(value: str) -> None:
    assert scorer(RELEASE_SLACK_MIB="0").release_slack_mib == 0
    with pytest.raises(SettingsError, match=f"{PREFIX}RELEASE_SLACK_MIB "):
        scorer(RELEASE_SLACK_MIB=value)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "0.0", "-1", "", "16GB", "1e400", " 8", "+8", "infinity"])
def test_vram_cap_gib_must_be_finite_and_above_0(value: str) -> None:
    with pytest.raises(SettingsError, match=f"{PREFIX}VRAM_CAP_GIB "):
        scorer(VRAM_CAP_GIB=value)


@pytest.mark.parametrize(("value", "gib"), [("8", 8.0), ("10.5", 10.5), ("0.25", 0.25)])
def test_vram_cap_gib_is_taken(value: str, gib: float) -> None:
    assert scorer(VRAM_CAP_GIB=value).vram_cap_gib == gib


@pytest.mark.parametrize("value", ["yes", "true", "", "2", "01", "on"])
@pytest.mark.parametrize("name", ["KEEP_VISION"])
def test_keep_vision_is_0_or_1(name: str, value: str) -> None:
    assert (scorer(KEEP_VISION="0").keep_vision, scorer(KEEP_VISION="1").keep_vision) == (False, True)
    with pytest.raises(SettingsError, match=f"{PREFIX}{name} "):
        scorer(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEVICE", "gpu"),
        ("DEVICE", ""),
        ("DEVICE", "CPU"),
        ("ENGINE", ""),
        ("CHECKPOINT", ""),
        ("RUN_DIR", ""),
        ("LOG_FORMAT", "xml"),
        ("LOG_LEVEL", "LOUD"),
        ("HANG_S", "0"),
        ("HANG_S", "nan"),
        ("DRAIN_S", "-1"),
    ],
)
def test_the_scorers_other_settings_are_checked(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{PREFIX}{name} "):
        scorer(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SYSTEMONE_PROFILE", "openai"),
        ("SYSTEMONE_PROFILE", ""),
        ("STRICT_MODEL", "yes"),
        ("BIND", ""),
        ("WORKERS", "0"),
        ("WORKERS", "two"),
        ("THREADS", "0"),
        ("REQUEST_BUDGET_S", "0"),
        ("REQUEST_BUDGET_S", "inf"),
        ("BODY_DEADLINE_S", "nan"),
        ("NATIVE_MAX_OPTIONS", "0"),
        ("LOG_FORMAT", "xml"),
        ("LOG_LEVEL", "debug"),
        ("RUN_DIR", ""),
    ],
)
def test_the_web_tiers_other_settings_are_checked(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{PREFIX}{name} "):
        web(**{name: value})


def test_device_is_cuda_and_cpu_only_when_set_explicitly() -> None:
    assert scorer().device == "cuda"
    assert scorer(DEVICE="cpu").device == "cpu"


def test_a_worker_has_a_thread_for_every_slot_and_some_to_spare_for_health_and_429() -> None:
    assert web(MAX_QUEUE="10").threads > 10
    with pytest.raises(SettingsError, match=f"{PREFIX}THREADS "):
        web(MAX_QUEUE="10", THREADS="10")


def test_an_unknown_name_with_the_prefix_is_noticed() -> None:
    assert unknown_names({f"{PREFIX}MAX_TOKEN": "5", f"{PREFIX}MAX_TOKENS": "5", "OTHER": "1"}) == [
        f"{PREFIX}MAX_TOKEN"
    ]


def test_a_refusal_is_a_value_error() -> None:
    assert issubclass(SettingsError, ValueError)


def started(command: list[str], tmp_path: Path, **values: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o750)
    given: dict[str, Any] = {
        "API_TOKEN": TOKEN,
        "RUN_DIR": str(run_dir),
        "ENGINE": "fake",
        "BIND": "127.0.0.1:0",
        **values,
    }
    env |= {PREFIX + name: value for name, value in given.items()}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(("name", "value"), [("MAX_TOKENS", "8192.7"), ("VRAM_CAP_GIB", "nan"), ("ENGINE", "none")])
def test_the_scorer_process_refuses_to_start_naming_the_variable(tmp_path: Path, name: str, value: str) -> None:
    ended = started(["-m", "scorer", "serve"], tmp_path, **{name: value})
    assert ended.returncode == 78
    assert PREFIX + name in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("name", "value"), [("MAX_QUEUE", "0"), ("API_TOKEN", "x" * 31)])
def test_the_web_process_refuses_to_start_naming_the_variable(tmp_path: Path, name: str, value: str) -> None:
    ended = started(["-m", "gunicorn", "-c", "conf/gunicorn.conf.py", "web.wsgi:app"], tmp_path, **{name: value})
    assert ended.returncode != 0
    assert PREFIX + name in ended.stderr
    assert "x" * 31 not in ended.stderr
