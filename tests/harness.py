"""What the tests start: a scorer inside the test process, or the real pair of processes.

``Local``    broker and inference thread on threads of the test process with an engine object that the test holds, and
             the Flask application with its test client. Fast; no gunicorn, so no chunked bodies, early answers or
             disconnects.
``Pair``     a real ``python -m scorer serve`` and a real gunicorn, each killed by process id at the end.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flask.testing import FlaskClient

from scorer.broker import Broker
from scorer.engines.fake import FakeEngine
from shared.aliases import ALIASES
from shared.rundir import RunDir
from shared.settings import PREFIX, ScorerSettings, WebSettings
from web.app import create_app

ROOT = Path(__file__).resolve().parent.parent
TOKEN = "a-token-for-tests-0123456789abcdef"
BEARER = {"Authorization": f"Bearer {TOKEN}"}

D1: dict[str, Any] = {
    "id": "d1",
    "state": "Payouts failed three times this week.",
    "question": "Which team?",
    "options": [{"id": "billing", "description": "Payments"}, {"id": "tech", "description": "Bugs"}],
}
S1: dict[str, Any] = {
    "model": "jev-latest",
    "state": "Payouts failed.",
    "questions": {
        "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "Payments", "tech": "Bugs"}},
        "urgent": {"type": "noul", "instructions": "Urgent?"},
        "mood": {"type": "score", "instructions": "How upset?", "criteria": ["calm", "annoyed", "angry"]},
    },
}
SHARED1: dict[str, Any] = {
    "state": "Payouts failed.",
    "decisions": [{name: value for name, value in D1.items() if name != "state"}],
}


def decision(decision_id: str, option_ids: Sequence[str], **more: Any) -> dict[str, Any]:
    """A decision over options whose descriptions are ``desc <id>``."""
    options = [{"id": option, "description": f"desc {option}"} for option in option_ids]
    return {"id": decision_id, "question": f"question of {decision_id}?", "options": options, **more}


def strict_json(data: bytes) -> Any:
    """Parse JSON, refusing NaN and Infinity."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} in a response")

    return json.loads(data.decode("utf-8"), parse_constant=refuse)


