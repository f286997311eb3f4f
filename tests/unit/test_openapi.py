"""The OpenAPI document (web/openapi) is made from the schemas, the table of errors and the routes, and is current."""

from __future__ import annotations

import configparser
import subprocess
import sys
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marshmallow import fields
from schemathesis.specs.openapi.definitions import OPENAPI_31

from shared import jsonio
from shared.jsonio import dumps_indented
from tests.contract.openai_shape import O1
from tests.fuzz import fuzz_schemas
from tests.harness import D1, ROOT, S1, SHARED1, Local
from tests.openapi import check_response, operations, response_of
from tests.unit.strategies import json_values
from web.errors import KINDS, ApiError, Invalid, Problem, render
from web.openapi import VERSION, document
from web.openapi.operations import NOT_ITS_OWN, OPERATIONS
from web.schemas.base import StrictSchema
from web.schemas.described import describe
from web.schemas.semif import decide_schema
from web.schemas.systemone import schema_for


def routes(service: Local) -> set[tuple[str, str]]:
    return {
        (method, str(rule))
        for rule in service.app.url_map.iter_rules()
        for method in (rule.methods or ()) - {"HEAD", "OPTIONS"}
    }


# -- it is complete and current ---


def test_every_route_of_the_application_is_in_the_document_and_nothing_else_is(local: Local) -> None:
    assert {(method, path) for method, path, _ in operations()} == routes(local)
    assert len(OPERATIONS) == len(routes(local))


def test_the_shipped_document_is_the_one_that_the_code_makes() -> None:
    shipped = (ROOT / "conf" / "openapi.json").read_text(encoding="utf-8")
    assert shipped == dumps_indented(document()), "run make openapi"


def test_the_command_writes_the_shipped_document() -> None:
    written = subprocess.run([sys.executable, "-m", "web.openapi"], cwd=ROOT, capture_output=True, check=True).stdout
    assert written == (ROOT / "conf" / "openapi.json").read_bytes()


def test_the_document_is_served_open_as_json_and_is_the_shipped_one(local: Local) -> None:
    response = local.client.get("/openapi.json")
    assert response.status_code == 200
    assert response.mimetype == "application/json"
    assert jsonio.loads(response.data) == document()
    assert local.client.post("/openapi.json").status_code == 405


def test_the_version_is_the_packages() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert metadata["metadata"]["version"] == VERSION


def test_the_document_is_openapi_3_1() -> None:
    # The OpenAPI Initiative's own schema of its documents, as schemathesis carries it.
    errors = [error.message for error in jsonschema_rs.Draft202012Validator(OPENAPI_31).iter_errors(document())]
    assert errors == []
    broken = document()
    del broken["paths"]["/decide"]["post"]["requestBody"]["content"]
    assert not jsonschema_rs.Draft202012Validator(OPENAPI_31).is_valid(broken)


def test_every_schema_in_the_document_is_json_schema() -> None:
    for name, schema in document()["components"]["schemas"].items():
        assert jsonschema_rs.meta.is_valid({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}), name


def test_every_reference_in_the_document_leads_somewhere() -> None:
    whole = document()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                target: Any = whole
                for part in value["$ref"].removeprefix("#/").split("/"):
                    target = target[part]
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(whole)
    used = jsonio.dumps_ascii(whole)
    for section, names in whole["components"].items():
        if section != "securitySchemes":
            assert [name for name in names if f'"#/components/{section}/{name}"' not in used] == []


# -- what it says of errors ---


def test_every_kind_of_error_is_in_the_document_but_those_of_no_operation() -> None:
    told = {kind for operation in OPERATIONS for kind in operation.errors}
    assert told.isdisjoint(NOT_ITS_OWN)
    assert told | set(NOT_ITS_OWN) == set(KINDS)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_error_is_rendered_as_the_document_says_with_its_headers(operation: Any) -> None:
    for kind in operation.errors:
        problems = [Problem(("options", 1, "id"), "is required", "missing")]
        for error in [ApiError(kind, "why")] + ([Invalid(problems)] if kind == "invalid_request" else []):
            status, headers, body = render(error, operation.path)
            always = {"Content-Type": "application/json", "X-Request-ID": "", "x-typesafe-request-id": ""}
            check_response(
                operation.method,
                operation.path,
                status,
                {**always, "Cache-Control": "", **dict(headers)},
                jsonio.loads(body),
            )
        status, headers, _ = render(ApiError(kind, ""), operation.path)
        assert {name for name, _ in headers} <= set(response_of(operation.method, operation.path, status)["headers"])


def test_what_is_open_needs_no_bearer_and_all_else_does(local: Local) -> None:
    for method, path, operation in operations():
        status = local.client.open(path, method=method).status_code
        assert (status == 401) == ("security" not in operation), path
        assert operation.get("security", []) == []
        assert ("401" in operation["responses"]) == (status == 401)


# -- what it says of bodies ---


