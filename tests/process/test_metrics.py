"""/metrics, /health and the log lines of real processes: sums over the workers, deaths, restarts, a full queue
(trouble.md rank 36; architecture.md §1.15)."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import BEARER, D1, S1, SHARED1, Pair, pair, wait_for
from tests.process.support import (
    GONE,
    Background,
    Load,
    at_once,
    head,
    health,
    invariants,
    kill,
    records,
    run_web,
    slow,
    spread,
    wait_queued,
    wait_slots,
    whole,
)
from tests.unit.test_metrics import samples, value

pytestmark = pytest.mark.timeout(90)

QUEUE = 8


@pytest.fixture(scope="module")
def service() -> Iterator[Pair]:
    with pair(MAX_QUEUE=str(QUEUE), WORKERS="2") as running:
        yield running


def scrape(service: Pair, timeout: float = 20.0) -> str:
    """The text of a /metrics that must be 200."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=timeout)
    try:
        connection.request("GET", "/metrics", headers=BEARER)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, text
        assert answer.getheader("content-type") == "text/plain; version=0.0.4; charset=utf-8"
        return text
    finally:
        connection.close()


def decided(text: str) -> float:
    """Answers of /decide so far."""
    labels = (("code", "ok"), ("route", "/decide"), ("status", "200"))
    return samples(text).get(("http_requests_total", labels), 0.0)


def settled(service: Pair, expected: float) -> str:
    """A scrape with that many answers: each is counted just after its caller has it."""
    wait_for(lambda: decided(scrape(service)) >= expected, 10, f"{expected} counted")
    text = scrape(service)
    assert decided(text) == expected
    return text


def test_every_worker_tells_the_sum_over_all_workers(service: Pair) -> None:
    before = decided(scrape(service))
    with spread(service, 2) as wires:
        assert len(wires) == 2
        for own in wires.values():
            for wire in own:
                for _ in range(5):
                    assert wire.send(whole(D1)).response()[0] == 200
        settled(service, before + 20)
        for own in wires.values():
            for wire in own:
                status, _, body = wire.send(head("/metrics", method="GET")).response()
                assert status == 200
                assert decided(body.decode()) == before + 20
    invariants(service)


def test_what_requests_asked_is_summed_exactly(service: Pair) -> None:
    names = ("request_calls", "request_questions", "request_input_tokens", "queue_seconds", "score_seconds")
    labels = (("route", "/v1/systemone"),)
    before = samples(scrape(service))
    seen = len(records(service, "web"))
    jobs = 8
    at_once([lambda: service.post("/v1/systemone", S1)] * jobs)
    at_once([lambda: service.post("/decide/shared", SHARED1)] * jobs)

    def more(name: str) -> float:
        return samples(scrape(service)).get((name, labels), 0.0) - before.get((name, labels), 0.0)

    wait_for(lambda: more("request_calls_count") == jobs, 10)
    assert [more(f"{name}_count") for name in names] == [jobs] * 5
    assert more("request_calls_sum") == more("request_questions_sum") == 3 * jobs
    told = [record for record in records(service, "web")[seen:] if record.get("route") == "/v1/systemone"]
    assert len(told) == jobs
    assert more("request_input_tokens_sum") == sum(record["input_tokens"] for record in told) > 0
    for name in ("queue", "score"):
        assert more(f"{name}_seconds_sum") == pytest.approx(sum(record[f"{name}_ms"] for record in told) / 1000)
    assert value(scrape(service), "scorer_busy_seconds_total") > 0


def test_counts_survive_the_death_of_workers_and_never_go_down(service: Pair) -> None:
    directory = service.dir / "metrics"
    sent = decided(scrape(service))
    for _ in range(6):
        assert service.post("/decide", D1)[0] == 200
        sent += 1
        settled(service, sent)
        workers = service.worker_pids()
        os.kill(workers[0], signal.SIGKILL)
        last = sent
        while set(service.worker_pids()) == set(workers) or len(service.worker_pids()) < 2:
            try:
                now = decided(scrape(service))
            except GONE:  # the scrape itself was on the worker that died
                continue
            assert now >= last
            last = now
            time.sleep(0.01)
        settled(service, sent)
    wait_for(lambda: len(list(directory.glob("*.db"))) == 6, 10, "two files a worker, and two for the dead")
    invariants(service)


def test_a_worker_killed_in_the_middle_of_requests_leaves_no_slot_in_use(service: Pair) -> None:
    doomed = [Background(lambda: service.post("/decide", slow(D1, 0.5))) for _ in range(4)]
    wait_slots(service, 4)
    assert value(scrape(service), "slots_in_use") == 4
    for pid in service.worker_pids():
        os.kill(pid, signal.SIGKILL)
    for one in doomed:
        with pytest.raises(GONE):
            one.result()
    service.wait_ready()
    wait_slots(service, 0)
    assert value(scrape(service), "slots_in_use") == 0
    invariants(service)


