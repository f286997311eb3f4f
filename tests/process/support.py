"""What the process tests share: raw connections, bursts, a load whose answers prove whose they are, the invariants."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from shared.settings import PREFIX
from tests.harness import D1, ROOT, S1, SHARED1, TOKEN, Pair, strict_json, wait_for

#: The fake engine's default weights over D1's two options.
USUAL = [weight / sum((0.6, 0.3)) for weight in (0.6, 0.3)]
#: Bounds that the documents state are multiplied by this: the machine's cores are shared and noisy.
NOISE = 5

_serial = itertools.count()

GONE = (OSError, http.client.HTTPException)


def invariants(service: Pair, seconds: float = 15.0, clean_logs: bool = True) -> None:
    """The invariant set of architecture.md §4, after every test.

    /health 200, no slot taken, one D1 with the usual numbers, descriptors and threads no more than the full pools have,
    no traceback in any log.
    """
    wait_for(lambda: service.request("GET", "/health")[0] == 200, seconds, "/health 200")
    wait_for(lambda: service.slots_in_use() == 0, seconds, "every slot free")
    status, answer = service.post("/decide", D1)
    assert status == 200, answer
    assert answer["option_ids"] == ["billing", "tech"]
    assert answer["probabilities"] == USUAL
    assert service.slots_in_use() == 0
    wait_for(lambda: not swollen(service), 5, "descriptors and threads within their pools")
    # Only what was written since the last look: one test's traceback is not the next one's.
    looked = service.__dict__.setdefault("looked_at", {"scorer": 0, "web": 0})
    for name in ("scorer", "web"):
        new = service.log(name)[looked[name] :]
        looked[name] += len(new)
        told = [line for line in new.splitlines() if "Traceback" in line or "unexpected error" in line]
        assert not (told and clean_logs), told[:3]


def pids_by_role(service: Pair) -> dict[str, list[int]]:
    """The processes of both tiers that serve; the arbiter does not."""
    assert service.scorer is not None
    return {"web": service.worker_pids(), "scorer": [service.scorer.pid]}


def counts(pids: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Open descriptors and threads by process; one that has just ended is left out."""
    found = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found[pid] = (psutil.Process(pid).num_fds(), psutil.Process(pid).num_threads())
    return found


def swollen(service: Pair) -> dict[int, tuple[int, int]]:
    """The processes that have more descriptors or threads than their pools, all full, account for.

    A web thread keeps at most one connection to the scorer, of five descriptors; the scorer has one for each of those.
    Measured at rest: a web worker has 21 descriptors besides and 4 threads, the scorer 22 and 6.
    """
    most_queue = int(service.env.get(f"{PREFIX}MAX_QUEUE", "32"))
    threads = int(service.env.get(f"{PREFIX}THREADS", most_queue + 8))
    workers = int(service.env.get(f"{PREFIX}WORKERS", "2"))
    allowed = {"web": (40 + 5 * threads, threads + 8), "scorer": (40 + workers * threads, 10)}
    return {
        pid: now
        for role, pids in pids_by_role(service).items()
        for pid, now in counts(pids).items()
        if any(there > most for there, most in zip(now, allowed[role], strict=True))
    }


def warm(service: Pair, queue: int) -> None:
    """Every pool of threads and connections at its largest: a full house on both workers, several times."""
    for _ in range(6):
        at_once([lambda: service.post("/decide", slow(D1, 0.03))] * (queue + 8))
    wait_slots(service, 0)


def baseline(service: Pair) -> dict[str, tuple[int, int]]:
    """The most descriptors and threads that a process of each role has now."""
    found = {}
    for role, pids in pids_by_role(service).items():
        values = list(counts(pids).values())
        found[role] = (max(fds for fds, _ in values), max(threads for _, threads in values))
    return found