def wait_for(condition: Callable[[], Any], seconds: float = 10.0, what: str = "the condition") -> Any:
    """Poll until ``condition()`` is true (an OSError counts as not yet); fail after ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            value = condition()
        except (OSError, http.client.HTTPException):
            value = None
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come true in {seconds} s")


def short_dir() -> Path:
    """A new private directory with a short path, since a Unix socket's may have 107 bytes; gone when the tests end."""
    path = Path(tempfile.mkdtemp(prefix="ids-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


class RecordingEngine(FakeEngine):
    """The fake engine, keeping what it was asked: ``calls`` has one ``{"state", "questions"}`` a predicted call."""

    def __init__(self, settings: ScorerSettings) -> None:
        super().__init__(settings)
        self.calls: list[dict[str, Any]] = []
        self.threads: set[int] = set()
        self.released = 0

    def load(self) -> None:
        super().load()
        self.threads.add(threading.get_ident())

    def predict(self, call: Any) -> Any:
        _, state, questions, _ = call.payload
        self.calls.append({"state": state, "questions": questions})
        self.threads.add(threading.get_ident())
        return super().predict(call)

    def release(self) -> None:
        self.released += 1


class _Client(FlaskClient):
    """Closes a response once it is read, as every server does, and not when it happens to be collected."""

    def open(self, *args: Any, **options: Any) -> Any:
        return super().open(*args, **{"buffered": True, **options})


class Local:
    """Both tiers inside the test process. ``engine`` is the engine object; ``client`` the Flask test client."""

    def __init__(self, engine: Callable[[ScorerSettings], Any] = RecordingEngine, **settings: str) -> None:
        self.dir = short_dir()
        env = {f"{PREFIX}{name}": value for name, value in settings.items()}
        env |= {f"{PREFIX}RUN_DIR": str(self.dir), f"{PREFIX}ENGINE": "fake"}
        self.scorer_settings = ScorerSettings.from_env(env)
        self.web_settings = WebSettings.from_env({f"{PREFIX}API_TOKEN": TOKEN, **env})
        self.engine = engine(self.scorer_settings)
        self.broker = Broker(self.scorer_settings, RunDir(self.dir), self.engine)
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.app = create_app(self.web_settings)
        self.app.test_client_class = _Client
        self.client = self.app.test_client()
        wait_for(lambda: self.client.get("/health").status_code == 200, what="ready")

    def _run(self) -> None:
        self.exit_code = self.broker.run()

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """POST a JSON value, or raw bytes; status and strictly parsed body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = self.client.post(path, data=data, headers=dict(BEARER if headers is None else headers))
        assert response.mimetype == "application/json", response.data
        return response.status_code, strict_json(response.data)

    def close(self) -> None:
        """Drain the scorer, wait for it, and close what the application holds."""
        self.broker.stop()
        self._thread.join(10)
        services = self.app.extensions["decision"]
        services.scorer.close()
        services.slots.close()


class Pair:
    """A real scorer process and a real gunicorn, on a free port of 127.0.0.1."""

    def __init__(self, start: bool = True, **settings: str) -> None:
        self.dir = short_dir()
        self.port = free_port()
        strange = {alias.variable for alias in ALIASES}
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith(PREFIX) and name not in strange
        }
        self.env |= {
            f"{PREFIX}{name}": value
            for name, value in {
                "API_TOKEN": TOKEN,
                "ENGINE": "fake",
                "RUN_DIR": str(self.dir),
                "BIND": f"127.0.0.1:{self.port}",
                "LOG_LEVEL": "INFO",
                **settings,
            }.items()
        }
        self.scorer: subprocess.Popen[bytes] | None = None
        self.web: subprocess.Popen[bytes] | None = None
        self.logs = {name: self.dir / f"{name}.log" for name in ("scorer", "web")}
        if start:
            self.start_scorer()
            self.start_web()
            self.wait_ready()

    def start_scorer(self) -> subprocess.Popen[bytes]:
        """Start (or start again) the scorer; its stderr is appended to ``logs["scorer"]``."""
        self.scorer = self._spawn("scorer", [sys.executable, "-m", "scorer", "serve"])
        return self.scorer

    def start_web(self) -> subprocess.Popen[bytes]:
        """Start gunicorn with the project's own configuration."""
        self.web = self._spawn("web", [sys.executable, "-m", "gunicorn", "-c", "conf/gunicorn.conf.py", "web.wsgi:app"])
        return self.web

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with self.logs[name].open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_ready(self, seconds: float = 20.0) -> None:
        """Wait until /health is 200 and every worker is there: the first can answer before the last is forked."""
        workers = int(self.env.get(f"{PREFIX}WORKERS", "2"))
        wait_for(lambda: self.request("GET", "/health")[0] == 200, seconds, "ready")
        if self.web is not None:
            wait_for(lambda: len(self.worker_pids()) >= workers, seconds, "all workers")

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, timeout: float = 30.0
    ) -> tuple[int, dict[str, str], Any]:
        """One request on a connection of its own: status, headers (lower-case names), strictly parsed body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, dict(BEARER if headers is None else headers))
            response = connection.getresponse()
            text = response.read()
            found = {name.lower(): value for name, value in response.getheaders()}
            assert found.get("content-type") == "application/json", (response.status, text[:200])
            return response.status, found, strict_json(text)
        finally:
            connection.close()

    def post(
        self, path: str, body: Any, headers: Mapping[str, str] | None = None, timeout: float = 30.0
    ) -> tuple[int, Any]:
        """POST with the bearer; status and body."""
        status, _, parsed = self.request("POST", path, body, headers, timeout)
        return status, parsed

    def raw(self, data: bytes, timeout: float = 10.0) -> bytes:
        """Send bytes on a fresh connection and read until the other side closes or ``timeout`` passes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(data)
            received = b""
            try:
                while chunk := connection.recv(65536):
                    received += chunk
            except TimeoutError:
                pass
            return received

    def script(self, **script: Any) -> None:
        """Set the fake engine's script file (see scorer/engines/fake.py)."""
        path = self.dir / "fake.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(script))
        part.rename(path)

    def record_calls(self) -> Callable[[], list[dict[str, Any]]]:
        """Have the fake engine log its calls; the returned function reads the log."""
        path = self.dir / "fake_calls.jsonl"
        path.touch()
        return lambda: [json.loads(line) for line in path.read_text().splitlines()]

    def worker_pids(self) -> list[int]:
        """Process ids of the gunicorn workers."""
        assert self.web is not None
        task = Path(f"/proc/{self.web.pid}/task/{self.web.pid}/children")
        return [int(pid) for pid in task.read_text().split()]

    def slots_in_use(self) -> int:
        """Slots held or running, as /health counts them."""
        return int(self.request("GET", "/health")[2]["slots_in_use"])

    def log(self, name: str) -> str:
        """Everything that tier has written."""
        return self.logs[name].read_text(errors="replace")

    def close(self) -> None:
        """Stop both: politely, then by force."""
        for process in (self.web, self.scorer):
            if process is None or process.poll() is not None:
                continue
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)


@contextmanager
def pair(start: bool = True, **settings: str) -> Any:
    """A :class:`Pair` for one ``with`` block."""
    service = Pair(start, **settings)
    try:
        yield service
    except BaseException:
        for name, path in service.logs.items():
            if path.exists():  # pytest shows it beside the failure
                print(f"-- the end of the {name} log --\n{service.log(name)[-5000:]}")
        raise
    finally:
        service.close()


def free_port() -> int:
    """A port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
