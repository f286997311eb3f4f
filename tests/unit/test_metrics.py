"""The metrics (web/metrics.py, web/metric_files.py, web/surfaces/metrics.py): what is counted, its names and labels,
the files of several workers; and that the rules and the dashboard in conf/ use only what is really told (trouble.md
rank 36; architecture.md §1.15)."""

from __future__ import annotations

import fcntl
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.parser import text_string_to_metric_families

from shared import wire
from tests.harness import BEARER, D1, ROOT, S1, SHARED1, Local
from tests.openapi import check_response
from web.errors import KINDS
from web.metric_files import MetricFiles
from web.metrics import PREFIX, Metrics, is_shared
from web.surfaces.metrics import scorer_families

STATUS: dict[str, Any] = {
    "state": "ready",
    "engine": {"engine": "x"},
    "queue_length": 3,
    "busy_seconds": 1.5,
    "busy_total_seconds": 20.25,
    "uptime_seconds": 60.0,
    "memory": {"allocated": 7, "text_cache_bytes": 9},
    "counters": {"ok": 5, "out_of_memory": 2, "expired": 1, "bad_messages": 4, "abandoned_replies": 6},
}
SCORED = {"queue_ms": 3.0, "score_ms": 12.0, "calls": 3, "questions": 5, "input_tokens": 700}


