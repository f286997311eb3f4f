"""Both units' own command lines and environments, run by hand as systemd would: their user's half is the test's, the
paths are a temporary prefix (architecture.md §1.14). What only systemd can do (sandbox, restarts) is not tried here."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import D1, ROOT, TOKEN, Pair, wait_for
from tests.process.support import NOISE, Background, slow
from tests.process.units import SCORER_UNIT, WEB_UNIT, Unit

pytestmark = pytest.mark.timeout(90)


class Machine(Pair):
    """A prefix with /etc/intern-decision and the run directory in it, and a stand-in for the service manager."""

    def __init__(self) -> None:
        super().__init__(start=False)
        self.etc = self.dir / "etc"
        self.etc.mkdir()
        (self.etc / "token").write_text(TOKEN + "\n")  # as `openssl rand -hex 32 > token` leaves it
        self.credentials = self.dir / "credentials"
        self.credentials.mkdir()
        (self.credentials / "token").write_bytes((self.etc / "token").read_bytes())
        text = (ROOT / "conf" / "env.example").read_text().replace("ENGINE=intern", "ENGINE=fake")
        run = self.dir / "run"
        run.mkdir(mode=0o750)  # by tmpfiles.d
        text += f"INTERN_DECISION_RUN_DIR={run}\nINTERN_DECISION_BIND=127.0.0.1:{self.port}\n"
        (self.etc / "env").write_text(text)
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(self.dir / "notify"))
        self.manager.settimeout(20)

    def start(self, unit: Unit) -> subprocess.Popen[bytes]:
        """As systemd starts it: nothing of this process's environment, the unit's and then the file's."""
        env = {"PATH": os.defpath, "NOTIFY_SOCKET": str(self.dir / "notify")}
        for name, value in unit.environment().items():
            env[name] = value.replace("%d", str(self.credentials)).replace("=/tmp", f"={self.dir}")
        if unit.all("Service", "LoadCredential"):
            env["CREDENTIALS_DIRECTORY"] = str(self.credentials)
        assert unit.get("Service", "EnvironmentFile") == "-/etc/intern-decision/env"
        for line in (self.etc / "env").read_text().splitlines():
            if match := re.fullmatch(r"(\w+)=(.*)", line):
                env[match[1]] = match[2]
        if usec := unit.all("Service", "WatchdogSec"):
            env["WATCHDOG_USEC"] = str(int(usec[0]) * 1_000_000)
        command = unit.command()
        assert command[0] == "/opt/intern-decision/.venv/bin/python"
        assert unit.get("Service", "WorkingDirectory") == "/opt/intern-decision"
        name = "scorer" if unit is SCORER_UNIT else "web"
        with self.logs[name].open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *command[1:]],
                cwd=ROOT,
                env=env,
                umask=int(unit.get("Service", "UMask"), 8),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_notified(self, line: str) -> None:
        while line not in self.manager.recv(4096).decode().split("\n"):
            pass

    def close(self) -> None:
        super().close()
        self.manager.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


def test_both_units_commands_serve_and_stop_with_the_environments_that_they_give(machine: Machine) -> None:
    machine.scorer = machine.start(SCORER_UNIT)
    machine.wait_notified("READY=1")
    machine.web = machine.start(WEB_UNIT)
    machine.wait_notified("READY=1")
    machine.wait_ready()
    assert machine.request("GET", "/ready")[0] == 200
    assert machine.post("/decide", D1)[0] == 200
    assert machine.post("/decide", D1, {"Authorization": "Bearer " + "x" * 32})[0] == 401
    for path in (machine.dir / "run").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path

    # A stop of both: in the reverse of After=, so the web tier first, with the scorer still there.
    job = Background(lambda: machine.post("/decide", slow(D1, 1.5)))
    wait_for(lambda: machine.request("GET", "/health")[2]["busy_seconds"] > 0, NOISE, "a job running")
    machine.web.send_signal(signal.SIGTERM)
    assert machine.web.wait(4 * NOISE) == 0
    assert job.result()[0] == 200
    machine.scorer.send_signal(signal.SIGTERM)
    assert machine.scorer.wait(2 * NOISE) == 0
    left = {path.name for path in (machine.dir / "run").iterdir()}
    assert left >= {"scorer.lock", "slots"}
    assert not [name for name in left if name.endswith(".sock")]


@pytest.mark.parametrize("unit", [SCORER_UNIT, WEB_UNIT], ids=["scorer", "web"])
def test_one_unit_stops_and_starts_again_beside_the_other(machine: Machine, unit: Unit) -> None:
    machine.scorer = machine.start(SCORER_UNIT)
    machine.web = machine.start(WEB_UNIT)
    machine.wait_ready()
    process = machine.scorer if unit is SCORER_UNIT else machine.web
    process.send_signal(signal.SIGTERM)
    assert process.wait(4 * NOISE) == 0
    assert (machine.dir / "run" / "slots").is_file()
    again = machine.start(unit)
    if unit is SCORER_UNIT:
        machine.scorer = again
    else:
        machine.web = again
    machine.wait_ready()
    assert machine.post("/decide", D1)[0] == 200


def test_a_token_in_the_env_file_beside_the_credential_is_refused_and_named(machine: Machine) -> None:
    with (machine.etc / "env").open("a") as file:
        file.write(f"INTERN_DECISION_API_TOKEN={TOKEN}\n")
    web = machine.start(WEB_UNIT)
    assert web.wait(2 * NOISE) == 78
    assert "INTERN_DECISION_API_TOKEN" in machine.log("web")
    assert TOKEN not in machine.log("web")


def test_the_units_name_no_path_that_the_install_steps_do_not_make() -> None:
    named = set()
    for unit in (SCORER_UNIT, WEB_UNIT):
        named |= set(re.findall(r"(?m)^[^#\n]*?(/(?:opt|etc|run|var|srv)[\w./-]*)", unit.path.read_text()))
    steps = (ROOT / "conf" / "README.md").read_text()
    for path in named:
        top = "/".join(Path(path).parts[:3])[1:]
        assert top in steps, path
