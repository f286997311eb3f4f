"""``make bench``: what the server adds to the engine, as ratios within one run (design §7). Nothing here asserts a
time.

Beside our two processes on the sparrow engine it measures, in the same run and in turns, the engine in this process,
bare Flask on the same gunicorn configuration, and the engine's own one-process server (``sparrow-decider serve``). The
load generator shares the machine with the servers, so absolute numbers are low; the ratios are what to read.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scorer.engines.sparrow import SparrowEngine
from shared.settings import PREFIX, ScorerSettings
from tests.bench.load import Outcome, request_bytes, run
from tests.harness import D1, ROOT, TOKEN, Pair, free_port, pair, wait_for
from web.jev import plain_question

QUESTIONS = {
    "team": {
        "type": "choice",
        "instructions": "Which team should handle this?",
        "criteria": {"billing": "Payments and refunds", "tech": "Bugs", "other": "Anything else"},
    },
    "urgent": {"type": "noul", "instructions": "Is it urgent?"},
    "mood": {"type": "score", "instructions": "How upset is the customer?", "criteria": ["calm", "annoyed", "angry"]},
}
_SENTENCE = "I was charged twice for order 1182 and want the extra payment back. "


def body_of(state_bytes: int) -> bytes:
    """A three-question ``/v1/systemone`` body with a state of about ``state_bytes``."""
    state = (_SENTENCE * (state_bytes // len(_SENTENCE) + 1))[:state_bytes]
    return json.dumps({"model": "jev-latest", "state": state, "questions": QUESTIONS}).encode()


SMALL, LARGE = body_of(60), body_of(4000)


class Other:
    """A server that is not ours, started by a command that ends with its port."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [*command, str(self.port)], cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(
            lambda: run(self.port, request_bytes("/v1/systemone", SMALL, None), 1, 0.01).codes.get(200),
            20,
            "the other server",
        )

    def close(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait(10)


def in_process(body: bytes) -> Callable[[], Any]:
    """One request's work on the engine itself: prepare and predict, a call per question, as the jev profile plans
    it."""
    engine = SparrowEngine(ScorerSettings.from_env({f"{PREFIX}ENGINE": "sparrow"}))
    done = threading.Thread(target=engine.load)
    done.start()
    done.join()
    request = json.loads(body)
    calls = [{"q": plain_question(question)} for question in request["questions"].values()]

    def once() -> None:
        for call in engine.prepare(request["state"], calls):
            engine.predict(call)
        engine.release()

    return once


def timed(once: Callable[[], Any], count: int) -> list[float]:
    """Seconds of ``count`` runs, one by one."""
    out = []
    for _ in range(count):
        start = time.perf_counter()
        once()
        out.append(time.perf_counter() - start)
    return out


def ms(seconds: float) -> str:
    """Seconds as milliseconds."""
    return f"{1000 * seconds:.3f} ms"


def added_latency(ours: Pair, bare: Other, rounds: int) -> None:
    """HTTP p50 on one connection, minus the same work in process; bare Flask beside it."""
    print("\nadded latency, one keep-alive connection, 3 questions")
    for name, body in (("small", SMALL), ("4 KB state", LARGE)):
        once = in_process(body)
        timed(once, 200)
        engine: list[float] = []
        http: list[float] = []
        flask: list[float] = []
        for _ in range(rounds):
            engine += timed(once, 200)
            http += run(ours.port, request_bytes("/v1/systemone", body, TOKEN), 1, 0.5).latencies
            flask += run(bare.port, request_bytes("/v1/systemone", body, None), 1, 0.5).latencies
        p50, inside, floor = map(statistics.median, (http, engine, flask))
        print(
            f"  {name:10s} ({len(body)} bytes)  HTTP p50 {ms(p50)}, in process {ms(inside)}, added {ms(p50 - inside)}; "
            f"bare Flask {ms(floor)}; added / bare Flask = {(p50 - inside) / floor:.2f}"
        )


def throughput(ours: Pair, theirs: Other, connections: list[int], seconds: float, rounds: int) -> None:
    """Answers per second and tail against the engine's own server, in turns."""
    print("\nthroughput and tail, ours / sparrow-decider serve")
    for name, body in (("small", SMALL), ("4 KB state", LARGE)):
        for count in connections:
            mine, other = Outcome(), Outcome()
            for _ in range(rounds):
                _merge(mine, run(ours.port, request_bytes("/v1/systemone", body, TOKEN), count, seconds))
                _merge(other, run(theirs.port, request_bytes("/v1/systemone", body, None), count, seconds))
            print(f"  {name:10s} {count:3d} connections: {mine.rate:7.0f} / {other.rate:5.0f} per s", end="")
            print(f" = {mine.rate / other.rate:4.1f} times", end="")
            print(f" ({mine.rate_to_the_last / other.rate_to_the_last:.1f} to the last answer)", end="")
            print(f"; p50 and p99/p50 {_tail(mine)} / {_tail(other)}", end="")
            print(f"; not 200: {_failures(mine)} / {_failures(other)}")


def memory(ours: Pair, requests: int) -> None:
    """Resident memory of every process before and after ``requests`` requests."""
    assert ours.scorer is not None
    pids = {"scorer": ours.scorer.pid} | {f"worker {i}": pid for i, pid in enumerate(ours.worker_pids())}
    request, sent = request_bytes("/v1/systemone", SMALL, TOKEN), 0
    run(ours.port, request, 32, 2)
    before = {name: _rss_kib(pid) for name, pid in pids.items()}
    while sent < requests:
        sent += len(run(ours.port, request, 32, 5).latencies)
    print(f"\nresident memory after {sent} requests, relative to after the first 2 s")
    for name, pid in pids.items():
        print(f"  {name:9s} {before[name] / 1024:6.1f} MiB, {_rss_kib(pid) / before[name]:.3f} times")


def health(rounds: int) -> None:
    """Latency of GET /health while nothing runs, while every slot waits for a slow model, and while as many callers
    more are refused as fast as they ask. The refused ones use all the CPU they get."""
    request = b"GET /health HTTP/1.1\r\nHost: bench\r\n\r\n"
    slow = json.dumps({**D1, "state": {"fake": {"sleep_s": 0.2}}}).encode()
    slots = 32
    with pair(MAX_QUEUE=str(slots)) as service:
        print("\n/health, one keep-alive connection")
        for name, connections in (("idle", 0), ("full queue", slots), ("full queue, storm of 429s", 2 * slots)):
            # A process of its own: a thread would share this one's interpreter lock.
            arguments = (service.port, request_bytes("/decide", slow, TOKEN), connections, 3.0 * rounds + 2)
            load = multiprocessing.get_context("spawn").Process(target=run, args=arguments)
            if connections:
                load.start()
                wait_for(lambda: service.slots_in_use() == slots, 10, "a full queue")
            seen = run(service.port, request, 1, 3.0 * rounds)
            if connections:
                load.join()
            p50, p99 = seen.percentile(0.5), seen.percentile(0.99)
            print(f"  {name:26s} p50 {ms(p50)}, p99 {ms(p99)}, {len(seen.latencies)} asked", end="")
            print(f"; not 200: {_failures(seen)}")


def _rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise ValueError(f"no VmRSS for {pid}")


def _merge(into: Outcome, more: Outcome) -> None:
    into.seconds += more.seconds
    into.elapsed += more.elapsed
    into.latencies += more.latencies
    into.broken += more.broken
    into.in_time += more.in_time
    for code, count in more.codes.items():
        into.codes[code] = into.codes.get(code, 0) + count


def _tail(outcome: Outcome) -> str:
    p50 = outcome.percentile(0.5)
    return f"{ms(p50)} {outcome.percentile(0.99) / p50:.1f}"


def _failures(outcome: Outcome) -> str:
    bad = {str(code): count for code, count in outcome.codes.items() if code != 200}
    if outcome.broken:
        bad["broken"] = outcome.broken
    return json.dumps(bad) if bad else "0"


def main() -> None:
    """Run all measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one load run")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each measurement")
    parser.add_argument("--connections", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument(
        "--requests", type=int, default=50_000, help="requests of the memory measurement; 0 leaves it out"
    )
    options = parser.parse_args()
    # Every connection must be admitted for a comparison with a server that refuses nobody.
    ours = Pair(ENGINE="sparrow", MAX_QUEUE=str(max(options.connections) + 8))
    theirs = Other([sys.executable, "-m", "sparrow_decider.cli", "serve", "--port"])
    bare = Other([sys.executable, "-m", "tests.bench.bare_flask"])
    try:
        added_latency(ours, bare, 3 * options.rounds)
        throughput(ours, theirs, options.connections, options.seconds, options.rounds)
        if options.requests:
            memory(ours, options.requests)
        health(options.rounds)
    finally:
        for server in (ours, theirs, bare):
            server.close()


if __name__ == "__main__":
    main()