def samples(text: bytes | str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a scrape, by name and labels; parses strictly and refuses doubles."""
    found: dict[Any, float] = {}
    for family in text_string_to_metric_families(text if isinstance(text, str) else text.decode()):
        for sample in family.samples:
            key = (sample.name.removeprefix(PREFIX), tuple(sorted(sample.labels.items())))
            assert sample.name.startswith(PREFIX), sample.name
            assert key not in found, key
            found[key] = sample.value
    return found


def value(text: bytes | str, name: str, **labels: str) -> float:
    return samples(text)[name, tuple(sorted(labels.items()))]


def scored(metrics: Metrics, route: str = "/decide") -> None:
    metrics.observe(route, 200, 30.0, SCORED)


# -- what is counted ---


def test_a_response_is_counted_by_route_status_and_code_and_timed_by_route_and_class() -> None:
    metrics = Metrics()
    metrics.observe("/decide", 200, 30.0, SCORED)
    metrics.observe("/decide", 200, 40.0, SCORED)
    metrics.observe("/decide", 429, 1.0, {"code": "busy"})
    text = metrics.render()
    assert value(text, "http_requests_total", route="/decide", status="200", code="ok") == 2
    assert value(text, "http_requests_total", route="/decide", status="429", code="busy") == 1
    name = "http_request_duration_seconds"
    assert value(text, f"{name}_sum", route="/decide", status_class="2xx") == pytest.approx(0.07)
    assert value(text, f"{name}_count", route="/decide", status_class="4xx") == 1
    assert value(text, f"{name}_bucket", route="/decide", status_class="2xx", le="0.025") == 0
    assert value(text, f"{name}_bucket", route="/decide", status_class="2xx", le="0.05") == 2


def test_a_scored_request_adds_its_queue_and_score_times_calls_questions_and_tokens() -> None:
    metrics = Metrics()
    metrics.observe("/decide", 200, 30.0, SCORED)
    metrics.observe("/decide", 422, 1.0, {"code": "invalid_request"})
    text = metrics.render()
    for name, total in (
        ("queue_seconds", 0.003),
        ("score_seconds", 0.012),
        ("request_calls", 3),
        ("request_questions", 5),
        ("request_input_tokens", 700),
    ):
        assert value(text, f"{name}_sum", route="/decide") == pytest.approx(total)
        assert value(text, f"{name}_count", route="/decide") == 1


def test_the_scorers_numbers_are_those_of_its_status() -> None:
    text = Metrics().render(scorer_families(STATUS))
    assert value(text, "scorer_up") == value(text, "scorer_ready") == value(text, "scorer_busy") == 1
    assert value(text, "scorer_job_seconds") == 1.5
    assert value(text, "scorer_busy_seconds_total") == 20.25
    assert value(text, "scorer_queue_length") == 3
    assert value(text, "scorer_uptime_seconds") == 60
    assert value(text, "scorer_memory_bytes", kind="allocated") == 7
    assert value(text, "scorer_memory_bytes", kind="text_cache") == 9
    assert value(text, "scorer_jobs_total", status="out_of_memory") == 2
    assert value(text, "scorer_jobs_total", status="expired") == 1
    assert value(text, "scorer_bad_messages_total") == 4
    assert value(text, "scorer_abandoned_replies_total") == 6
    idle = Metrics().render(scorer_families({**STATUS, "busy_seconds": 0.0, "state": "draining"}))
    assert value(idle, "scorer_busy") == value(idle, "scorer_ready") == 0


def test_every_outcome_of_a_job_is_told_from_the_start_as_0() -> None:
    """A rate does not see a series step from nothing to 1."""
    text = Metrics().render(scorer_families({**STATUS, "counters": {}}))
    for status in (wire.OK, wire.INVALID, wire.OUT_OF_MEMORY, wire.FAILED, wire.EXPIRED, wire.BAD_MESSAGE):
        assert value(text, "scorer_jobs_total", status=status) == 0


def test_without_a_scorer_only_its_being_down_is_told() -> None:
    text = Metrics().render(scorer_families(None))
    assert {name for name, _ in samples(text) if name.startswith("scorer")} == {"scorer_up"}
    assert value(text, "scorer_up") == 0


@pytest.mark.parametrize("name", [name for name in STATUS if name != "engine"])
@pytest.mark.parametrize("odd", [None, "text", [1], True])
def test_what_a_scorer_of_another_release_tells_otherwise_is_left_out(name: str, odd: Any) -> None:
    for status in ({**STATUS, name: odd}, {key: item for key, item in STATUS.items() if key != name}):
        assert value(Metrics().render(scorer_families(status)), "scorer_up") == 1


# -- names ---


def everything() -> str:
    """A scrape with every metric."""
    metrics = Metrics()
    scored(metrics)
    service = Local(MAX_CONCURRENT_DECISIONS="4")
    try:
        slots = service.client.get("/metrics", headers=BEARER).text
    finally:
        service.close()
    kept = [line for line in slots.splitlines() if re.match(rf"(# \w+ )?{PREFIX}(decision_)?slots", line)]
    return metrics.render(scorer_families(STATUS)).decode() + "\n".join([*kept, ""])


def test_names_follow_prometheus_conventions() -> None:
    for family in text_string_to_metric_families(everything()):
        name = family.name.removeprefix(PREFIX)
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name), name
        assert family.documentation
        assert not re.search(r"_(ms|milliseconds|minutes|kib|mib|count|sum|bucket)$", name), (
            "base units, no reserved end"
        )
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample
        if family.type == "histogram":
            assert {sample.name.rpartition("_")[2] for sample in family.samples} == {"bucket", "sum", "count"}


# -- over HTTP ---


def post(service: Local, path: str, body: Any, **headers: str) -> int:
    """POST and close: a request is counted once its answer is out."""
    answer = service.client.post(path, data=json.dumps(body), headers={**BEARER, **headers}, buffered=True)
    return answer.status_code


def scrape(service: Local, **headers: str) -> Any:
    return service.client.get("/metrics", headers=headers or BEARER)


def test_the_metrics_are_prometheus_text_under_the_same_bearer_as_the_posts(local: Local) -> None:
    assert post(local, "/decide", D1) == 200
    answer = scrape(local)
    assert answer.status_code == 200
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    check_response("GET", "/metrics", 200, dict(answer.headers), answer.text)
    assert value(answer.data, "http_requests_total", route="/decide", status="200", code="ok") == 1
    assert value(answer.data, "slots") == 32
    for headers in ({"X-None": ""}, {"Authorization": "Bearer no"}):
        refused = scrape(local, **headers)
        assert (refused.status_code, refused.json["error"]["code"]) == (401, "unauthorized")
        assert PREFIX not in refused.text


def test_open_metrics_need_no_bearer_and_metrics_that_are_off_are_not_there() -> None:
    service = Local(METRICS="open")
    try:
        assert scrape(service, **{"X-None": ""}).status_code == 200
    finally:
        service.close()
    service = Local(METRICS="off")
    try:
        assert post(service, "/decide", D1) == 200
        assert scrape(service).status_code == 404
        assert service.app.extensions["decision"].metrics is None
    finally:
        service.close()


def test_a_request_adds_what_it_asked(local: Local) -> None:
    for path, body in (("/decide", D1), ("/decide/shared", SHARED1), ("/v1/systemone", S1)):
        assert post(local, path, body) == 200
    assert post(local, "/decide", {**D1, "orderings": "rotations"}) == 200
    text = scrape(local).data
    for path, calls, count in (("/decide", 1 + 2, 2), ("/decide/shared", 1, 1), ("/v1/systemone", 3, 1)):
        assert value(text, "request_calls_sum", route=path) == value(text, "request_questions_sum", route=path) == calls
        assert value(text, "request_calls_count", route=path) == count
        assert value(text, "score_seconds_count", route=path) == value(text, "queue_seconds_count", route=path) == count
    before = value(text, "request_input_tokens_sum", route="/v1/systemone")
    with local.client.post("/v1/systemone", json=S1, headers=BEARER) as answer:
        told = answer.json["usage"]["input_tokens"]
    more = scrape(local).data
    assert value(more, "request_input_tokens_sum", route="/v1/systemone") - before == told
    assert value(more, "scorer_jobs_total", status="ok") == 5


def test_labels_hold_nothing_of_a_callers(local: Local) -> None:
    words = ["plain-word-7", "another-word-8"]
    for path in (f"/{words[0]}", f"/decide/{words[0]}", f"/v1/{words[1]}?{words[0]}", "/decide/", "//decide"):
        post(local, path, D1)
    local.client.open("/decide", method=words[0].upper(), headers=BEARER)
    post(local, "/decide", {**D1, "id": words[0]}, **{"X-Request-ID": words[1]})
    post(local, "/v1/systemone", {**S1, "model": words[1]})
    text = scrape(local).text
    assert not [word for word in words if word in text.lower()]
    labels = [dict(pairs) for _, pairs in samples(text)]
    assert {label["route"] for label in labels if "route" in label} <= {"none", "/decide", "/v1/systemone", "/health"}
    assert {label["code"] for label in labels if "code" in label} <= {"ok", *KINDS}


def test_a_cap_of_decisions_tells_its_slots_and_without_one_there_are_none(local: Local) -> None:
    assert not [name for name, _ in samples(scrape(local).data) if name.startswith("decision_slots")]
    service = Local(MAX_CONCURRENT_DECISIONS="3")
    try:
        text = scrape(service).data
        assert (value(text, "decision_slots"), value(text, "decision_slots_in_use")) == (3, 0)
        slots = service.app.extensions["decision"].decision_slots
        with slots.acquire(bytes(16)):
            assert value(scrape(service).data, "decision_slots_in_use") == 1
        assert value(scrape(service).data, "decision_slots_in_use") == 0
    finally:
        service.close()


def test_a_scrape_is_200_without_a_scorer(local: Local) -> None:
    post(local, "/decide", D1)
    local.broker.stop()
    local._thread.join(10)
    answer = scrape(local)
    assert answer.status_code == 200
    assert value(answer.data, "scorer_up") == 0
    assert value(answer.data, "http_requests_total", route="/decide", status="200", code="ok") == 1


# -- the files of several workers ---


def key(route: str) -> str:
    """As prometheus-client names a number in its files."""
    return mmap_key(f"{PREFIX}http_requests", f"{PREFIX}http_requests_total", ["route"], [route], "text")


@pytest.fixture
def files(tmp_path: Path) -> MetricFiles:
    made = MetricFiles(tmp_path / "metrics")
    made.wipe()
    return made


def begin_a_process() -> None:
    """prometheus-client's own begin where PROMETHEUS_MULTIPROC_DIR is set: it has opened no file yet."""
    values.ValueClass = values.MultiProcessValue()


@pytest.fixture
def worker(files: MetricFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricFiles]:
    """This process counts in files as a worker does."""
    opened: list[MmapedDict] = []

    def kept(name: str) -> MmapedDict:
        opened.append(MmapedDict(name))
        return opened[-1]

    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "metrics"))
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    monkeypatch.setattr(values, "MmapedDict", kept)
    assert not is_shared()
    begin_a_process()
    assert is_shared()
    files.reserve()
    yield files
    for file in opened:
        file.close()


