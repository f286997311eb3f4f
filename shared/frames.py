"""Sending and receiving whole ZeroMQ messages, frame by frame.

pyzmq's own ``recv_multipart`` asks the socket for an option after every frame, and each asking makes an enum: at a few
hundred microseconds a request that was a tenth of the scorer's time. A frame knows by itself whether another follows.

The sockets are the caller's; this module needs no ZeroMQ of its own, only a few numbers of libzmq's interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["DONTWAIT", "readable", "receive", "send"]

DONTWAIT = 1
_SNDMORE = 2
_POLLIN = 1
_EVENTS = 15


def readable(socket: Any) -> bool:
    """Whether a whole message is there. As long as there is none, the socket's descriptor tells of the next one; once
    something was received or sent since, it may not, and this must be asked again (zmq_getsockopt(3), ZMQ_FD)."""
    return bool(socket.getsockopt(_EVENTS) & _POLLIN)


def receive(socket: Any, flags: int = 0) -> list[Any]:
    """One whole message as ``zmq.Frame`` objects, not copied. With ``flags`` DONTWAIT raises zmq.Again when there is
    none yet; the frames of a message arrive together, so only the first is waited for."""
    frame = socket.recv(flags, copy=False)
    frames = [frame]
    while frame.more:
        frame = socket.recv(copy=False)
        frames.append(frame)
    return frames


def send(socket: Any, frames: Sequence[Any], flags: int = 0) -> None:
    """Send a whole message of bytes and ``zmq.Frame`` objects. Raises what the socket raises, before the first
    frame."""
    for frame in frames[:-1]:
        socket.send(frame, flags | _SNDMORE, copy=False)
    socket.send(frames[-1], flags, copy=False)
