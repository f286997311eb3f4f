"""A closed-loop load generator: N connections, each sends its next request when it has its answer. One process, one
epoll loop, keep-alive where the server offers it, a new connection where it does not."""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass, field

__all__ = ["Outcome", "request_bytes", "run"]


@dataclass
class Outcome:
    """What one run saw. ``latencies`` are seconds, in the order the answers came; ``in_time`` counts the answers with
    status 200 within ``seconds``, the length of the run; requests still open then are waited for, and ``elapsed`` is
    the time to the last answer."""

    seconds: float = 0.0
    elapsed: float = 0.0
    latencies: list[float] = field(default_factory=list)
    in_time: int = 0
    codes: dict[int, int] = field(default_factory=dict)
    broken: int = 0  # connections refused, reset, or closed before a whole answer

    @property
    def rate(self) -> float:
        """Answers with status 200 per second, while all connections asked."""
        return self.in_time / self.seconds

    @property
    def rate_to_the_last(self) -> float:
        """All answers with status 200 over the time to the last one: what a caller with that much work gets."""
        return self.codes.get(200, 0) / self.elapsed

    def percentile(self, share: float) -> float:
        """Latency in seconds below which ``share`` of the answers came."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def request_bytes(path: str, body: bytes, token: str | None) -> bytes:
    """A complete HTTP/1.1 POST."""
    lines = [f"POST {path} HTTP/1.1", "Host: bench", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class _Client:
    """One connection's state: what is left to send, the answer so far, and when its request was begun."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.unsent = b""
        self.received = b""
        self.began = 0.0


class _Run:
    """One run over one selector. Connecting, sending and receiving never block, so a server whose accept queue
    overflows delays only the connections it makes wait."""

    def __init__(self, port: int, request: bytes, end: float) -> None:
        self.end = end
        self.port = port
        self.request = request
        self.outcome = Outcome()
        self.selector = selectors.DefaultSelector()

    def begin(self, client: _Client) -> None:
        """Start the client's next request."""
        client.began = time.perf_counter()
        client.unsent, client.received = self.request, b""
        if client.socket is None:
            client.socket = socket.socket()
            client.socket.setblocking(False)
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.socket.connect_ex(("127.0.0.1", self.port))
            self.selector.register(client.socket, selectors.EVENT_WRITE, client)
        else:
            self.send(client)

    def step(self, client: _Client, events: int) -> bool:
        """Go on with the client; True when its request is over, answered or broken."""
        return self.send(client) if events & selectors.EVENT_WRITE else self.receive(client)

    def send(self, client: _Client) -> bool:
        assert client.socket is not None
        try:
            client.unsent = client.unsent[client.socket.send(client.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            return self.lose(client)
        events = selectors.EVENT_WRITE if client.unsent else selectors.EVENT_READ
        if self.selector.get_key(client.socket).events != events:
            self.selector.modify(client.socket, events, client)
        return False

    def receive(self, client: _Client) -> bool:
        assert client.socket is not None
        try:
            data = client.socket.recv(262144)
        except OSError:
            data = b""
        client.received += data
        head, separator, body = client.received.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if separator and lengths and len(body) >= int(lengths[0].partition(b":")[2]):
            code = int(head.split(b" ", 2)[1])
            self.outcome.codes[code] = self.outcome.codes.get(code, 0) + 1
            now = time.perf_counter()
            self.outcome.latencies.append(now - client.began)
            self.outcome.in_time += code == 200 and now < self.end
            if head.startswith(b"HTTP/1.0"):
                self.drop(client)
            return True
        return False if data else self.lose(client)

    def lose(self, client: _Client) -> bool:
        self.outcome.broken += 1
        self.drop(client)
        return True

    def drop(self, client: _Client) -> None:
        if client.socket is not None:
            self.selector.unregister(client.socket)
            client.socket.close()
            client.socket = None


def run(port: int, request: bytes, connections: int, seconds: float) -> Outcome:
    """Load ``127.0.0.1:port`` for ``seconds``, then let the last requests finish (30 s at most). A connection that
    breaks is made again and counted."""
    end = time.perf_counter() + seconds
    state = _Run(port, request, end)
    clients = [_Client() for _ in range(connections)]
    for client in clients:
        state.begin(client)
    waiting = len(clients)
    while waiting and time.perf_counter() < end + 30:
        for key, events in state.selector.select(1.0):
            if state.step(key.data, events):
                if time.perf_counter() < end:
                    state.begin(key.data)
                else:
                    waiting -= 1
    state.outcome.seconds = seconds
    state.outcome.elapsed = seconds + max(0.0, time.perf_counter() - end)
    for client in clients:
        state.drop(client)
    state.selector.close()
    return state.outcome