def settle(service: Pair, before: Mapping[str, tuple[int, int]], slack: int = 12) -> None:
    """Every process comes back to its role's :func:`baseline`; ``slack`` allows for connections that are kept for the
    next request."""

    def back() -> bool:
        now = baseline(service)
        return all(now[role][i] <= before[role][i] + slack for role in before for i in (0, 1))

    try:
        wait_for(back, 15)
    except AssertionError:
        raise AssertionError(f"before {before}, now {baseline(service)}") from None


def revive(service: Pair) -> None:
    """Start again what a failed test left dead or stuck, so that the next test fails or passes on its own."""
    if service.web is None or service.web.poll() is not None:
        service.start_web()
    if service.scorer is not None and service.scorer.poll() is None:
        try:
            service.wait_ready(5)
        except AssertionError:
            kill(service.scorer)
    if service.scorer is None or service.scorer.poll() is not None:
        service.start_scorer()
    service.wait_ready()


def restart_scorer(service: Pair) -> None:
    """Start the scorer and wait until it serves."""
    service.start_scorer()
    service.wait_ready()


def unavailable(result: Any) -> bool:
    """Whether a POST's status and body say 503 ``scorer_unavailable``."""
    return bool(result[0] == 503 and result[1]["error"]["code"] == "scorer_unavailable")


def records(service: Pair, name: str) -> list[dict[str, Any]]:
    """The JSON log records of a tier; lines that others wrote to its stderr are left out."""
    found = []
    for line in service.log(name).splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def health(service: Pair) -> dict[str, Any]:
    """The body of a /health that must be 200."""
    status, _, body = service.request("GET", "/health")
    assert status == 200, body
    return dict(body)


def slow(body: Mapping[str, Any], seconds: float, **script: Any) -> dict[str, Any]:
    """A body whose every call sleeps."""
    return {**body, "state": {"fake": {"sleep_s": seconds, **script}}}


def own_decision(**script: Any) -> dict[str, Any]:
    """A /decide body whose option ids occur in no other request."""
    serial = next(_serial)
    return {
        "id": f"own-{serial}",
        "state": {"fake": script} if script else f"state {serial}",
        "question": "Which?",
        "options": [{"id": f"own-{serial}-{side}", "description": side} for side in ("a", "b", "c")],
    }


def is_own(asked: Mapping[str, Any], answer: Mapping[str, Any]) -> bool:
    """Whether the answer is to this very decision."""
    ids = [option["id"] for option in asked["options"]]
    return (
        answer["id"] == asked["id"]
        and answer["option_ids"] == ids
        and answer["top"] in ids
        and list(answer["native"]["probabilities"]) == ids
    )


def at_once(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run all jobs on threads that start together; their results in order, an exception as itself."""
    barrier = threading.Barrier(len(jobs))
    results: list[Any] = [None] * len(jobs)

    def run(index: int) -> None:
        barrier.wait(30)
        try:
            results[index] = jobs[index]()
        except Exception as error:  # the caller looks at it
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive(), "a request hangs"
    return results


def timed_post(
    service: Pair, path: str, body: Any, headers: Mapping[str, str] | None = None, timeout: float = 60.0
) -> tuple[int, Any, float]:
    """POST; status, body and seconds."""
    started = time.monotonic()
    status, answer = service.post(path, body, headers, timeout)
    return status, answer, time.monotonic() - started


class Background:
    """One call on a thread; :meth:`result` gives its value or raises its exception."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._value = call()
        except Exception as error:  # raised again by result()
            self._error = error

    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, seconds: float = 60.0) -> Any:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"no result within {seconds} s"
        if self._error is not None:
            raise self._error
        return self._value


