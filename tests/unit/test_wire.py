"""The messages between the tiers (shared/wire.py): architecture.md §1.3, §1.10, §1.11; failure test 32; design §3."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared import jsonio, wire
from shared.jsonio import MAX_DEPTH
from shared.wire import NO_TERMS, CallItem, EngineInfo, Job, Limits, Reply, Request, Terms, WireError
from tests.unit.strategies import TEXT, json_values

REQUEST = Request("predict", "ab" * 16, "boot", 3, 59_000, "req_1")
REPLY = Reply("ab" * 16, "boot", wire.OK, "", 1.25, 17.5)
CHOICE = {"type": "choice", "instructions": "Which?", "criteria": {"z": "Z", "a": "A", "10": None}}
SCORE = {"type": "score", "instructions": "How bad?", "criteria": ["low", "high"]}
INFO = EngineInfo(
    engine="fake",
    name="n",
    revision="r",
    readout="ro",
    prompt_version="pv",
    probability_status="ps",
    default_profile="jev",
    description="d",
    release_date="2026-11-30",
    limits=Limits(tokens=7),
    model={"b": 1, "a": None},
    calibration={"temperature": 1.5},
    device="cuda:0",
    vram_cap_gib=9.5,
)


def header(**fields: Any) -> bytes:
    return json.dumps({"v": wire.VERSION, "op": "predict", "id": "x", "status": "ok", **fields}).encode()


HUGE = int("9" * 400)

# -- headers ---


def test_a_request_and_a_reply_come_back_as_they_were() -> None:
    assert wire.decode_request(wire.encode_request(REQUEST)) == REQUEST
    assert wire.decode_reply(wire.encode_reply(REPLY)) == REPLY


def test_headers_have_the_documented_names_and_the_version() -> None:
    assert list(jsonio.loads(wire.encode_request(REQUEST))) == [
        "v",
        "op",
        "id",
        "boot_id",
        "slot",
        "budget_ms",
        "request_id",
    ]
    assert list(jsonio.loads(wire.encode_reply(REPLY))) == [
        "v",
        "id",
        "boot_id",
        "status",
        "message",
        "queue_ms",
        "score_ms",
        "input_tokens",
    ]
    assert jsonio.loads(wire.encode_request(REQUEST))["v"] == wire.VERSION == 2


def test_fields_may_be_added_freely_to_a_header() -> None:
    assert wire.decode_request(header(later_field=[1])).id == "x"
    assert wire.decode_reply(header(later_field={"a": 1})).id == "x"


@pytest.mark.parametrize("version", [None, 0, 1, "2", [2]])
def test_another_version_is_refused_naming_it_and_ours(version: Any) -> None:
    for decode in (wire.decode_request, wire.decode_reply):
        with pytest.raises(WireError, match=r"protocol version .*2"):
            decode(header(v=version))


def test_peek_tells_version_and_id_of_a_header_of_another_version_and_nothing_of_garbage() -> None:
    assert wire.peek(header(v=9)) == (9, "x")
    assert wire.peek(b'{"v":9}') == (9, "")
    for frame in (b"", b"[]", b"\xff", header(id=5), b"x" * 5000):
        assert wire.peek(frame) == (None, "")


@pytest.mark.parametrize(
    "fields",
    [
        {"op": ""},
        {"op": None},
        {"op": 1},
        {"id": ""},
        {"id": "x" * 65},
        {"id": 1},
        {"slot": "1"},
        {"slot": 1.0},
        {"slot": True},
        {"slot": None},
        {"budget_ms": "1"},
        {"budget_ms": 1.5},
        {"budget_ms": False},
        {"boot_id": 1},
        {"request_id": []},
        {"request_id": "two words"},
        {"request_id": "x" * 65},
        {"request_id": "line\nbreak"},
    ],
)
def test_a_request_header_field_of_another_type_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        wire.decode_request(header(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "fine"},
        {"status": ""},
        {"status": None},
        {"id": 5},
        {"message": None},
        {"queue_ms": "1"},
        {"score_ms": True},
        {"boot_id": 0},
        {"input_tokens": 1.0},
        {"input_tokens": -1},
        {"input_tokens": HUGE},
    ],
)
def test_a_reply_header_field_of_another_type_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        wire.decode_reply(header(**fields))


def test_whole_milliseconds_are_times_too() -> None:
    reply = wire.decode_reply(header(queue_ms=3, score_ms=0))
    assert (reply.queue_ms, reply.score_ms) == (3.0, 0.0)
    assert type(reply.queue_ms) is float


def test_a_header_over_its_limit_is_refused_before_it_is_parsed() -> None:
    assert wire.MAX_HEADER_BYTES == 4096
    padding = 4096 - len(header(pad=""))
    assert wire.decode_request(header(pad="p" * padding)).id == "x"
    for decode in (wire.decode_request, wire.decode_reply):
        with pytest.raises(WireError, match="4096"):
            decode(header(pad="p" * (padding + 1)))
    with pytest.raises(WireError, match="4096"):
        wire.decode_request(b"[" * 5000)


@pytest.mark.parametrize("fields", [{"budget_ms": HUGE}, {"slot": 1 << 31}, {"slot": -(1 << 31) - 1}, {"slot": HUGE}])
def test_a_budget_or_a_slot_that_the_scorer_cannot_compute_with_is_refused(fields: dict[str, Any]) -> None:
    # The broker adds the budget to a float and packs the slot in 32 bits: an exception there would end the scorer.
    with pytest.raises(WireError):
        wire.decode_request(header(**fields))


@pytest.mark.parametrize("name", ["id", "request_id", "boot_id", "op"])
def test_a_header_with_a_lone_surrogate_is_refused_since_no_reply_could_repeat_it(name: str) -> None:
    with pytest.raises(WireError):
        wire.decode_request(header(**{name: "\ud800"}))
    with pytest.raises(WireError):
        wire.decode_reply(header(**{name: "\ud800", "message": "\ud800"}))
    for version in (1, 2):
        wire.peek(header(v=version, id="\ud800"))[1].encode()


@pytest.mark.parametrize("name", ["queue_ms", "score_ms"])
def test_a_time_that_no_float_holds_is_refused(name: str) -> None:
    with pytest.raises(WireError):
        wire.decode_reply(header(**{name: HUGE}))


# -- the job ---


def sent(job: Job) -> Job:
    return wire.decode_job(wire.encode_job(job))


def test_a_job_comes_back_with_state_once_questions_once_and_calls_as_references() -> None:
    job = Job(
        {"z": 1, "a": ["é", None, True]},
        [CHOICE, SCORE],
        [[CallItem("q1", 0), CallItem("q2", 1)], [CallItem("q", 0, (2, 0, 1))]],
    )
    payload = json.loads(wire.encode_job(job))
    assert list(payload) == ["state", "questions", "calls"]
    assert payload["calls"] == [[["q1", 0], ["q2", 1]], [["q", 0, [2, 0, 1]]]]
    back = sent(job)
    assert back == Job(job.state, [CHOICE, SCORE], job.calls)
    assert list(back.state) == ["z", "a"]
    assert isinstance(back.calls[1][0], CallItem)
    assert back.calls[1][0].order == (2, 0, 1)


def test_a_calls_questions_follow_its_order_and_leave_the_job_alone() -> None:
    job = sent(Job("s", [CHOICE, SCORE], [[CallItem("q1", 0, (2, 0, 1)), CallItem("q2", 1)], [CallItem("q", 0)]]))
    first, second = (job.call_questions(call) for call in job.calls)
    assert list(first) == ["q1", "q2"]
    assert list(first["q1"]["criteria"].items()) == [("10", None), ("z", "Z"), ("a", "A")]
    assert first["q2"] == SCORE
    assert list(second["q"]["criteria"]) == ["z", "a", "10"]
    first["q1"]["criteria"]["z"] = "changed"
    assert job.questions[0] == CHOICE


def test_a_jobs_terms_are_sent_only_when_there_are_any() -> None:
    job = Job("s", [CHOICE], [[CallItem("q", 0)]], Terms(cache_salt="a salt", long_context=True))
    assert sent(job) == job
    assert "terms" not in json.loads(wire.encode_job(replace(job, terms=NO_TERMS)))


@pytest.mark.parametrize("state", [None, "", 0, [], {}])
def test_any_state_is_carried(state: Any) -> None:
    assert sent(Job(state, [CHOICE], [[CallItem("q", 0)]])).state == state


def test_a_state_at_the_depth_limit_of_a_body_fits_a_payload() -> None:
    state: Any = 1
    for _ in range(MAX_DEPTH):
        state = [state]
    assert sent(Job(state, [CHOICE], [[CallItem("q", 0)]])).state == state


def payload(**fields: Any) -> bytes:
    return json.dumps({"state": "s", "questions": [CHOICE, SCORE], "calls": [[["q", 0, None]]], **fields}).encode()


@pytest.mark.parametrize(
    "calls",
    [
        None,
        [],
        {},
        "x",
        [[]],
        [None],
        ["q"],
        [{}],
        [[None]],
        [[["q"]]],
        [[["q", 0, None, 1]]],
        [["q", 0, None]],
        [[[1, 0, None]]],
        [[["q", "0", None]]],
        [[["q", True, None]]],
        [[["q", 0.0, None]]],
        [[["q", 2, None]]],
        [[["q", -1, None]]],
        [[["q", 0, None], ["q", 1, None]]],
    ],
)
def test_a_call_that_refers_to_no_question_is_refused(calls: Any) -> None:
    with pytest.raises(WireError, match="job"):
        wire.decode_job(payload(calls=calls))


@pytest.mark.parametrize(
    "order",
    [
        [],
        [0, 1],
        [0, 1, 1],
        [0, 1, 3],
        [1, 2, 3],
        [-1, 0, 1],
        [0, 1, 2, 3],
        [0.0, 1, 2],
        [False, 1, 2],
        ["0", 1, 2],
        "012",
        {},
        5,
    ],
)
def test_an_order_that_is_no_permutation_of_the_options_is_refused(order: Any) -> None:
    with pytest.raises(WireError, match="permutation"):
        wire.decode_job(payload(calls=[[["q", 0, order]]]))


@pytest.mark.parametrize("order", [[], [0, 1]])
@pytest.mark.parametrize("question", [SCORE, {"type": "noul"}, {"criteria": None}, {"criteria": "x"}])
def test_an_order_over_a_question_without_named_options_is_refused(question: dict[str, Any], order: list[int]) -> None:
    with pytest.raises(WireError, match="permutation"):
        wire.decode_job(payload(questions=[question], calls=[[["q", 0, order]]]))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"[]",
        b"\xff",
        b"{",
        b'{"state":1}',
        b'{"questions":[],"calls":[]}',
        payload(questions={}),
        payload(questions=[5]),
        payload(terms=[]),
        payload(terms={"cache_salt": 5}),
        payload(terms={"long_context": 1}),
        b'{"state":NaN,"questions":[{}],"calls":[[["q",0,null]]]}',
    ],
)
def test_a_payload_of_another_shape_is_refused(frame: bytes) -> None:
    with pytest.raises(WireError):
        wire.decode_job(frame)


def test_the_payload_limit_covers_the_worst_growth_of_a_body_at_its_default_limit() -> None:
    body = b"[" + b",".join([b"1e15"] * 20_000) + b"]"
    growth = len(jsonio.dumps(jsonio.loads(body))) / len(body)
    assert growth < 4.0
    assert wire.MAX_PAYLOAD_BYTES > (4 << 20)


# -- the engine's description ---


def test_an_engine_description_comes_back_as_it_was() -> None:
    assert EngineInfo.from_json(jsonio.loads(jsonio.dumps(INFO.to_json()))) == INFO
    assert INFO.served_model == "n@r"


def test_a_description_without_a_required_field_is_refused() -> None:
    for name in ("engine", "limits", "readout"):
        value = INFO.to_json()
        del value[name]
        with pytest.raises(ValueError, match="engine description"):
            EngineInfo.from_json(value)


def test_a_description_with_a_field_of_a_later_release_is_still_read() -> None:
    # "Fields may be added freely" (shared/wire.py, architecture.md §1.11): a newer scorer must not fail every request.
    value = INFO.to_json()
    assert EngineInfo.from_json({**value, "later": 1, "limits": {**value["limits"], "later": 2}}) == INFO


# -- arbitrary input ---

FIELD_NAMES = st.sampled_from(
    [
        "v",
        "op",
        "id",
        "boot_id",
        "slot",
        "budget_ms",
        "request_id",
        "status",
        "message",
        "queue_ms",
        "score_ms",
        "state",
        "questions",
        "calls",
        "criteria",
        "type",
        "limits",
        *asdict(INFO),
    ]
)
MESSAGES = json_values(
    FIELD_NAMES | TEXT,
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats(-1, 1)
    | st.sampled_from(["ok", "predict", "q", "choice"])
    | TEXT,
)


def only_wire_errors(frame: bytes) -> None:
    for decode in (wire.decode_request, wire.decode_reply, wire.decode_job):
        try:
            decode(frame)
        except WireError as error:
            str(error).encode()
    wire.peek(frame)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_raise_nothing_but_wire_errors(frame: bytes) -> None:
    only_wire_errors(frame)


@given(MESSAGES)
def test_arbitrary_json_raises_nothing_but_wire_errors(value: Any) -> None:
    only_wire_errors(jsonio.dumps(value))
    with contextlib.suppress(ValueError):
        EngineInfo.from_json(value)


@given(st.dictionaries(FIELD_NAMES, MESSAGES, max_size=6))
@example({"id": "x"})
def test_a_header_with_arbitrary_fields_is_read_or_refused(fields: dict[str, Any]) -> None:
    only_wire_errors(header(**fields))
    with contextlib.suppress(ValueError):
        EngineInfo.from_json({**INFO.to_json(), **fields})


ENTRIES = st.tuples(
    st.sampled_from(["q", "q1", "q2"]) | MESSAGES,
    st.integers(-1, 2) | MESSAGES,
    st.none() | st.permutations([0, 1, 2]) | MESSAGES,
)


@given(
    st.lists(st.sampled_from([CHOICE, SCORE]) | MESSAGES, max_size=3),
    st.lists(st.lists(ENTRIES.map(list), max_size=3), max_size=3),
)
def test_a_job_is_refused_or_every_reference_in_it_can_be_followed(questions: list[Any], calls: list[Any]) -> None:
    try:
        job = wire.decode_job(jsonio.dumps({"state": 1, "questions": questions, "calls": calls}))
    except WireError:
        return
    for call in job.calls:
        asked = job.call_questions(call)
        assert list(asked) == [item.field for item in call]
        for item in call:
            if isinstance(job.questions[item.question].get("criteria"), dict):
                assert set(asked[item.field]["criteria"]) == set(job.questions[item.question]["criteria"])
