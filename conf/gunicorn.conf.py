"""Gunicorn for the web tier: ``gunicorn -c conf/gunicorn.conf.py web.wsgi:app``.

Sizes follow the project's own settings (INTERN_DECISION_*), read by shared.settings alone. A bad one ends the start
with status 78 and a line that names the variable, as in the scorer.
"""

import contextlib
import logging
import math
import os
import select
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gunicorn import util
from gunicorn.glogging import Logger
from gunicorn.http import wsgi
from gunicorn.workers.gthread import ThreadWorker

# A config file may be named from anywhere; `web`, `scorer` and `shared` are beside its folder.
chdir = str(Path(__file__).resolve().parent.parent)
sys.path.insert(0, chdir)

from shared import logs  # noqa: E402
from shared.rundir import RunDir, RunDirError  # noqa: E402
from shared.settings import SettingsError, WebSettings  # noqa: E402
from shared.slots import SlotFileError, SlotTable  # noqa: E402
from web.errors import render_refusal  # noqa: E402
from web.memory import bound_allocator  # noqa: E402

logs.complete_streams()
bound_allocator()
try:
    _settings = WebSettings.from_env()
    # Each worker opens the files for itself. Looked at here first, because two workers that refuse one together make
    # gunicorn end with a traceback and a status that reads as worth a restart.
    _run_dir = RunDir(_settings.run_dir)
    SlotTable(_run_dir.slots, _settings.max_queue).close()
    if _settings.max_concurrent_decisions:
        SlotTable(_run_dir.decision_slots, _settings.max_concurrent_decisions, "MAX_CONCURRENT_DECISIONS").close()
except (SettingsError, RunDirError, SlotFileError, OSError) as error:
    logs.tell(f"web: {error}")
    sys.exit(78)

# prometheus-client looks at it when it is imported, here and in each worker, and then counts in files there.
os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(_run_dir.metrics)
from web.metric_files import MetricFiles  # noqa: E402

bind = _settings.bind
# Callers beyond the threads wait here for an early 429 rather than be refused a connection by the kernel, which cuts
# the number to net.core.somaxconn.
backlog = 1024

# Every waiting POST holds a thread, and a worker takes connections that it has no thread for while another one idles.
# So each worker alone has a thread for every slot, and some for the 429s and /health (THREADS >= MAX_QUEUE + 8).
workers = _settings.workers
threads = _settings.threads
worker_connections = 4 * threads

# No shared socket or lock may exist before the fork, and each worker checks its own start.
preload_app = False
# Recycling a worker resets its open connections.
max_requests = 0

# The watchdog of a worker's main loop, not of a request: only a loop that is stuck for good should be killed for it.
timeout = 120
# A request that has just begun may still use its whole body deadline and budget; 5 s to write the answer.
graceful_timeout = math.ceil(_settings.request_budget_s + _settings.body_deadline_s + 5)
# Above the 60 s of conf/nginx.conf: the side that opens connections must be the one that closes idle ones.
keepalive = 75

# The heartbeat file must not wait for a disk.
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
# Its thread exists before the fork, and nothing here uses it.
control_socket_disable = True
proc_name = "intern-decision-web"

# As much as conf/nginx.conf passes on, so that it is nginx who refuses, and knows the path.
limit_request_line = 8190

# No header of a proxy's is believed: nothing here makes URLs, and a SCRIPT_NAME would move the routes. With none to
# believe there is no reason to look every caller's address up, which is what "*" is for.
secure_scheme_headers = {}
forwarder_headers = ""
forwarded_allow_ips = "*"

# The application writes its own access line, without anything a caller said.
accesslog = None
errorlog = "-"
loglevel = _settings.log_level.lower()


#: By how much a worker's niceness is above the scorer's, when both are started alike: a sixth of its share of a core
#: that both want.
_NICE = 8

_log = logging.getLogger("web.access")

#: How long a thread waits for the next request of the connection it has just served.
_NEXT_REQUEST_MS = 5