def count(tmp_path: Path, pid: int, number: float, route: str = "/decide") -> None:
    """As a worker with this process id would."""
    file = MmapedDict(str(tmp_path / "metrics" / f"counter_{pid}.db"))
    file.write_value(key(route), file.read_value(key(route))[0] + number, 0.0)
    file.close()


def sums(files: MetricFiles) -> dict[str, float]:
    """Each route's sum over all workers."""
    return {sample.labels["route"]: sample.value for metric in files.read() for sample in metric.samples}


def test_the_counts_of_all_workers_are_added(files: MetricFiles, tmp_path: Path) -> None:
    count(tmp_path, 1, 2.0)
    count(tmp_path, 2, 5.0)
    count(tmp_path, 2, 0.5, "/health")
    assert sums(files) == {"/decide": 7.0, "/health": 0.5}


def test_a_process_id_that_is_in_use_again_goes_on_in_its_file(worker: MetricFiles) -> None:
    scored(Metrics(worker))
    begin_a_process()
    worker.reserve()
    scored(Metrics(worker))
    text = Metrics(worker).render()
    assert value(text, "http_requests_total", route="/decide", status="200", code="ok") == 2
    assert value(text, "request_calls_sum", route="/decide") == 2 * SCORED["calls"]


def test_dead_workers_are_folded_into_one_file_a_kind_and_their_counts_stay(files: MetricFiles, tmp_path: Path) -> None:
    count(tmp_path, 9999, 0.5)
    for pid in range(1, 201):
        count(tmp_path, pid, 2.0)
        count(tmp_path, pid, 1.0, f"/{pid % 3}")
        assert files.absorb([pid])
        read = sums(files)
        assert read["/decide"] == 2.0 * pid + 0.5
        assert sum(read.values()) == 3.0 * pid + 0.5
    names = {file.name for file in (tmp_path / "metrics").iterdir()}
    assert names == {"counter_9999.db", "counter_dead.db", "histogram_dead.db", "lock"}


