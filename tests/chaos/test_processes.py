"""Processes killed, frozen, hung and restarted, again and again and under load (architecture.md §4, tests 1 to 16)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from typing import Any

import psutil
import pytest

from tests.chaos.conftest import QUEUE, Record
from tests.harness import D1, S1, Pair, pair, wait_for
from tests.process.support import (
    GONE,
    NOISE,
    Background,
    HealthWatch,
    Load,
    Wire,
    alive,
    at_once,
    end,
    frozen,
    health,
    invariants,
    is_own,
    kill,
    own_decision,
    restart_scorer,
    run_scorer,
    slow,
    spread,
    starts,
    timed_post,
    unavailable,
    wait_queued,
    wait_running,
    wait_slots,
    whole,
)

pytestmark = pytest.mark.timeout(300)


def full_house(service: Pair, seconds: float = 20.0) -> list[Background]:
    """Every slot taken: one request that runs ``seconds``, all others behind it. Each gives its status, body and the
    moment at which it was answered."""

    def ask(path: str, body: Any) -> tuple[int, Any, float]:
        status, answer = service.post(path, body)
        return status, answer, time.monotonic()

    jobs = [Background(lambda: ask("/decide", slow(D1, seconds)))]
    wait_running(service)
    others = [("/decide", D1), ("/v1/systemone", S1)] * QUEUE
    jobs += [Background(lambda path=path, body=body: ask(path, body)) for path, body in others[: QUEUE - 1]]
    wait_queued(service, QUEUE - 1)
    return jobs


# -- web workers and their master ------------------------------------------------------------------


@pytest.mark.chaos
def test_20_times_sigkill_of_all_web_workers_under_load(service: Pair, record: Record) -> None:
    with (
        record(service, "SIGKILL of all web workers", cuts=True) as seen,
        Load(service, threads=6) as load,
        HealthWatch(service, 0.05) as watch,
    ):
        for _ in range(20):
            before = set(service.worker_pids())
            seen.hit()
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            seen.recovered()
            wait_for(
                lambda before=before: len(service.worker_pids()) == 2 and not before & set(service.worker_pids()),
                20,
                "new workers",
            )
            load.answered(3)
    seen.load(load)
    assert watch.most_slots <= QUEUE
    wait_slots(service, 0, 1 * NOISE)


@pytest.mark.chaos
def test_20_times_sigkill_of_the_worker_whose_job_runs(service: Pair, record: Record) -> None:
    """The running job ends and its answer is dropped, its neighbours in the queue are skipped, the other worker's
    callers are answered."""
    with record(service, "SIGKILL of the worker of the running job", cuts=True) as seen:
        for _ in range(20):
            calls = service.record_calls()
            service.dir.joinpath("fake_calls.jsonl").write_text("")
            dropped = health(service)["counters"]["abandoned_replies"]
            with spread(service, 4) as wires:
                victim, other = wires
                asked = {pid: [own_decision() for _ in wires[pid]] for pid in wires}
                asked[victim][0] = own_decision(sleep_s=0.4)
                wires[victim][0].send(whole(asked[victim][0]))
                wait_running(service)
                for pid in wires:
                    for wire, body in list(zip(wires[pid], asked[pid], strict=True))[pid == victim :]:
                        wire.send(whole(body))
                wait_queued(service, 7)
                os.kill(victim, signal.SIGKILL)
                seen.hit()
                assert all(wire.at_end() for wire in wires[victim])
                seen.fault.cut += len(wires[victim])
                for wire, body in zip(wires[other], asked[other], strict=True):
                    status, answer = wire.json()
                    seen.fault.answers[str(status)] += 1
                    assert status == 200
                    assert is_own(body, answer)
            seen.recovered()
            wait_slots(service, 0)
            wait_for(
                lambda dropped=dropped: health(service)["counters"]["abandoned_replies"] > dropped,
                5,
                "a dropped answer",
            )
            states = [line["state"] for line in starts(calls())]
            assert not any(body["state"] in states for body in asked[victim][1:])
            wait_for(lambda: len(service.worker_pids()) == 2, 20, "two workers")


@pytest.mark.chaos
def test_10_times_sigkill_of_the_master_under_load(service: Pair, record: Record) -> None:
    scorer, boot = service.scorer, health(service)["boot_id"]
    assert scorer is not None
    with record(service, "SIGKILL of the gunicorn master", cuts=True) as seen:
        for _ in range(10):
            workers = service.worker_pids()
            with Load(service, threads=4) as load:
                seen.hit()
                kill(service.web)
                try:
                    wait_for(lambda workers=workers: not any(map(alive, workers)), 10, "the workers gone")
                finally:
                    end(workers)
                service.start_web()
                seen.recovered()
            seen.load(load)
            wait_slots(service, 0)
    assert scorer.poll() is None
    assert health(service)["boot_id"] == boot


# -- the scorer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.chaos)])
def test_sigkill_of_the_scorer_with_a_full_house_waiting(service: Pair, record: Record, times: int) -> None:
    """Every caller is told at once; no web process is replaced; the service is back with the new scorer."""
    workers = service.worker_pids()
    with record(service, "SIGKILL of the scorer, every slot waiting") as seen:
        for _ in range(times):
            boot = health(service)["boot_id"]
            jobs = full_house(service)
            killed = time.monotonic()
            kill(service.scorer)
            seen.hit()
            results = [job.result(10) for job in jobs]
            assert all(unavailable(result) for result in results), Counter(result[0] for result in results)
            assert max(when for *_, when in results) - killed < 0.5 * NOISE
            seen.fault.answers["503 scorer_unavailable"] += len(results)
            for status, body, seconds in at_once([lambda: timed_post(service, "/decide", D1)] * QUEUE):
                assert unavailable((status, body))
                assert seconds < 0.5 * NOISE
            assert service.request("GET", "/health")[0] == 503
            seen.restart()
            service.start_scorer()
            seen.recovered()
            assert health(service)["boot_id"] != boot
            assert service.worker_pids() == workers
            wait_slots(service, 0)


@pytest.mark.chaos
def test_50_times_sigkill_of_the_scorer_between_a_job_and_its_answer(service: Pair, record: Record) -> None:
    """Ids in the option texts prove that nobody gets another's answer."""
    with record(service, "SIGKILL of the scorer in a call") as seen:
        for _ in range(50):
            asked = [own_decision(exit=9)] + [own_decision(sleep_s=0.002) for _ in range(6)]
            results = at_once([lambda body=body: service.post("/decide", body) for body in asked])
            for body, result in zip(asked, results, strict=True):
                assert not isinstance(result, BaseException), result
                seen.fault.answers[str(result[0])] += 1
                assert unavailable(result) or (result[0] == 200 and is_own(body, result[1])), result
            assert service.scorer is not None
            assert service.scorer.wait(10) == -signal.SIGKILL
            seen.hit()
            service.start_scorer()
            seen.recovered()