class Worker(ThreadWorker):
    """gthread with two repairs, both of 27.0.1 and both seen in tests/process, two changes for speed, and its error
    pages in our form."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # At most a quarter of the threads may wait for a caller's next request, and an eighth for one to close: the
        # others must be free for new ones.
        self._waiting = threading.BoundedSemaphore(max(1, self.cfg.threads // 4))
        self._closing = threading.BoundedSemaphore(max(1, self.cfg.threads // 8))

    def accept(self, listener: Any) -> None:
        """Take a new connection, unless a worker with fewer of them is there to take it.

        The kernel wakes all workers and the quickest gets the connection, most often the same one again: of 32
        kept-alive connections one worker of two had 27, and its interpreter lock was then the limit of the service.
        """
        time.sleep(min(self.nr_conns, 20) * 50e-6)
        super().accept(listener)

    def handle(self, conn: Any) -> Any:
        """Serve a connection's requests while the next one comes at once, then give it back to the main loop."""
        again = self._handle_one(conn)
        while again is True and self._next_is_here(conn):
            again = self._handle_one(conn)
        return again

    def _next_is_here(self, conn: Any) -> bool:
        """Whether a caller goes on at once. Going through the main loop costs two thread switches a request."""
        busy = self.nr_conns - len(self.keepalived_conns) - len(self.pending_conns)
        if not self.alive or busy > self.cfg.threads or conn.parser.unreader.buf.tell():
            # Above all when there are more connections than threads: one that never pauses would keep others out.
            return False
        if not self._waiting.acquire(blocking=False):
            return False
        try:
            poll = select.poll()
            poll.register(conn.sock, select.POLLIN)
            return bool(poll.poll(_NEXT_REQUEST_MS))
        finally:
            self._waiting.release()

    def _handle_one(self, conn: Any) -> Any:
        """Serve one request, on a thread of the pool; a false answer closes the connection.

        Before it closes one, gunicorn waits up to 2 s for the client to close its side, and does so on the main loop,
        which accepts nothing meanwhile: 8 refused callers who stayed kept /health waiting for 6 s. Wait here instead.
        """
        again = super().handle(conn)
        if not again:
            graceful = self._closing.acquire(blocking=False)
            conn.close(graceful=graceful)
            if graceful:
                self._closing.release()
            conn.close = lambda graceful=False: None  # the main loop's turn comes next
        return again

    def handle_error(self, req: Any, client: Any, addr: Any, exc: Any) -> None:
        """Gunicorn's answer to what never reached the application, with its status and a body of our form. Gunicorn's
        own is an HTML page that quotes the request."""
        page = _Page()
        super().handle_error(req, page, addr, exc)
        if not page.data:
            return
        status_line = page.data.partition(b"\r\n")[0]
        headers, body = render_refusal(int(status_line.split()[1]), getattr(req, "path", ""))
        request_id = f"req_{os.urandom(16).hex()}"
        headers += [
            ("Connection", "close"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Request-ID", request_id),
            ("x-typesafe-request-id", request_id),
        ]
        _log.info("refused", extra={"fields": {"request_id": request_id, "status": int(status_line.split()[1])}})
        lines = [status_line, *(f"{name}: {value}".encode("ascii") for name, value in headers), b"", body]
        with contextlib.suppress(OSError):  # the caller has left
            util.write_nonblock(client, b"\r\n".join(lines))

    def is_parent_alive(self) -> bool:
        """Asked once a second, and not again once it said no; then end as after SIGTERM, and free the port.

        Left alone the worker goes on listening until its last kept-alive connection times out, 75 s here, and for so
        long the next master cannot start.
        """
        if super().is_parent_alive():
            return True
        self.alive = False
        self.set_accept_enabled(False)
        for listener in self.sockets:
            listener.close()
        return False


class _Page:
    """In place of a socket: keeps what is written to it."""

    data = b""

    def gettimeout(self) -> float:
        return 0.0

    def sendall(self, data: bytes) -> None:
        self.data += data


worker_class = Worker


class _Response(wsgi.Response):
    """Gunicorn's, but head and body leave together: a caller on a kept-alive connection wakes up once for an answer,
    not twice."""

    def write(self, arg: bytes) -> None:
        if self.headers_sent:
            super().write(arg)
            return
        page = _Page()
        sock, self.sock = self.sock, page
        try:
            super().write(arg)
        finally:
            self.sock = sock
        util.write(sock, page.data)


class ProjectLogger(Logger):
    """Gunicorn's own messages, in the form of every other log line and without what it quotes from a request."""

    def setup(self, cfg: Any) -> None:
        """Called at the start and at each reload."""
        super().setup(cfg)
        logs.configure(_settings.log_format, _settings.log_level)
        self.error_log.handlers.clear()
        self.error_log.propagate = True

    def debug(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Some of these hold what a connection had sent."""
        super().debug(_unquoted(msg) if args else msg, **kwargs)

    def warning(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """A refused request is quoted, in a message that is already put together."""
        if str(msg).startswith("Invalid request"):
            msg, args = "Invalid request: not HTTP as it must be", ()
        super().warning(msg, *args, **kwargs)

    def exception(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """The arguments are the method and the path."""
        super().exception(_unquoted(msg) if args else msg, **kwargs)


def _unquoted(message: Any) -> str:
    return str(message).partition(" %s")[0]


logger_class = ProjectLogger


def post_fork(server: Any, worker: Any) -> None:
    """Give way to the scorer where both want a core: there is one of it, and what it waits for, everybody waits for.

    On two cores with 32 callers and the embedded engine nine jobs always waited, yet its thread had a core only half of
    the time. The niceness made 28 % more answers a second than one of 2 did. A batch thread, when it is woken, does not
    push off the core who runs there: 11 % less time for a request at one caller, 2 % more answers at 32.
    """
    with contextlib.suppress(OSError):
        os.nice(_NICE)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def post_worker_init(worker: Any) -> None:
    """Let /ready know when this worker shuts down: it still answers on kept-alive connections then. And let the worker
    do less for each request."""
    from web.surfaces.ready import STOPPING  # the application is loaded: nothing is imported before the fork

    worker.wsgi.extensions[STOPPING] = lambda: not worker.alive
    # Here and not above, where a reload would put one on top of the other.
    wsgi.Response = _Response
    # Gunicorn looks its settings up through __getattr__, twenty times a request.
    vars(worker.cfg).update({name: setting.get() for name, setting in worker.cfg.settings.items()})


def pre_request(worker: Any, req: Any) -> None:
    """Keep gunicorn from answering ``Expect: 100-continue`` before the application has seen the request.

    It would ask for the body of a caller whom we refuse (401, 429). The application says 100 itself when it wants the
    body. The attribute is private: a newer gunicorn may not have it, and then asks early as it does by default.
    """
    if hasattr(req, "_expected_100_continue"):
        req._expected_100_continue = False


_metric_files = MetricFiles(_run_dir.metrics)
_dead: set[int] = set()


def when_ready(server: Any) -> None:
    """The address is ours and no worker is there yet: begin to count anew."""
    if _settings.metrics != "off":
        try:
            _metric_files.wipe()
        except OSError as error:
            server.log.error("No metrics: %s", error.strerror)


def child_exit(server: Any, worker: Any) -> None:
    """Keep what a dead worker counted, in a file that does not grow with every death."""
    if _settings.metrics == "off":
        return
    _dead.add(worker.pid)
    _dead.difference_update(server.WORKERS)  # a process id that is in use again goes on in its old file
    try:
        if _metric_files.absorb(_dead):
            _dead.clear()
    except Exception as error:
        # The disk is full, say: the files stay and are read as they are. Nothing here may end the master.
        server.log.error("The metrics of dead workers stay apart: %s", type(error).__name__)