def test_folding_waits_for_a_scrape_and_a_scrape_for_folding(files: MetricFiles, tmp_path: Path) -> None:
    count(tmp_path, 1, 2.0)
    with files._lock(fcntl.LOCK_SH):
        assert not files.absorb([1])
    assert sums(files)["/decide"] == 2
    assert files.absorb([1, 77])
    read: list[float] = []
    with files._lock(fcntl.LOCK_EX):
        scraping = threading.Thread(target=lambda: read.append(sums(files)["/decide"]))
        scraping.start()
        scraping.join(0.1)
        assert read == []
    scraping.join(10)
    assert read == [2]


def test_a_file_that_is_being_made_is_no_failure_of_a_scrape_or_of_folding(files: MetricFiles, tmp_path: Path) -> None:
    """A full disk leaves an empty one too, and its worker dies as others do."""
    count(tmp_path, 1, 2.0)
    (tmp_path / "metrics" / "counter_2.db").touch()
    (tmp_path / "metrics" / "counter_3.db").write_bytes(bytes(5000))
    files.reserve()
    assert sums(files) == {"/decide": 2.0}
    assert files.absorb([1, 2, 3])
    assert sums(files) == {"/decide": 2.0}
    assert not (tmp_path / "metrics" / "counter_2.db").exists()


def test_a_number_whose_name_is_half_written_is_not_there_yet(files: MetricFiles, tmp_path: Path) -> None:
    """A reader may look, and a worker may be killed, between any two stores."""
    count(tmp_path, 1, 2.0)
    file = tmp_path / "metrics" / "counter_1.db"
    with file.open("r+b") as stream:
        used = int.from_bytes(stream.read(4), sys.byteorder)
        stream.seek(used)
        stream.write(len(key("/other")).to_bytes(4, sys.byteorder) + b"x" * 20)
    assert sums(files) == {"/decide": 2.0}
    count(tmp_path, 1, 3.0, "/b")  # the next worker with this process id
    assert sums(files) == {"/decide": 2.0, "/b": 3.0}


def test_a_new_service_begins_at_0(files: MetricFiles, tmp_path: Path) -> None:
    count(tmp_path, 1, 2.0)
    MetricFiles(tmp_path / "metrics").wipe()
    assert files.read() == []