@pytest.mark.chaos
def test_20_times_a_freeze_of_the_scorer_under_load(record: Record) -> None:
    """Callers get 503 or their budget's 504; nothing old is run or delivered after the thaw."""
    with pair(MAX_QUEUE=str(QUEUE), REQUEST_BUDGET_S="1.5") as service:
        workers = service.worker_pids()
        with record(service, "SIGSTOP, then SIGCONT of the scorer") as seen:
            for _ in range(20):
                calls = service.record_calls()
                service.dir.joinpath("fake_calls.jsonl").write_text("")
                with Load(service, threads=4) as load:
                    with frozen(service.scorer):
                        seen.hit()
                        late = [own_decision() for _ in range(6)]
                        for status, body in at_once([lambda body=body: service.post("/decide", body) for body in late]):
                            assert (status, body["error"]["code"]) in [
                                (503, "scorer_unavailable"),
                                (504, "deadline_exceeded"),
                            ]
                    seen.recovered()
                    load.answered(4)
                seen.load(load)
                states = [line["state"] for line in starts(calls())]
                assert not any(body["state"] in states for body in late)
        assert service.worker_pids() == workers


@pytest.mark.chaos
def test_5_times_a_hang_in_a_call_under_load(record: Record) -> None:
    with pair(MAX_QUEUE=str(QUEUE), HANG_S="1.5") as service, record(service, "a call that hangs") as seen:
        for number in range(5):
            with Load(service, threads=4) as load:
                running = Background(lambda: service.post("/decide", slow(D1, 60)))
                assert service.scorer is not None
                assert service.scorer.wait(30) == 70
                seen.hit()
                assert unavailable(running.result(0.5 * NOISE))
                restart_scorer(service)
                seen.recovered()
            seen.load(load)
            assert service.log("scorer").count("most recent call first") >= number + 1


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.chaos)])
def test_an_inference_thread_that_dies_outside_a_call_ends_the_process(
    service: Pair, record: Record, times: int
) -> None:
    """vllm#39863: a dead thread behind a live loop keeps every caller waiting."""
    with record(service, "the inference thread dies between two calls") as seen:
        for _ in range(times):
            service.script(release_error=["runtime", "as scripted"])
            result = service.post("/decide", own_decision(weights=[3, 2, 1]))
            assert result[0] == 200, "the answer was given before"
            assert service.scorer is not None
            assert service.scorer.wait(10) == 70
            seen.hit()
            service.script()
            service.start_scorer()
            seen.recovered()