class Load:
    """``with Load(service, threads) as load``: threads that each POST one decision of their own after the other.

    ``outcomes`` counts statuses (with the error code, where there is one) and ``lost`` for a connection that broke;
    ``strangers`` holds every answer that was not the asker's own.
    """

    def __init__(self, service: Pair, threads: int = 6, sleep_s: float = 0.004) -> None:
        self._service = service
        self._sleep_s = sleep_s
        self._over = threading.Event()
        self._guard = threading.Lock()
        self.outcomes: Counter[str] = Counter()
        self.strangers: list[Any] = []
        self.errors: list[BaseException] = []
        self.slowest = 0.0
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def _run(self) -> None:
        while not self._over.is_set():
            asked = own_decision(sleep_s=self._sleep_s)
            started = time.monotonic()
            try:
                status, answer = self._service.post("/decide", asked)
                outcome = "200" if status == 200 else f"{status} {answer['error']['code']}"
                with self._guard:
                    if status == 200 and not is_own(asked, answer):
                        self.strangers.append((asked, answer))
            except GONE as error:
                outcome = "lost"
                self.errors.append(error)
            except BaseException as error:
                outcome = f"broken: {error!r}"
            with self._guard:
                self.outcomes[outcome] += 1
                self.slowest = max(self.slowest, time.monotonic() - started)
            if outcome != "200":
                self._over.wait(0.02)

    def answered(self, more: int = 1) -> None:
        """Wait until ``more`` further requests were answered with 200: the load is really running."""
        target = self.outcomes["200"] + more
        wait_for(lambda: self.outcomes["200"] >= target, 20, f"{more} more answers")

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.answered(len(self._threads))
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a request of the load hangs"


class HealthWatch:
    """``with HealthWatch(service) as watch``: polls /health; ``slowest`` in seconds, ``bad`` all that were not 200."""

    def __init__(self, service: Pair, every: float = 0.03) -> None:
        self._service = service
        self._every = every
        self._over = threading.Event()
        self.polls = 0
        self.slowest = 0.0
        self.bad: list[Any] = []
        self.most_slots = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(self._every):
            started = time.monotonic()
            try:
                status, _, body = self._service.request("GET", "/health")
                if status != 200:
                    self.bad.append((status, body))
                else:
                    self.most_slots = max(self.most_slots, body["slots_in_use"])
            except Exception as error:  # told by the test
                self.bad.append(error)
            self.polls += 1
            self.slowest = max(self.slowest, time.monotonic() - started)

    def __enter__(self) -> HealthWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)


