"""What `make serve` runs: it checks the settings, starts both tiers under supervisord, and prints a curl line.

    conf/serve.py --port PORT --engine ENGINE [--check]

Standard library and our own modules that need no more, so that ``--check`` works before anything is installed.
INTERN_DECISION_* variables are passed on; the port, the engine, the run directory (run/) and the token file (run/token)
have defaults of their own here.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import http.client
import os
import queue
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scorer.engines import ENGINES  # noqa: E402
from shared.rundir import RunDir, RunDirError  # noqa: E402
from shared.settings import PREFIX, ScorerSettings, SettingsError, WebSettings  # noqa: E402

HOST = "127.0.0.1"
#: Engines on a tiny random model, built in the run directory: the engine, and the module that builds the model.
TINY = {
    "intern-tiny": ("intern", "scorer.engines.intern_tiny.build"),
    "labels-tiny": ("labels", "scorer.engines.labels_tiny.build"),
}
#: Seconds until /health must be 200. These engines load gigabytes and warm up first.
PATIENCE_S = {"intern": 600, "labels": 600}
DEFAULT_PATIENCE_S = 60

EXAMPLE = {
    "id": "ticket-1",
    "state": "My parcel has not arrived and the tracking page shows nothing.",
    "question": "Which team should take this message?",
    "options": [
        {"id": "billing", "description": "payments, refunds and invoices"},
        {"id": "shipping", "description": "delivery and tracking of parcels"},
        {"id": "technical", "description": "errors and problems using the app"},
    ],
}


def fail(message: str) -> NoReturn:
    """End with a message and status 1."""
    sys.exit(f"make serve: {message}")


def say(message: str) -> None:
    """A line of our own among the tiers' log lines."""
    put(f"make serve: {message}\n".encode())


def put(chunk: bytes) -> None:
    """Write to standard error; that nobody reads it any more must stop neither us nor the tiers."""
    with contextlib.suppress(OSError):
        os.write(2, chunk)


def main() -> int:
    """The command line; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is something to stop, Ctrl-C just ends it
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--check", action="store_true", help="only check the settings and the port")
    args = parser.parse_args()

    env = environment(args.port, args.engine)
    scorer = checked(env)
    if args.check:
        check_port(int(args.port))
        return 0
    try:
        run_dir = RunDir(scorer.run_dir)
    except RunDirError as error:
        fail(str(error))
    lock = lock_run_dir(run_dir.path)
    check_port(int(args.port))
    token, is_new = token_for_curl(env, run_dir.path)
    if args.engine in TINY:
        env.update(tiny_checkpoint(TINY[args.engine][1], run_dir.path / args.engine))
    env["SERVE_PYTHON"] = sys.executable
    env.setdefault("SERVE_GUARD", "")
    status = Supervised(env, int(args.port), scorer.engine, token, is_new).run()
    os.close(lock)
    return status


def environment(port: str, engine: str) -> dict[str, str]:
    """The environment of both tiers."""
    if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
        fail(f"PORT must be a number from 1 to 65535, not {port!r}")
    env = dict(os.environ)
    if f"{PREFIX}BIND" in env:
        say(f"{PREFIX}BIND is not used here: listening on {HOST}, port PORT")
    env[f"{PREFIX}BIND"] = f"{HOST}:{port}"
    env[f"{PREFIX}ENGINE"] = TINY[engine][0] if engine in TINY else engine
    env.setdefault(f"{PREFIX}RUN_DIR", str(ROOT / "run"))
    env.setdefault(f"{PREFIX}LOG_FORMAT", "text")
    # A newcomer's misspelt model name is an error here rather than silently another model.
    env.setdefault(f"{PREFIX}STRICT_MODEL", "1")
    return env


def checked(env: dict[str, str]) -> ScorerSettings:
    """Check the settings of both tiers before anything is installed, made or started; returns the scorer's."""
    engine = env[f"{PREFIX}ENGINE"]
    if engine not in ENGINES:
        fail(f"ENGINE ({PREFIX}ENGINE) must be one of {', '.join(sorted([*ENGINES, *TINY]))}, not {engine!r}")
    probe = dict(env)
    if not has_token(env):
        probe[f"{PREFIX}API_TOKEN"] = "x" * 32  # ours is made later, and is good
    try:
        WebSettings.from_env(probe)
        return ScorerSettings.from_env(probe)
    except SettingsError as error:
        fail(str(error))


def tiny_checkpoint(module: str, directory: Path) -> dict[str, str]:
    """Build a tiny model, unless it is there; returns the settings that serve it."""
    command = [sys.executable, "-m", module, str(directory)]
    # In a process of its own, which takes torch's memory with it when it ends.
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        fail("the tiny checkpoint could not be built; the reason is above")
    return dict(line.split("=", 1) for line in built.stdout.splitlines())


def has_token(env: dict[str, str]) -> bool:
    """Whether the caller set a token."""
    return f"{PREFIX}API_TOKEN" in env or f"{PREFIX}API_TOKEN_FILE" in env