@pytest.mark.parametrize("times", [3, pytest.param(150, marks=pytest.mark.chaos)])
def test_the_answer_of_a_scorer_that_exits_with_it_always_arrives(service: Pair, record: Record, times: int) -> None:
    """A fatal error is answered and then the process goes: its caller sees the 500 every time, the others a 503."""
    with record(service, "a fatal device error") as seen:
        for _ in range(times):
            dying = Background(
                lambda: service.post("/decide", own_decision(sleep_s=0.3, error=["fatal", "as scripted"]))
            )
            wait_running(service)
            others = [own_decision() for _ in range(8)]
            waiting = [Background(lambda body=body: service.post("/decide", body)) for body in others]
            status, body = dying.result()
            assert (status, body["error"]["code"]) == (500, "scoring_failed")
            seen.fault.answers["500"] += 1
            for asked, job in zip(others, waiting, strict=True):
                status, body = job.result(10)
                seen.fault.answers[str(status)] += 1
                # One that came before the dying one is answered; on a busy machine that happens.
                assert unavailable((status, body)) or (status == 200 and is_own(asked, body))
            assert service.scorer is not None
            assert service.scorer.wait(10) == 70
            seen.hit()
            service.start_scorer()
            seen.recovered()


@pytest.mark.chaos
def test_100_times_out_of_memory_under_load_leave_nothing_behind(service: Pair, record: Record) -> None:
    assert service.scorer is not None
    boot = health(service)["boot_id"]
    scorer = psutil.Process(service.scorer.pid)
    with record(service, "out of memory") as seen, Load(service, threads=3) as load:
        before = 0
        for number in range(100):
            status, body = service.post("/decide", own_decision(error=["oom", "no room"]))
            assert (status, body["error"]["code"]) == (503, "out_of_memory")
            seen.hit()
            if number % 10 == 0:
                seen.recovered()
            if number == 20:
                before = scorer.memory_info().rss
        assert scorer.memory_info().rss - before < 2 << 20
    seen.load(load)
    assert health(service)["boot_id"] == boot


@pytest.mark.chaos
def test_10_times_a_second_scorer_under_load(service: Pair, record: Record) -> None:
    boot = health(service)["boot_id"]
    with record(service, "a second scorer on the run directory") as seen, Load(service, threads=3) as load:
        for _ in range(10):
            assert run_scorer(service.env, 20).returncode == 73
            seen.hit()
            load.answered(3)
    seen.load(load)
    assert set(load.outcomes) == {"200"}
    assert health(service)["boot_id"] == boot


# -- start and stop --------------------------------------------------------------------------------


@pytest.mark.chaos
def test_10_starts_in_either_order(record: Record) -> None:
    with pair(start=False, MAX_QUEUE=str(QUEUE)) as service:
        service.start_scorer()
        service.start_web()
        service.wait_ready()
        with record(service, "a stop and a start of both tiers, in either order") as seen:
            for number in range(10):
                for process in random.sample([service.web, service.scorer], 2):
                    assert process is not None
                    process.terminate()
                    assert process.wait(20) == 0
                seen.hit()
                first, second = (service.start_web, service.start_scorer)[:: 1 if number % 2 else -1]
                first()
                time.sleep(random.random() / 2)  # the other tier comes at any moment of its start
                second()
                seen.recovered()


@pytest.mark.chaos
def test_a_web_tier_that_waits_20_s_for_its_scorer_serves_the_first_request_after(record: Record) -> None:
    """trouble.md rank 32."""
    with pair(start=False, MAX_QUEUE=str(QUEUE)) as service:
        service.start_web()
        wait_for(lambda: service.request("GET", "/health")[0] == 503, 15, "a 503")
        until = time.monotonic() + 20
        while time.monotonic() < until:
            status, body, seconds = timed_post(service, "/decide", D1)
            assert unavailable((status, body))
            assert seconds < 0.5 * NOISE
            time.sleep(0.5)  # a caller that tries now and then
        with record(service, "a scorer that comes 20 s late") as seen:
            seen.hit()
            restart_scorer(service)
            results = at_once([lambda: service.post("/decide", D1)] * QUEUE)
            seen.fault.answers["200"] += QUEUE
            assert [status for status, _ in results] == [200] * QUEUE


