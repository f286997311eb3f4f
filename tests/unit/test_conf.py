"""What conf/ holds agrees with the code and with itself (architecture.md §1.7, §1.13, §1.14, §6)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scorer.broker import EXIT_BROKEN, EXIT_DRAINED, EXIT_REFUSED, EXIT_RUNNING
from shared.settings import PREFIX, SETTINGS
from tests.harness import ROOT, free_port
from tests.process.units import SCORER_UNIT, WEB_UNIT, Unit, seconds

CONF = ROOT / "conf"
UNITS = [SCORER_UNIT, WEB_UNIT]
NGINX = (CONF / "nginx.conf").read_text()
DEFAULT = {s.name: float(s.default or 0) for s in SETTINGS if re.fullmatch(r"[0-9]+", s.default or "")}
each_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.path.stem)


def files() -> list[Path]:
    return sorted(path for path in CONF.iterdir() if path.is_file())


def nginx(name: str) -> str:
    """The value of a directive that stands in the file once."""
    found = re.findall(rf"(?m)^\s*{name} (.+?);", NGINX)
    assert len(found) == 1, (name, found)
    return str(found[0])


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_every_setting_named_in_conf_exists(path: Path) -> None:
    known = {setting.variable for setting in SETTINGS}
    named = set(re.findall(rf"{PREFIX}[A-Z_]+", path.read_text()))
    assert named <= known | {f"{PREFIX}_"}, named - known


def test_the_example_shows_defaults_and_only_settings() -> None:
    defaults = {setting.variable: setting.default for setting in SETTINGS}
    text = (CONF / "env.example").read_text()
    lines = [line.lstrip("#") for line in text.splitlines() if re.match(r"#?INTERN", line)]
    assert len(lines) > 5
    for line in lines:
        name, _, value = line.partition("=")
        if name != f"{PREFIX}VRAM_CAP_GIB":  # unset by default
            assert value == defaults[name], name


# -- the inequalities of architecture.md §6 ---


@pytest.fixture(scope="module")
def gunicorn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """What gunicorn itself reads in conf/gunicorn.conf.py, with default settings."""
    directory = tmp_path_factory.mktemp("run")
    directory.chmod(0o750)
    names = ["graceful_timeout", "keepalive", "limit_request_line", "timeout"]
    code = (
        "import sys\nfrom gunicorn.app.wsgiapp import WSGIApplication\n"
        "sys.argv = ['gunicorn', '-c', 'conf/gunicorn.conf.py', 'web.wsgi:app']\n"
        f"cfg = WSGIApplication().cfg\nprint(*(getattr(cfg, name) for name in {names}))"
    )
    env = {f"{PREFIX}API_TOKEN": "x" * 32, f"{PREFIX}RUN_DIR": str(directory)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return dict(zip(names, map(float, done.stdout.split()), strict=True))


def test_a_request_that_has_begun_may_end_before_any_supervisor_ends_it(gunicorn: dict[str, float]) -> None:
    """budget + body deadline < graceful_timeout < TimeoutStopSec."""
    longest = DEFAULT["REQUEST_BUDGET_S"] + DEFAULT["BODY_DEADLINE_S"]
    assert longest < gunicorn["graceful_timeout"] < seconds(WEB_UNIT.get("Service", "TimeoutStopSec"))


def test_the_applications_timeouts_come_before_the_proxys(gunicorn: dict[str, float]) -> None:
    longest = DEFAULT["REQUEST_BUDGET_S"] + DEFAULT["BODY_DEADLINE_S"]
    assert longest < seconds(nginx("proxy_read_timeout"))
    assert seconds(nginx("keepalive_timeout")) < gunicorn["keepalive"]
    assert gunicorn["timeout"] > gunicorn["graceful_timeout"]


def test_the_proxy_refuses_what_gunicorn_would(gunicorn: dict[str, float]) -> None:
    number, size = nginx("large_client_header_buffers").split()
    assert int(size.removesuffix("k")) * 1024 - len("\r\n") <= gunicorn["limit_request_line"]
    assert int(number) > 1


def test_the_proxys_body_limit_is_above_ours() -> None:
    assert int(nginx("client_max_body_size").removesuffix("m")) << 20 > DEFAULT["MAX_BODY_BYTES"]


def test_a_drain_may_end_before_systemd_ends_it() -> None:
    linger = 2
    assert DEFAULT["DRAIN_S"] + linger < seconds(SCORER_UNIT.get("Service", "TimeoutStopSec"))


def test_a_hang_is_longer_than_any_request_and_no_hang_to_the_watchdog() -> None:
    assert DEFAULT["REQUEST_BUDGET_S"] < DEFAULT["HANG_S"]
    # The loop turns twice a second and pings every 5 s at least.
    assert seconds(SCORER_UNIT.get("Service", "WatchdogSec")) >= 3 * 5
    # A load's first notice comes with the first turn of the loop; each puts the end 60 s off.
    assert seconds(SCORER_UNIT.get("Service", "TimeoutStartSec")) >= 60


# -- the units ---


@each_unit
def test_a_unit_restarts_what_failed_and_not_what_was_refused(unit: Unit) -> None:
    assert unit.get("Service", "Type") == "notify"
    assert unit.get("Service", "Restart") == "on-failure"
    never = {int(word) for word in unit.words("Service", "RestartPreventExitStatus")}
    assert EXIT_BROKEN not in never
    assert EXIT_DRAINED not in never
    assert EXIT_REFUSED in never
    assert (EXIT_RUNNING in never) is (unit is SCORER_UNIT)
    assert float(unit.get("Unit", "StartLimitBurst")) > 1
    # A start limit that the pauses alone would keep from ever being reached is none.
    burst = float(unit.get("Unit", "StartLimitBurst")) * float(unit.get("Service", "RestartSec"))
    assert burst < float(unit.get("Unit", "StartLimitIntervalSec"))


def test_the_web_tier_wants_the_scorer_and_lives_without_it() -> None:
    scorer = SCORER_UNIT.path.name
    assert scorer in WEB_UNIT.words("Unit", "Wants")
    assert scorer in WEB_UNIT.words("Unit", "After")
    for tie in ("Requires", "BindsTo", "Requisite", "PartOf"):
        for unit in UNITS:
            assert unit.all("Unit", tie) == []


def test_the_scorer_comes_first_where_both_want_a_core() -> None:
    assert int(SCORER_UNIT.get("Service", "CPUWeight")) > 100
    assert WEB_UNIT.all("Service", "CPUWeight") == []


def test_only_the_scorer_has_a_watchdog_because_gunicorn_sends_no_pings() -> None:
    assert SCORER_UNIT.all("Service", "WatchdogSec")
    assert WEB_UNIT.all("Service", "WatchdogSec") == []


@each_unit
def test_neither_unit_owns_the_run_directory(unit: Unit) -> None:
    """systemd removes a RuntimeDirectory when its unit stops, and with it the other tier's half."""
    assert unit.all("Service", "RuntimeDirectory") == []
    assert unit.all("Service", "RemoveIPC") == []
    default = next(setting.default for setting in SETTINGS if setting.name == "RUN_DIR")
    assert unit.get("Service", "ReadWritePaths") == unit.get("Unit", "AssertPathIsDirectory") == default
    rows = [line.split() for line in (CONF / "tmpfiles.conf").read_text().splitlines() if line and line[0] != "#"]
    user, group = unit.get("Service", "User"), unit.get("Service", "Group")
    assert rows == [["d", default, "0750", user, group, "-"]]