class Wire:
    """A raw HTTP connection: send any bytes, read responses one by one, 100s included."""

    def __init__(self, service: Pair, timeout: float = 20.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", service.port), timeout=timeout)
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> Wire:
        self.socket.sendall(data)
        return self

    def response(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (lower-case names) and body of the next response. Raises EOFError at the end."""
        line = self._file.readline()
        if not line:
            raise EOFError("the server closed the connection")
        status = int(line.split()[1])
        headers: dict[str, str] = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, self._file.read(int(headers.get("content-length", "0")))

    def json(self) -> tuple[int, Any]:
        """Status and strictly parsed body of the next response, which must be JSON."""
        status, headers, body = self.response()
        assert headers.get("content-type") == "application/json", (status, headers, body[:200])
        return status, strict_json(body)

    def at_end(self) -> bool:
        """Whether the server closes the connection without another byte."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def reset(self) -> None:
        """Close with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def head(
    path: str = "/decide", length: int | str | None = None, *lines: str, token: str | None = TOKEN, method: str = "POST"
) -> bytes:
    """A request head; ``length`` is the Content-Length."""
    out = [f"{method} {path} HTTP/1.1", "Host: test"]
    if token is not None:
        out.append(f"Authorization: Bearer {token}")
    if length is not None:
        out.append(f"Content-Length: {length}")
    return "\r\n".join([*out, *lines, "", ""]).encode("latin-1")


def whole(body: Any, path: str = "/decide", *lines: str) -> bytes:
    """A complete request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, len(data), *lines) + data


def chunked(pieces: Iterable[bytes]) -> bytes:
    """The chunked form of a body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def padded(size: int, body: Mapping[str, Any] = D1) -> bytes:
    """A valid JSON body of exactly ``size`` bytes (white space after the value)."""
    data = json.dumps(body).encode()
    assert len(data) <= size
    return data + b" " * (size - len(data))


MIXED = (("/decide", D1), ("/decide/shared", SHARED1), ("/v1/systemone", S1))


def run_scorer(env: Mapping[str, str], seconds: float = 20.0) -> subprocess.CompletedProcess[str]:
    """A scorer that is expected to leave by itself."""
    return subprocess.run(
        [sys.executable, "-m", "scorer", "serve"],
        cwd=ROOT,
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def run_web(env: Mapping[str, str], seconds: float = 20.0) -> subprocess.CompletedProcess[str]:
    """A web tier that is expected to leave by itself."""
    return subprocess.run(
        [sys.executable, "-m", "gunicorn", "-c", "conf/gunicorn.conf.py", "web.wsgi:app"],
        cwd=ROOT,
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(process: subprocess.Popen[bytes] | None) -> None:
    """SIGKILL one process of ours and wait for it."""
    assert process is not None
    process.kill()
    process.wait(10)


@contextmanager
def frozen(process: subprocess.Popen[bytes] | None) -> Iterator[None]:
    """SIGSTOP for the length of the block."""
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", 5, "stopped")
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def starts(calls: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The begun calls of the fake engine's log."""
    return [line for line in calls if "start" in line]


def wait_running(service: Pair, seconds: float = 10.0) -> None:
    """Wait until the inference thread is at work."""
    wait_for(lambda: health(service)["busy_seconds"] > 0, seconds, "a job running")


def wait_queued(service: Pair, count: int, seconds: float = 10.0) -> None:
    """Wait until ``count`` jobs have reached the scorer and wait there: a slot is held some time before that."""
    wait_for(lambda: health(service)["queue_length"] == count, seconds, f"{count} jobs in the scorer's queue")


def wait_slots(service: Pair, count: int, seconds: float = 10.0) -> None:
    """Wait until exactly ``count`` slots are in use."""
    wait_for(lambda: service.slots_in_use() == count, seconds, f"{count} slots in use")


def spawn_web(service: Pair, config: Path) -> subprocess.Popen[bytes]:
    """The web tier with another configuration file."""
    with service.logs["web"].open("ab") as log:
        service.web = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "-c", str(config), "web.wsgi:app"],
            cwd=ROOT,
            env=service.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    return service.web


def wrapped_config(service: Pair, before: str) -> Path:
    """A gunicorn configuration that runs the lines ``before``, then the project's own."""
    path = service.dir / "gunicorn_test_conf.py"
    own = ROOT / "conf" / "gunicorn.conf.py"
    path.write_text(
        f"import os, sys\nsys.path.insert(0, {str(ROOT)!r})\n{before}\n__file__ = {str(own)!r}\n"
        f"exec(compile(open(__file__).read(), __file__, 'exec'))\n"
    )
    return path


def children(pid: int) -> list[int]:
    """Child process ids."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def worker_of(service: Pair, wire: Wire) -> int | None:
    """Process id of the worker that has accepted a connection; None while it waits in the backlog."""
    port = wire.socket.getsockname()[1]
    for pid in service.worker_pids():
        if any(c.raddr and c.raddr.port == port for c in psutil.Process(pid).net_connections("tcp")):
            return pid
    return None


@contextmanager
def spread(service: Pair, each: int) -> Iterator[dict[int, list[Wire]]]:
    """Open connections until each worker has ``each`` of them, by process id; all are closed at the end."""
    found: dict[int, list[Wire]] = {pid: [] for pid in service.worker_pids()}
    opened: list[Wire] = []
    try:
        for _ in range(300):
            opened.append(wire := Wire(service))
            # A request makes the worker take the connection up, and leaves it kept alive.
            wire.send(head("/health", method="GET")).response()
            pid = worker_of(service, wire)
            assert pid is not None
            if len(found[pid]) < each:
                found[pid].append(wire)
            else:
                opened.pop().close()
            if all(len(wires) == each for wires in found.values()):
                yield found
                return
        raise AssertionError("one worker takes every connection")
    finally:
        for wire in opened:
            wire.close()


def end(pids: Iterable[int]) -> None:
    """SIGKILL what is left of processes of ours."""
    for pid in pids:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