def test_scrapes_are_200_while_requests_run_and_workers_die(service: Pair) -> None:
    over = threading.Event()
    bad: list[Any] = []
    done = [0]

    def scraping() -> None:
        last = 0.0
        while not over.is_set():
            try:
                now = decided(scrape(service))
                done[0] += 1
                if now < last:
                    bad.append((last, now))
                last = now
            except GONE:
                continue
            except BaseException as error:
                bad.append(error)

    with Load(service, 3):
        threads = [threading.Thread(target=scraping, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            workers = service.worker_pids()
            os.kill(workers[0], signal.SIGKILL)
            wait_for(lambda old=workers: set(service.worker_pids()) != set(old), 10)
            target = done[0] + 5
            wait_for(lambda least=target: done[0] >= least, 20, "five more scrapes")
        over.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert bad == []
    invariants(service, clean_logs=False)


def test_the_scorers_numbers_go_with_it_and_the_scrape_stays_200(service: Pair) -> None:
    body = {**D1, "state": {"fake": {"error": ["oom", "x"]}}}
    before = value(scrape(service), "scorer_jobs_total", status="out_of_memory")
    assert service.post("/decide", body)[0] == 503
    text = scrape(service)
    assert value(text, "scorer_jobs_total", status="out_of_memory") == before + 1
    assert value(text, "scorer_up") == value(text, "scorer_ready") == 1
    kill(service.scorer)
    text = scrape(service)
    assert value(text, "scorer_up") == 0
    assert [name for name, _ in samples(text) if name.startswith("scorer") and name != "scorer_up"] == []
    answered = decided(text)
    service.start_scorer()
    service.wait_ready()
    text = scrape(service)
    assert value(text, "scorer_up") == 1
    assert value(text, "scorer_jobs_total", status="out_of_memory") == 0
    assert decided(text) == answered
    invariants(service)


def test_a_start_that_fails_leaves_the_counts_of_the_service_that_runs(service: Pair) -> None:
    answered = decided(scrape(service))
    assert answered
    assert run_web(service.env, 30).returncode != 0
    assert decided(scrape(service)) == answered


def test_a_new_service_counts_from_0(service: Pair) -> None:
    service.post("/decide", D1)
    assert service.web is not None
    service.web.terminate()
    service.web.wait(30)
    service.start_web()
    service.wait_ready()
    assert decided(scrape(service)) == 0
    settled(service, 0)


def test_a_directory_that_cannot_be_used_costs_the_metrics_and_not_the_service() -> None:
    with pair(start=False) as running:
        (running.dir / "metrics").write_text("not a directory")
        running.start_scorer()
        running.start_web()
        running.wait_ready()
        assert running.post("/decide", D1)[0] == 200
        assert running.request("GET", "/metrics")[0] == 404
        assert "no metrics in this worker" in running.log("web")


# -- /health at a full queue ---


def test_health_answers_while_every_slot_waits_and_more_are_refused(service: Pair) -> None:
    """design §1: /health never waits for a call. The bound is that of a hang: the queue needs QUEUE times as long."""
    waiting = [Background(lambda: service.post("/decide", slow(D1, 0.7))) for _ in range(QUEUE)]
    wait_queued(service, QUEUE - 1)
    pushing = [Background(lambda: service.post("/decide", D1)) for _ in range(3 * QUEUE)]
    for _ in range(20):
        started = time.monotonic()
        assert health(service)["slots_in_use"] == QUEUE
        assert time.monotonic() - started < 5
    assert value(scrape(service), "slots_in_use") > 0
    assert {one.result()[0] for one in pushing} <= {200, 429}
    assert [one.result()[0] for one in waiting] == [200] * QUEUE
    invariants(service)


# -- the lines of both tiers ---


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_each_tier_writes_one_line_a_request_with_its_id(log_format: str) -> None:
    bodies = {
        "fine": (200, "ok", D1),
        "fails": (500, "failed", {**D1, "state": {"fake": {"error": ["runtime", "x"]}}}),
        "no-room": (503, "out_of_memory", {**D1, "state": {"fake": {"error": ["oom", "x"]}}}),
        "too-long": (422, "invalid", {**D1, "state": {"fake": {"prepare_error": ["value", "x"]}}}),
    }
    with pair(LOG_FORMAT=log_format) as running:
        for name, (status, _, body) in bodies.items():
            assert running.post("/decide", body, {**BEARER, "X-Request-ID": f"id-{name}"})[0] == status
        running.post("/decide", b"{", {**BEARER, "X-Request-ID": "id-bad"})
        running.request("GET", "/nope", None, {**BEARER, "X-Request-ID": "id-nowhere"})
        wait_for(lambda: "id-nowhere" in running.log("web"), 5)
        for name, (status, outcome, _) in bodies.items():
            (web,) = lines(running, "web", "web.access", f"id-{name}")
            (job,) = lines(running, "scorer", "scorer.job", f"id-{name}")
            assert field(web, "status") == str(status)
            assert field(job, "status") == outcome
            shared_names = ("calls", "questions", "input_tokens", "queue_ms", "score_ms", "boot_id", "slot")
            if status == 200:
                assert [field(web, name) for name in shared_names] == [field(job, name) for name in shared_names]
        for name in ("bad", "nowhere"):
            assert len(lines(running, "web", "web.access", f"id-{name}")) == 1
            assert lines(running, "scorer", "", f"id-{name}") == []


def test_a_job_that_the_scorer_refuses_has_its_line_too() -> None:
    with pair() as running:
        assert running.scorer is not None
        busy = Background(lambda: running.post("/decide", slow(D1, 0.6)))
        wait_for(lambda: health(running)["busy_seconds"] > 0, 5)
        running.scorer.terminate()
        wait_for(lambda: running.request("GET", "/health")[0] == 503, 5)
        assert running.post("/decide", D1, {**BEARER, "X-Request-ID": "too-late"})[0] == 503
        assert busy.result()[0] == 200
        (line,) = lines(running, "scorer", "scorer.job", "too-late")
        assert field(line, "status") == "unavailable"


def lines(service: Pair, tier: str, logger: str, text: str) -> list[str]:
    """Lines of a tier's log."""
    return [line for line in service.log(tier).splitlines() if text in line and logger in line]


def field(line: str, name: str) -> str:
    """A field's value in either form."""
    if line.startswith("{"):
        return str(json.loads(line)[name])
    found = [part.partition("=")[2] for part in line.split() if part.startswith(f"{name}=")]
    assert len(found) == 1, (name, line)
    return found[0].strip('"')
