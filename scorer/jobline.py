"""The scorer's line on a job: one a job, with the request's id, in the names of the web tier's access line."""

from __future__ import annotations

import logging
from typing import Any

from shared.wire import Reply

__all__ = ["write_line"]

_log = logging.getLogger("scorer.job")


def write_line(reply: Reply, *, request_id: str, **facts: Any) -> None:
    """Write it, once the reply is out. ``facts`` are numbers; the reply's message is not told: it is the caller's.

    It is written where the job ran: 12 us of this thread. A queue with a thread that writes would leave 7 of them here
    and cost 12 more there, under the same interpreter lock.
    """
    if _log.isEnabledFor(logging.INFO):
        fields = {
            "request_id": request_id,
            "status": reply.status,
            **facts,
            "input_tokens": reply.input_tokens,
            "queue_ms": reply.queue_ms,
            "score_ms": reply.score_ms,
            "boot_id": reply.boot_id,
        }
        _log.info("job", extra={"fields": fields})
