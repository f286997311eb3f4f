"""The error table and bodies (web/errors.py): contract § Limits and errors; wire/systemone.md §4.2, §6; design §5."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import jsonio
from web.errors import KINDS, ApiError, Invalid, Problem, kind_of_status, render, render_refusal

CONTRACT = {
    "unauthorized": 401,
    "request_too_large": 413,
    "invalid_request": 422,
    "busy": 429,
    "out_of_memory": 503,
    "scoring_failed": 500,
    # Added by design §5.
    "scorer_unavailable": 503,
    "deadline_exceeded": 504,
    "not_found": 404,
    "method_not_allowed": 405,
    "unsupported_media_type": 415,
}


@pytest.mark.parametrize(("code", "status"), CONTRACT.items())
def test_the_contracts_codes_and_statuses(code: str, status: int) -> None:
    assert (KINDS[code].status, KINDS[code].code) == (status, code)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["/decide", "/decide/shared", "/health", "/nope", "/v1", "/"])
def test_outside_v1_a_body_is_exactly_the_contracts_envelope(kind: str, path: str) -> None:
    status, _, body = render(ApiError(kind, "a message"), path)
    assert status == KINDS[kind].status
    assert jsonio.loads(body) == {"error": {"code": KINDS[kind].code, "message": "a message"}}


@pytest.mark.parametrize("kind", KINDS)
def test_under_v1_a_body_also_has_jevs_detail(kind: str) -> None:
    status, _, body = render(ApiError(kind, "a message"), "/v1/systemone")
    parsed = jsonio.loads(body)
    assert parsed["error"] == {"code": KINDS[kind].code, "message": "a message"}
    assert set(parsed) == {"error", "detail"}
    if status == 422:
        assert parsed["detail"] == [{"loc": ["body"], "msg": "a message", "type": "value_error"}]
    else:
        assert parsed["detail"] == {"error_type": KINDS[kind].error_type, "message": "a message"}


def test_jevs_error_types() -> None:
    assert KINDS["unauthorized"].error_type == "authentication_error"
    assert KINDS["busy"].error_type == "rate_limit_error"
    assert KINDS["request_too_large"].error_type == "request_too_large"
    assert KINDS["scoring_failed"].error_type == KINDS["internal_error"].error_type == "internal_error"
    for kind in ("out_of_memory", "scorer_unavailable"):
        assert KINDS[kind].error_type == "overloaded_error"
    for kind in ("not_found", "method_not_allowed", "unsupported_media_type"):
        assert KINDS[kind].error_type == "api_usage_error"


@pytest.mark.parametrize("kind", KINDS)
def test_retry_after_stands_on_429_and_503_within_what_clients_obey_and_on_no_client_error(kind: str) -> None:
    status, headers, _ = render(ApiError(kind, "m"), "/decide")
    found = dict(headers)
    if status in (429, 503):
        assert "Retry-After" in found
    if "Retry-After" in found:
        assert status in (429, 503, 504)
        assert 1 <= int(found["Retry-After"]) <= 5  # wire/systemone.md §6: above 30 s a client gives up at once
        assert int(found["Retry-After-Ms"]) == 1000 * int(found["Retry-After"])
    else:
        assert "Retry-After-Ms" not in found


def test_401_names_the_scheme_and_no_other_status_does() -> None:
    for kind in KINDS:
        headers = dict(render(ApiError(kind, "m"), "/decide")[1])
        assert headers.get("WWW-Authenticate") == ("Bearer" if kind == "unauthorized" else None)


def test_an_errors_own_headers_are_kept() -> None:
    _, headers, _ = render(ApiError("busy", "m", [("X-One", "1")]), "/decide")
    assert headers[0] == ("X-One", "1")
    assert len(headers) == 3


def problem(number: int) -> Problem:
    return Problem(("questions", "q", "criteria", number), f"problem {number}", "string_type")


def test_invalid_joins_every_problem_in_the_message_and_lists_them_for_jev() -> None:
    error = Invalid([Problem((), "at the root", "dict_type"), problem(1)])
    assert error.message == "at the root; questions.q.criteria.1: problem 1"
    body = jsonio.loads(render(error, "/v1/systemone")[2])
    assert body["detail"] == [
        {"loc": ["body"], "msg": "at the root", "type": "dict_type"},
        {"loc": ["body", "questions", "q", "criteria", 1], "msg": "problem 1", "type": "string_type"},
    ]
    assert body["error"] == {"code": "invalid_request", "message": error.message}


def test_a_flood_of_problems_is_cut_and_counted() -> None:
    error = Invalid([problem(i) for i in range(1000)])
    assert len(error.problems) == 20
    assert error.message.endswith("; and 980 more")
    assert "problem 19" in error.message
    assert "problem 20" not in error.message
    assert "more" not in Invalid([problem(i) for i in range(20)]).message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "bad_request"),
        (404, "not_found"),
        (405, "method_not_allowed"),
        (413, "request_too_large"),
        (414, "invalid_request"),
        (415, "unsupported_media_type"),
        (500, "internal_error"),
        (501, "internal_error"),
        (503, "internal_error"),
        (304, "internal_error"),
    ],
)
def test_a_status_of_the_framework_becomes_a_kind_of_the_table(status: int, kind: str) -> None:
    assert kind_of_status(status) == kind
    assert kind in KINDS


@given(st.sampled_from(sorted(KINDS)), st.text(), st.sampled_from(["/decide", "/v1/systemone"]))
def test_any_message_makes_a_body_of_strict_json(kind: str, message: str, path: str) -> None:
    body: Any = jsonio.loads(render(ApiError(kind, message), path)[2])
    assert body["error"]["message"] == message


@given(
    st.lists(
        st.builds(
            Problem, st.lists(st.text(max_size=4) | st.integers(0, 9), max_size=4).map(tuple), st.text(max_size=9)
        ),
        min_size=1,
        max_size=30,
    )
)
def test_any_problems_make_a_body_of_strict_json_with_a_nonempty_list(problems: list[Problem]) -> None:
    body: Any = jsonio.loads(render(Invalid(problems), "/v1/systemone")[2])
    assert 1 <= len(body["detail"]) <= 20
    assert all(item["loc"][0] == "body" and set(item) == {"loc", "msg", "type"} for item in body["detail"])


# -- what gunicorn and nginx answer in the application's place ---


@pytest.mark.parametrize("status", [400, 403, 405, 413, 414, 417, 431, 499, 500, 501, 502, 503, 504, 505, 599])
def test_a_refusal_of_any_status_has_the_words_of_the_table(status: int) -> None:
    headers, body = render_refusal(status, "/decide")
    error = jsonio.loads(body)["error"]
    assert set(jsonio.loads(body)) == {"error"}
    kind = KINDS[error["code"]]
    assert error["message"]
    # Not supported (501, 505) is the caller's to change; else 4xx is theirs and 5xx is not.
    assert kind.status // 100 == (4 if status in (501, 505) else status // 100)
    assert ("Retry-After" in dict(headers)) is (kind.retry_after > 0)


def test_a_refusal_without_a_path_is_in_both_shapes() -> None:
    assert render_refusal(400, "") == render_refusal(400, "/v1/systemone")
    assert set(jsonio.loads(render_refusal(400, "")[1])) == {"error", "detail"}