def test_no_worker_outgrows_the_space_that_it_set_aside(worker: MetricFiles, tmp_path: Path) -> None:
    """A file that grows does so without asking the disk, and a store into a page that a full disk cannot give kills the
    process. Every route with every error is far more than there can be."""
    before = {file.name: file.stat().st_blocks * 512 for file in (tmp_path / "metrics").glob("*.db")}
    posts = ["/decide", "/decide/shared", "/v1/systemone", "/v1/decisions"]
    routes = [*posts, "/v1/models", "/health", "/ready", "/metrics", "/openapi.json", "none"]
    metrics = Metrics(worker)
    for route in routes:
        scored(metrics, route)
        for kind in KINDS.values():
            metrics.observe(route, kind.status, 1.0, {"code": kind.code})
    after = {file.name: file.stat().st_size for file in (tmp_path / "metrics").glob("*.db")}
    assert len(before) == 2
    assert before == after
    counted = [name for name, _ in samples(metrics.render()) if name == "http_requests_total"]
    assert len(counted) == len(routes) * (len(KINDS) + 1)


def test_the_counts_in_the_files_are_those_that_one_process_alone_would_tell(worker: MetricFiles) -> None:
    def told(metrics: Metrics) -> bytes:
        for ms in (0.5, 1.0, 1.5, 200_000.0):
            metrics.observe("/decide", 200, ms, {**SCORED, "queue_ms": ms})
        metrics.observe("none", 404, 1.0, {"code": "not_found"})
        return metrics.render()

    text = told(Metrics(worker))
    values.ValueClass = values.MutexValue
    assert samples(text) == samples(told(Metrics()))
    labels = {"route": "/decide", "status_class": "2xx"}
    name = "http_request_duration_seconds"
    read = [value(text, f"{name}_bucket", le=le, **labels) for le in ("0.001", "0.0025", "120.0", "+Inf")]
    assert read == [2, 3, 3, 4]
    assert value(text, f"{name}_count", **labels) == 4


# -- conf/ ---


def expressions() -> Iterator[tuple[str, str]]:
    """Every PromQL expression of the rules and the dashboard, with where it stands."""
    rules = yaml.safe_load((ROOT / "conf" / "alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    dashboard = json.loads((ROOT / "conf" / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def test_the_rules_and_the_dashboard_use_only_metrics_and_labels_that_are_told() -> None:
    known: dict[str, set[str]] = {}
    for name, labels in samples(everything()):
        known.setdefault(PREFIX + name, set()).update(label for label, _ in labels)
    scraped_by_prometheus = {"instance", "job"}
    used: set[str] = set()
    for where, expr in expressions():
        names = re.findall(rf"{PREFIX}\w+", expr)
        assert names, where
        assert not set(names) - set(known), (where, names)
        used.update(names)
        allowed = set().union(*(known[name] for name in names)) | scraped_by_prometheus
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expr):
            assert label in allowed, (where, label)
        for grouped in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expr):
            assert {label.strip() for label in grouped.split(",")} - {""} <= allowed, (where, grouped)
        assert expr.count("(") == expr.count(")"), where
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    told = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known}
    assert told - families == set(), "a metric that nobody looks at"


def test_every_expression_is_promql() -> None:
    promql_parser = pytest.importorskip("promql_parser")
    for _, expr in expressions():
        promql_parser.parse(expr.replace("$__rate_interval", "5m"))


def test_the_values_that_the_rules_compare_labels_with_are_ours() -> None:
    statuses = {str(kind.status) for kind in KINDS.values()} | {"200"}
    allowed = {*statuses, *KINDS, "ok", "2xx", "4xx", "5xx", "none"}
    allowed |= {wire.OK, wire.INVALID, wire.OUT_OF_MEMORY, wire.FAILED, wire.EXPIRED}
    routes = {"/decide", "/decide/shared", "/v1/systemone", "/v1/decisions", "/health", "/metrics"}
    for where, expr in expressions():
        for operator, text in re.findall(r"\w+\s*(=~|!~|!=|=)\s*\"([^\"]*)\"", expr):
            if operator in ("=", "!="):
                assert text in allowed | routes, (where, text)
            else:
                pattern = re.compile(text)
                assert any(pattern.fullmatch(one) for one in allowed | routes), (where, text)


def test_every_alert_says_what_it_means_and_how_bad_it_is() -> None:
    rules = [r for g in yaml.safe_load((ROOT / "conf" / "alerts.yml").read_text())["groups"] for r in g["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s")), rule["alert"]


def test_the_panels_of_the_dashboard_do_not_overlap_and_have_a_source_that_is_asked_for() -> None:
    dashboard = json.loads((ROOT / "conf" / "dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource"]
