"""One connection to the scorer: a socket, and what tells that the other end has gone."""

from __future__ import annotations

import contextlib
import math
import select
import struct
import time

import zmq

from shared.frames import DONTWAIT, receive
from web.errors import ApiError

__all__ = ["Connection"]

_CONNECT_S = 0.5
#: A frozen scorer answers no heartbeat (libzmq's I/O threads exchange them, so a long call does not matter): after
#: about this long a kept connection counts as lost.
_HEARTBEAT_S, _SILENCE_S = 1, 4
#: The number that a monitor's message begins with.
_EVENT = struct.Struct("=H")


class Connection:
    """A REQ socket, the monitor of its connection, and ``wakeups``, a poll over the descriptors of both. Connects on
    construction, and raises ApiError ``scorer_unavailable`` when nobody answers at the other end in time.

    A descriptor tells only of what comes after its socket had nothing to give (zmq_getsockopt(3), ZMQ_FD). So each is
    asked before anybody waits, the monitor here and before each job, the other by _await; zmq.Poller asks twice.

    ZMQ_IMMEDIATE is not used: with it libzmq drops what has arrived but was not yet read when the connection ends, so a
    thread that woke up late lost the last answer of a scorer that exits (50 of 50 here, none without it). The monitor
    tells when the two have shaken hands. A job sent just as its scorer dies may reach the next one, which refuses it by
    its boot id.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.socket = context.socket(zmq.REQ)
        self.socket.linger = 0
        self.socket.sndtimeo = int(1000 * _CONNECT_S)
        self.socket.heartbeat_ivl = 1000 * _HEARTBEAT_S
        self.socket.heartbeat_timeout = 1000 * _SILENCE_S
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self.monitor_fd = self.monitor.fileno()
        self.wakeups = select.poll()
        self.wakeups.register(self.socket.fileno(), select.POLLIN)
        self.wakeups.register(self.monitor_fd, select.POLLIN)
        self._lost = False
        self.socket.connect(endpoint)
        if not self._met() or self.lost():
            self.close()
            raise ApiError("scorer_unavailable", "the scorer is not running")

    def _met(self) -> bool:
        """Whether somebody at the other end speaks ZeroMQ: a frozen process's kernel takes connections too."""
        until = time.monotonic() + _CONNECT_S
        while self.monitor.poll(max(0, math.ceil(1000 * (until - time.monotonic())))):
            kind, _ = self.monitor.recv_multipart()
            if _EVENT.unpack_from(kind)[0] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return True
        return False

    def lost(self) -> bool:
        """Whether the scorer has gone since this connection was made."""
        with contextlib.suppress(zmq.Again):
            receive(self.monitor, DONTWAIT)
            self._lost = True  # of two events the first is over
        return self._lost

    def close(self) -> None:
        """Close all of it, without waiting."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
