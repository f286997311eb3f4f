"""``python -m tests.intern.child DIRECTORY``: load the tiny checkpoint of that directory in a process of its own and
print, as JSON, the canary of each number type. Any attempt to use the network ends the process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from scorer.engines.intern import InternEngine
from scorer.engines.intern_tiny.build import build
from shared import jsonio
from shared.settings import ScorerSettings


def forbid_network(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook; nothing can take it out again, and nothing can catch what it does."""
    if event in {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}:
        sys.stderr.write(f"network: {event} {arguments[1:]}\n")
        sys.stderr.flush()
        sys.exit(99)


def main() -> None:
    """See the module's text."""
    sys.addaudithook(forbid_network)
    settings = ScorerSettings.from_env(build(Path(sys.argv[1])).settings())
    out = {}
    for dtype in ("float32", "bfloat16"):
        engine = InternEngine(settings, dtype=dtype)
        engine.load()
        out[dtype] = engine.canary().decode()
    sys.stdout.write(jsonio.dumps(out).decode())


if __name__ == "__main__":
    main()
