"""A server of our own for the acceptance list: the scorer and the web tier as two processes, on a free port of the
loopback and in a run directory of their own, with whatever engine the settings name.

Processes are all that this module knows of the web tier: nothing of it is imported.
"""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from scorer.bench.client import Client, Unreachable
from shared.settings import PREFIX

__all__ = ["OwnPair", "PairError", "why_not"]

_ROOT = Path(__file__).resolve().parents[2]
_CONF = _ROOT / "conf" / "gunicorn.conf.py"
#: Admitted at once: few, so that they are soon all taken.
MAX_QUEUE = 4
#: An engine may take its time to load; a process that has left is noticed at once.
_START_S = 600.0
_STOP_S = 30.0


class PairError(RuntimeError):
    """The two processes did not come up; the message is the last line that the one at fault wrote."""


def why_not() -> str:
    """Why no pair can be started here, or ""."""
    if not _CONF.is_file():
        return "conf/gunicorn.conf.py is not beside this package"
    missing = [name for name in ("flask", "gunicorn", "marshmallow") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


class OwnPair:
    """``with OwnPair() as pair``: a running server; ``client`` talks to it with its token. Both processes are ended
    with the block. Raises PairError."""

    def __init__(self) -> None:
        # Short, because a Unix socket's path may have 107 bytes, and private.
        self._dir = Path(tempfile.mkdtemp(prefix="ids-accept-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        token = secrets.token_urlsafe(32)
        token_file = self._dir / "token"
        token_file.touch(0o600)
        token_file.write_text(token, encoding="ascii")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.client = Client(self.url, token)
        # env(1) changes a few settings and passes the others on, so this module need not read them.
        self._env = ["env", "-u", f"{PREFIX}API_TOKEN", "-u", f"{PREFIX}THREADS"]
        changes = {
            "API_TOKEN_FILE": token_file,
            "RUN_DIR": self._dir / "run",
            "BIND": f"127.0.0.1:{port}",
            "WORKERS": 1,
            "MAX_QUEUE": MAX_QUEUE,
            "BODY_DEADLINE_S": 20,
        }
        self._env += [f"{PREFIX}{name}={value}" for name, value in changes.items()]
        if shutil.which("setpriv"):
            # However this process ends, its children do not outlive it.
            self._env += ["setpriv", "--pdeathsig", "TERM", "--"]

    def __enter__(self) -> OwnPair:
        try:
            self._start("scorer", ["-m", "scorer", "serve"])
            self._start("web", ["-m", "gunicorn", "-c", str(_CONF), "web.wsgi:app"])
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self, name: str, arguments: list[str]) -> None:
        with (self._dir / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [*self._env, sys.executable, *arguments], cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _wait(self) -> None:
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise PairError(f"{name} left with {process.returncode}: {self._last_line(name)}")
            try:
                if self.client.request("GET", "/health", retries=False, token=False).status == 200:
                    return
            except Unreachable:
                pass
            time.sleep(0.1)
        raise PairError(f"not ready after {_START_S:.0f} s: {self._last_line('scorer')}")

    def _last_line(self, name: str) -> str:
        lines = (self._dir / f"{name}.log").read_text("utf-8", "replace").splitlines()
        return lines[-1][:300] if lines else "it wrote nothing"

    def _stop(self) -> None:
        self.client.close()
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._dir, ignore_errors=True)
