"""Loaded by schemathesis itself (SCHEMATHESIS_HOOKS): a check of what a body that fits the document may get, and a
repair without which the tool's bodies would nearly all be refused for one and the same reason.

The check that comes with it wants a 2xx; but the document cannot say everything, and says of two profiles at once what
only one of them is in force. So a refusal is allowed where the body breaks a rule that JSON Schema has no word for, is
of the other profile, or is over a limit of this very engine; and for nothing else.
"""

from __future__ import annotations

import os
import re
from typing import Any

import jsonschema_rs
import schemathesis

from web.openapi import document

#: The component that the server under test takes on /v1/systemone, from the test that starts it.
SYSTEMONE = os.environ.get("TEST_SYSTEMONE_BODY", "SystemOneJev")
#: Refusals that the document leaves to words, or to /health.
UNSAID = re.compile(
    r"option ids must be unique in a decision"
    r"|decision ids must be unique in a request"
    r"|\d+ orderings to score; a request may have 1 to \d+"
    r"|Example has \d+ tokens, above \d+"
    r"|would merge with the value of choice \d+|must not be nested deeper|must have at most \d+ (values|bytes)"
    # The native profile leaves a question's criteria to the engine.
    + (r"|Choice criteria must be|Score criteria must be|Score option keys|Supply " if "Native" in SYSTEMONE else "")
)

_in_force = jsonschema_rs.Draft202012Validator(
    {"$ref": f"#/components/schemas/{SYSTEMONE}", "components": document()["components"]}
)


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Any) -> None:
    """Make ids unique, which JSON Schema cannot ask for. Bad bodies too: each should be refused for its own reason."""
    _number_ids(case.body, "decisions")
    _number_ids(case.body, "options")


def _number_ids(value: Any, within: str) -> None:
    if isinstance(value, list):
        for item in value:
            _number_ids(item, within)
    elif isinstance(value, dict):
        for name, inner in value.items():
            _number_ids(inner, within)
            if name == within and isinstance(inner, list):
                for number, item in enumerate(inner):
                    # (A decision's own id must not be empty, which is a rule of its own.)
                    if isinstance(item, dict) and isinstance(item.get("id"), str) and (item["id"] or name == "options"):
                        item["id"] += f"#{number}"


@schemathesis.check
def documented_data_is_taken(ctx: Any, response: Any, case: Any) -> None:
    """A body that the document allows is answered with 200, or refused for a rule that it cannot say."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code == 200:
        return
    refused = 400 if case.operation.path == "/v1/decisions" else 422
    assert response.status_code == refused, f"{response.status_code} for a documented body"
    if case.operation.path == "/v1/systemone" and not _in_force.is_valid(case.body):
        return
    message = response.json()["error"]["message"]
    assert UNSAID.search(message), f"refused though the document allows it: {message}"