def check_port(port: int) -> None:
    """Fail now, plainly, when gunicorn could not listen on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            fail(f"port {port} cannot be used ({error.strerror}); choose another one with PORT=...")


def lock_run_dir(run_dir: Path) -> int:
    """Claim the run directory for one `make serve`; the descriptor holds the claim."""
    fd = os.open(run_dir / "serve.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"it is already running on {run_dir}; stop that one first")
    return fd


def token_for_curl(env: dict[str, str], run_dir: Path) -> tuple[str, bool]:
    """Make sure there is a token; returns it as the curl line shows it, and whether it was made just now.

    Only on the start that makes it is that the token itself; later a shell expression that reads it.
    """
    if f"{PREFIX}API_TOKEN" in env:
        return f"${PREFIX}API_TOKEN", False
    file = Path(env.setdefault(f"{PREFIX}API_TOKEN_FILE", str(run_dir / "token")))
    shown = f"$(cat {shlex.quote(os.path.relpath(file, ROOT) if file.is_relative_to(ROOT) else str(file))})"
    if file.exists() or file != run_dir / "token":
        return shown, False
    token = secrets.token_urlsafe(32)
    # Made under another name: a start that dies here leaves no half a token behind.
    half = file.with_suffix(".new")
    half.unlink(missing_ok=True)
    with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as stream:
        stream.write(token + "\n")
    half.rename(file)
    return token, True


class Supervised:
    """supervisord with both tiers, from its start to its end."""

    def __init__(self, env: dict[str, str], port: int, engine: str, token: str, token_is_new: bool) -> None:
        self.env, self.port, self.engine, self.token, self.token_is_new = env, port, engine, token, token_is_new
        #: Why it is over: a sentence, or "" for a stop that somebody asked for.
        self.over: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.started = threading.Event()
        self.last_spawn = 0.0

    def run(self) -> int:
        """Serve until a signal or a tier's end; returns the exit status."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self.over.put(""))
        log, tiers = os.pipe()
        # Each tier opens this end of the pipe for itself (conf/supervisord.conf): its lines would otherwise go through
        # supervisord, which took a twelfth of all CPU time at 32 callers to hand them on.
        self.env["SERVE_LOG"] = f"/proc/{os.getpid()}/fd/{tiers}"
        # In a session of its own, so that Ctrl-C reaches it only through us, once.
        process = subprocess.Popen(
            [
                *shlex.split(self.env["SERVE_GUARD"]),
                sys.executable,
                "-m",
                "supervisor.supervisord",
                "-c",
                str(ROOT / "conf" / "supervisord.conf"),
                *(["-u", "0"] if os.geteuid() == 0 else []),
            ],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=tiers,
            start_new_session=True,
        )
        assert process.stdout is not None
        supervisor = threading.Thread(target=self._read_supervisor, args=(process.stdout,))
        lines = threading.Thread(target=pass_on, args=(log,), daemon=True)
        supervisor.start()
        lines.start()

        try:
            reason = self._wait_until_healthy()
            if reason is None:
                self._announce()
                reason = self.over.get()
            say(f"{reason}; stopping" if reason else "stopping")
        finally:
            # A child that supervisord has just forked still has its signal handlers and loses a stop that comes now; it
            # would be waited for until its SIGKILL.
            self.started.wait(5)
            time.sleep(max(0.0, self.last_spawn + 0.3 - time.monotonic()))
            process.terminate()
            supervisor.join()
            process.wait()
            os.close(tiers)
            # To the last line, unless a tier has outlived a supervisord that was killed.
            lines.join(2)
        return 1 if reason else 0

    def _wait_until_healthy(self) -> str | None:
        """None once /health is 200, else the reason to stop."""
        patience = PATIENCE_S.get(self.engine, DEFAULT_PATIENCE_S)
        deadline = time.monotonic() + patience
        health = "nothing listens"
        while time.monotonic() < deadline:
            try:
                return self.over.get(timeout=0.05)
            except queue.Empty:
                pass
            connection = http.client.HTTPConnection(HOST, self.port, timeout=2)
            try:
                connection.request("GET", "/health")
                answer = connection.getresponse()
                health = f"{answer.status} {answer.read(300)!r}"
                if answer.status == 200:
                    return None
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
        return f"not healthy within {patience} s (GET /health: {health})"

    def _announce(self) -> None:
        """Print the curl line, to standard output: the log is on standard error, and must not hold the token."""
        from shared import jsonio  # needs a package that is not there yet when --check runs

        remark = (
            "\nThe token is kept in the run directory; this is the only time that it is shown.\n"
            if self.token_is_new
            else ""
        )
        print(
            f"\nReady: http://{HOST}:{self.port}, engine {self.engine}. Ctrl-C stops it. Try, from this directory:\n\n"
            f'curl -sS http://{HOST}:{self.port}/decide -H "Authorization: Bearer {self.token}" '
            f"-H 'Content-Type: application/json' -d '{jsonio.dumps(EXAMPLE).decode()}'\n{remark}",
            flush=True,
        )

    def _read_supervisor(self, stream: IO[bytes]) -> None:
        """Show supervisord's warnings, and notice when a tier has ended for good."""
        for raw in stream:
            line = raw.decode(errors="replace").rstrip()
            if match := re.search(r" exited: (\w+) \((.+); expected\)| gave up: (\w+) ", line):
                name, how = match[1] or match[3], match[2] or "it cannot be started"
                self.over.put(f"the {name} tier ended ({how}) and is not restarted; its reason is above")
            elif " INFO spawned: " in line:
                self.last_spawn = time.monotonic()
                if "'web'" in line:  # the last of the two
                    self.started.set()
            elif " INFO " not in line:
                say(line)
        self.started.set()
        self.over.put("supervisord has ended")


def pass_on(log: int) -> None:
    """Copy what the tiers write to standard error, all that has come in a hundredth of a second at once."""
    while chunk := os.read(log, 65536):
        put(chunk)
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
