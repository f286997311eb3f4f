"""A body is loaded or refused with Invalid and nothing else; the schemas refuse exactly what the OpenAPI document does,
but for the rules that JSON Schema has no word for; what is loaded loads again as it is; and its plan keeps to the
contract: at most 16 questions a call, never two orderings of one decision in one, wave 0 as written."""

from __future__ import annotations

import copy
import re
from typing import Any

import jsonschema_rs
from marshmallow import Schema

from shared import jsonio, wire
from shared.wire import Job, Limits
from tests.fuzz.program import Program
from tests.harness import D1, S1, SHARED1, decision
from web.decisions import plain_question as decisions_question
from web.decisions import state_of
from web.errors import Invalid, render
from web.jev import plain_question
from web.openapi import document
from web.plan import Plan, plan_decisions, plan_independent, plan_joint
from web.schemas.base import load
from web.schemas.decisions import decisions_schema
from web.schemas.semif import check_rows, decide_schema, shared_schema
from web.schemas.systemone import schema_for

#: Rules that JSON Schema cannot say; the document tells them in words.
UNSAID = re.compile(
    r"option ids must be unique in a decision|decision ids must be unique in a request"
    # /v1/decisions: choices that read alike; the bounds of input_json.
    r"|would merge with the value of choice \d+|must not be nested deeper|must have at most \d+ (values|bytes)"
)
MOST_ROWS = 64

_limits = Limits()
SCHEMAS: dict[str, Schema] = {
    "Decide": decide_schema(16),
    "DecideShared": shared_schema(16),
    "SystemOneJev": schema_for("jev", _limits, _limits.options),
    "SystemOneNative": schema_for("native", _limits, _limits.options),
    "Decisions": decisions_schema(_limits),
}
_message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "t"}]}
_data = {"role": "user", "content": [{"type": "input_json", "data": [{"a": {}}]}, {"type": "input_text", "text": ""}]}
_asked = [
    {"type": "choice", "instructions": "?", "choices": [{"value": "a", "description": None}, {"value": True}]},
    {
        "type": "score",
        "name": None,
        "instructions": "?",
        "levels": [{"label": "l"}, {"label": "h", "description": "d"}],
    },
    {"type": "predicate", "name": "n", "instructions": [{"type": "input_text", "text": "?"}]},
]
GOOD: dict[str, list[Any]] = {
    "Decide": [D1, {**D1, "orderings": "all"}, {**D1, "orderings": "rotations", "workload": None}],
    "DecideShared": [
        SHARED1,
        {"state": ["s"], "decisions": [decision(f"d{n}", "abc", orderings="rotations") for n in range(18)]},
        {"state": {"k": 1}, "decisions": [decision("x", "ab", orderings="all"), decision("y", "abcde")]},
    ],
    "SystemOneJev": [S1, {"state": "", "questions": {"q": {"type": "noul", "criteria": {"true": "t", "false": None}}}}],
    "SystemOneNative": [S1, {"state": "s", "questions": {"q": {"type": "noul", "criteria": {"Yes": "t"}}}}],
    "Decisions": [
        {"model": "m", "input": "text", "questions": _asked},
        {
            "model": "m",
            "input": [_message, _data],
            "questions": _asked[:1],
            "cache_salt": "s",
            "safety_identifier": None,
        },
    ],
}
NAMES = tuple(SCHEMAS)

SEEDS = [
    bytes([name, body, *edits]) for name in range(len(SCHEMAS)) for body in range(3) for edits in ((), range(1, 40))
]

_components = document()["components"]
_documented = {
    name: jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": _components})
    for name in NAMES
}


def check(data: bytes) -> None:
    program = Program(data)
    name = program.pick(NAMES)
    check_body(name, program.edited(program.pick(GOOD[name])))


def check_body(name: str, body: Any) -> None:
    """Hold one body against the schema and the document of that component."""
    before = copy.deepcopy(body)
    documented = _documented[name].is_valid(body)
    try:
        loaded = load(SCHEMAS[name], body)
    except Invalid as error:
        loaded, refusal = None, error
    else:
        refusal = None
    if refusal:
        for path in ("/decide", "/v1/systemone", "/v1/decisions"):
            jsonio.loads(render(refusal, path)[2])
        unsaid = all(UNSAID.search(problem.msg) for problem in refusal.problems)
        assert not documented or unsaid, (name, body, refusal.message)
    else:
        assert documented, (name, body)
        assert load(SCHEMAS[name], loaded) == loaded, (name, body)
        assert _documented[name].is_valid(loaded)
        check_plan(name, loaded)
    assert repr(body) == repr(before), "the caller's body was changed"


def check_plan(name: str, loaded: dict[str, Any]) -> None:
    if name == "SystemOneJev":
        job = plan_independent(loaded["state"], [plain_question(one) for one in loaded["questions"].values()])
        assert len(job.calls) == len(loaded["questions"])
    elif name == "Decisions":
        job = plan_independent(state_of(loaded["input"]), [decisions_question(one) for one in loaded["questions"]])
        assert len(job.calls) == len(loaded["questions"])
    elif name == "SystemOneNative":
        job = plan_joint(loaded["state"], loaded["questions"])
        assert len(job.calls) == 1
        assert job.call_questions(job.calls[0]) == loaded["questions"]
    else:
        decisions = [loaded] if name == "Decide" else loaded["decisions"]
        try:
            check_rows(decisions, MOST_ROWS)
        except Invalid:
            return
        plan = plan_decisions(loaded["state"], decisions, 16)
        check_waves(plan, decisions)
        job = plan.job
    sent = wire.decode_job(wire.encode_job(job))
    assert repr(sent.calls) == repr([list(call) for call in job.calls])
    assert jsonio.dumps([sent.state, sent.questions]) == jsonio.dumps([job.state, job.questions])


def check_waves(plan: Plan, decisions: list[dict[str, Any]]) -> None:
    job: Job = plan.job
    rows = 0
    for call in job.calls:
        assert 1 <= len(call) <= 16
        assert len({item.question for item in call}) == len(call), "two orderings of one decision in one call"
        rows += len(call)
    assert 1 <= rows <= MOST_ROWS
    for asked, one in zip(plan.asked, decisions, strict=True):
        ids = [option["id"] for option in one["options"]]
        for where in asked:
            question = job.call_questions(job.calls[where.call])[where.field]
            assert list(question["criteria"]) == [ids[position] for position in where.order]
            assert question["instructions"] == one["question"]
        assert asked[0].order == tuple(range(len(ids)))
        assert len({where.order for where in asked}) == len(asked)