@pytest.mark.chaos
def test_a_call_of_45_s_is_answered(record: Record) -> None:
    """trouble.md rank 29 (a): no timer of a worker ends it."""
    with pair(MAX_QUEUE=str(QUEUE)) as service, record(service, "a call of 45 s") as seen:
        with HealthWatch(service, 0.5) as watch:
            assert service.post("/decide", slow(D1, 45), timeout=70)[0] == 200
        seen.hit()
        assert not watch.bad


@pytest.mark.chaos
def test_10_times_sigterm_of_the_web_tier_under_load(service: Pair, record: Record) -> None:
    with record(service, "SIGTERM of the web tier", cuts=True) as seen:
        for _ in range(10):
            assert service.web is not None
            with Load(service, threads=6, sleep_s=0.01) as load:
                load.answered(6)
                service.web.terminate()
                assert service.web.wait(20) == 0
                seen.hit()
                service.start_web()
                seen.recovered()
            seen.load(load)
            assert set(load.outcomes) <= {"200", "lost"}, load.outcomes
            assert not any("IncompleteRead" in repr(error) for error in load.errors), load.errors


@pytest.mark.chaos
def test_20_times_sigterm_of_the_scorer_under_load(service: Pair, record: Record) -> None:
    workers = service.worker_pids()
    with record(service, "SIGTERM of the scorer") as seen:
        for _ in range(20):
            assert service.scorer is not None
            with Load(service, threads=6) as load:
                service.scorer.terminate()
                assert service.scorer.wait(15) == 0
                assert not (service.dir / "scorer.sock").exists()
                seen.hit()
                service.start_scorer()
                seen.recovered()
            seen.load(load)
            assert set(load.outcomes) <= {"200", "503 scorer_unavailable"}, load.outcomes
    assert service.worker_pids() == workers


@pytest.mark.chaos
def test_20_reloads_under_load_lose_no_request(service: Pair, record: Record) -> None:
    with (
        record(service, "SIGHUP of the web tier") as seen,
        Load(service, threads=6) as load,
        HealthWatch(service, 0.05) as watch,
    ):
        for _ in range(20):
            before = set(service.worker_pids())
            assert service.web is not None
            service.web.send_signal(signal.SIGHUP)
            seen.hit()
            wait_for(
                lambda before=before: len(service.worker_pids()) == 2 and not before & set(service.worker_pids()),
                40,
                "new workers only",
            )
            load.answered(3)
    seen.load(load)
    assert set(load.outcomes) == {"200"}, (load.outcomes, load.errors[:3])
    assert watch.most_slots <= QUEUE


@pytest.mark.chaos
def test_30_random_faults_one_after_the_other(service: Pair, record: Record) -> None:
    """Whatever the order: killed, frozen or stopped on either side, the service comes back whole."""
    dice = random.Random(40)

    def kill_worker() -> None:
        os.kill(dice.choice(service.worker_pids()), signal.SIGKILL)

    def kill_scorer() -> None:
        kill(service.scorer)
        service.start_scorer()

    def stop_scorer() -> None:
        assert service.scorer is not None
        service.scorer.terminate()
        service.scorer.wait(15)
        service.start_scorer()

    def freeze() -> None:
        with frozen(service.scorer):
            time.sleep(0.3)  # the freeze itself

    def reload() -> None:
        assert service.web is not None
        service.web.send_signal(signal.SIGHUP)

    def leave() -> None:
        for _ in range(10):
            Wire(service).send(whole(own_decision(sleep_s=0.05))).reset()

    def fatal() -> None:
        with_error = own_decision(error=["fatal", "as scripted"])
        try:
            service.post("/decide", with_error)
        except GONE:
            return
        assert service.scorer is not None
        service.scorer.wait(15)
        service.start_scorer()

    with record(service, "faults in random order", cuts=True) as seen, Load(service, threads=5) as load:
        for _ in range(30):
            dice.choice([kill_worker, kill_scorer, stop_scorer, freeze, reload, leave])()
            seen.hit()
            if dice.random() < 0.7:  # else two at once
                seen.recovered()
        service.wait_ready()
        seen.recovered()
        fatal()
        service.wait_ready()
        seen.recovered()
    seen.load(load)
    wait_slots(service, 0)
    invariants(service)