@each_unit
def test_a_unit_has_no_more_rights_than_it_needs(unit: Unit) -> None:
    expected = {
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "CapabilityBoundingSet": "",
        "IPAddressDeny": "any",
        "UMask": "0077",
        "LimitCORE": "0",
    }
    assert {name: unit.get("Service", name) for name in expected} == expected
    assert unit.all("Service", "IPAddressAllow") == ([] if unit is SCORER_UNIT else ["localhost"])
    assert ("AF_INET" in unit.words("Service", "RestrictAddressFamilies")) is (unit is WEB_UNIT)


def test_the_token_is_a_credential_of_the_web_tier_alone() -> None:
    assert WEB_UNIT.get("Service", "LoadCredential") == "token:/etc/intern-decision/token"
    assert WEB_UNIT.environment()[f"{PREFIX}API_TOKEN_FILE"] == "%d/token"
    assert SCORER_UNIT.all("Service", "LoadCredential") == []
    assert not any("API_TOKEN=" in path.read_text() for path in files() if path.suffix != ".py")


needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")


@needs_analyze
def test_systemd_finds_no_fault_in_the_units(tmp_path: Path) -> None:
    """With paths that exist here; and it does find the fault of a third one, so this test can fail."""
    copies = []
    for unit in UNITS:
        text = unit.path.read_text().replace("/opt/intern-decision/.venv/bin/python", sys.executable)
        copies.append(tmp_path / unit.path.name)
        copies[-1].write_text(text.replace("/opt/intern-decision", str(ROOT)))
    done = subprocess.run(["systemd-analyze", "verify", *map(str, copies)], capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "intern-decision" in line]
    assert (done.returncode, ours) == (0, []), done.stderr
    copies[0].write_text(copies[0].read_text().replace("WatchdogSec=30", "WatchdogSec=often"))
    done = subprocess.run(["systemd-analyze", "verify", str(copies[0])], capture_output=True, text=True, check=False)
    assert "Failed to parse" in done.stderr


def test_make_serve_checks_its_settings_before_anything_is_installed() -> None:
    """``-S`` leaves out every installed package: a fresh clone has none."""
    command = [sys.executable, "-S", "conf/serve.py", "--port", str(free_port()), "--engine", "sparrow", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