def test_limits_words_and_required_names_come_from_the_schema_objects() -> None:
    told = describe(decide_schema(7))
    assert (told["properties"]["options"]["minItems"], told["properties"]["options"]["maxItems"]) == (2, 7)
    assert set(told["required"]) == {"id", "state", "question", "options"}
    assert told["properties"]["orderings"]["enum"] == ["none", "rotations", "all", None]
    schemas = document()["components"]["schemas"]
    assert schemas["Decide"]["properties"]["options"]["maxItems"] == 16
    assert schemas["SystemOneJev"]["properties"]["questions"]["maxProperties"] == 400
    assert schemas["SystemOneNative"]["properties"]["questions"]["maxProperties"] == 16


def test_a_field_that_says_nothing_of_itself_is_never_left_out_in_silence() -> None:
    with pytest.raises(TypeError, match="Integer"):
        describe(StrictSchema.from_dict({"n": fields.Integer()})())


@pytest.mark.parametrize(
    ("name", "body"),
    [("Decide", D1), ("DecideShared", SHARED1), ("SystemOneJev", S1), ("SystemOneNative", S1), ("Decisions", O1)],
)
def test_a_good_body_is_documented_and_an_unknown_name_is_as_the_document_says(name: str, body: dict[str, Any]) -> None:
    fuzz_schemas.check_body(name, body)
    fuzz_schemas.check_body(name, {**body, "unknown": 1})  # refused by the closed grammar alone, and told so
    assert fuzz_schemas.SCHEMAS[name].load(body)


SIDES = ["yes", "YES", "yEs", "true", "1", "no", "False", "0", "maybe", "yes\n", "yeſ", ""]


@pytest.mark.parametrize("said", ["text", "", None, 0, False, True, [], {}, [0], 0.0, 1e-9])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ["SystemOneJev", "SystemOneNative"])
def test_the_document_knows_when_a_noul_asks_something(name: str, side: str, said: Any) -> None:
    for instructions in ({}, {"instructions": said}, {"instructions": None}):
        question = {"type": "noul", "criteria": {side: said}, **instructions}
        fuzz_schemas.check_body(name, {"state": "s", "questions": {"q": question}})


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 10, 11, 16, 17, 255, 256])
def test_the_document_has_the_schemas_own_bounds(count: int) -> None:
    options = [{"id": f"o{n}", "description": "d"} for n in range(count)]
    for orderings in ("none", "rotations", "all", None):
        fuzz_schemas.check_body("Decide", {**D1, "options": options, "orderings": orderings})
    for name in ("SystemOneJev", "SystemOneNative"):
        for question in (
            {"type": "choice", "criteria": {f"o{n}": None for n in range(count)}},
            {"type": "score", "criteria": ["level"] * count},
            {"type": "score", "criteria": {str(n): "level" for n in range(count)}},
        ):
            fuzz_schemas.check_body(name, {"state": "s", "questions": {"q": question}})
        noul = {"type": "noul", "instructions": "?"}
        fuzz_schemas.check_body(name, {"state": "s", "questions": {f"q{n}": noul for n in range(count)}})


@pytest.mark.parametrize("count", [0, 1, 2, 10, 11, 255, 256, 400, 401])
def test_the_document_has_the_bounds_of_decisions(count: int) -> None:
    predicate = {"type": "predicate", "instructions": "?"}
    for questions in (
        [{"type": "choice", "instructions": "?", "choices": [{"value": f"c{n}"} for n in range(count)]}],
        [{"type": "score", "instructions": "?", "levels": [{"label": "l"}] * count}],
        [predicate] * count,
    ):
        fuzz_schemas.check_body("Decisions", {"model": "m", "input": "x", "questions": questions})
    salted = {"model": "m", "input": "x", "questions": [predicate], "cache_salt": "s" * count}
    fuzz_schemas.check_body("Decisions", salted)


@pytest.mark.parametrize("name", ["", " ", "q"])
def test_the_document_knows_that_a_question_has_a_name(name: str) -> None:
    for component in ("SystemOneJev", "SystemOneNative"):
        noul = {"type": "noul", "instructions": "?"}
        fuzz_schemas.check_body(component, {"state": "s", "questions": {name: noul}})


@given(st.sampled_from(fuzz_schemas.NAMES), json_values())
def test_any_json_value_is_refused_or_taken_by_schema_and_document_alike(name: str, body: Any) -> None:
    fuzz_schemas.check_body(name, body)


@given(st.sampled_from(["jev", "native"]), st.integers(1, 300), st.integers(1, 20))
def test_any_engines_limits_show_in_what_a_schema_says_of_itself(profile: str, options: int, questions: int) -> None:
    limits = fuzz_schemas.Limits(questions=questions, request_questions=questions, options=options, levels=options)
    told = describe(schema_for(profile, limits, options))["properties"]["questions"]
    assert told["maxProperties"] == questions
    choice = told["additionalProperties"]["anyOf"][1]["properties"]["criteria"]
    assert choice["maxProperties"] == (min(options, 255) if profile == "jev" else options)
