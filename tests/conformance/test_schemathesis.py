"""schemathesis against the running service and the document that it serves: every check of the tool that applies to an
HTTP surface without links, with bodies that fit the document and bodies that do not.

``pytest --examples 1000`` tries many more.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.harness import D1, ROOT, TOKEN, Pair, pair
from web.openapi import document
from web.openapi.operations import OPERATIONS

#: Fixed, so that a failure is found again.
SEED = 20261201
#: Its own rule for good bodies wants a 2xx; ours is in schemathesis_hooks.
EXCLUDED = "positive_data_acceptance"
PHASES = "examples,coverage,fuzzing"

SERVERS = {
    "fake": {"ENGINE": "fake"},
    "sparrow": {"ENGINE": "sparrow"},
    "native": {"ENGINE": "fake", "SYSTEMONE_PROFILE": "native"},
}


#: Sizes beyond which a body meets MAX_BODY_BYTES before it meets the bound.
OUT_OF_REACH = {"maxItems": 1_000, "maxLength": 10_000}


def within_reach(told: Any) -> Any:
    """The document without bounds that no body of the default size can break: the tool would try, with megabytes, and
    be told 413."""
    if isinstance(told, list):
        return [within_reach(item) for item in told]
    if not isinstance(told, dict):
        return told
    return {
        name: within_reach(item)
        for name, item in told.items()
        if not (name in OUT_OF_REACH and isinstance(item, int) and item > OUT_OF_REACH[name])
    }


def run(service: Pair, told: Any, examples: int, *more: str, body: str = "SystemOneJev") -> tuple[int, str]:
    """The command line's exit code and output for a document; ``body`` is the component in force on /v1/systemone."""
    path = service.dir / "openapi.json"
    path.write_text(json.dumps(within_reach(told)))
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run", str(path)]
    command += ["--url", f"http://127.0.0.1:{service.port}", "--header", f"Authorization: Bearer {TOKEN}"]
    command += ["--checks", "all", "--exclude-checks", EXCLUDED, "--phases", PHASES, "--continue-on-failure"]
    command += ["--max-examples", str(examples), "--seed", str(SEED), "--no-color", "--warnings", "off", *more]
    hooks = "tests.conformance.schemathesis_hooks"
    ended = subprocess.run(
        command,
        cwd=service.dir,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": hooks, "TEST_SYSTEMONE_BODY": body},
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def generated(output: str) -> int:
    found = re.search(r"(\d+) generated", output)
    assert found, output[-3000:]
    return int(found.group(1))


def conforms(name: str, examples: int, least: int) -> None:
    body = "SystemOneNative" if "native" in name else "SystemOneJev"
    with pair(**SERVERS[name]) as service:
        served = service.request("GET", "/openapi.json", headers={})[2]
        assert served == document()
        code, output = run(service, served, examples, body=body)
        assert code == 0, output[-6000:]
        assert re.search(rf"Tested: +{len(OPERATIONS)}$", output, re.M), output[-3000:]
        assert generated(output) >= least
        assert service.slots_in_use() == 0
        assert service.post("/decide", D1)[0] == 200
        assert "unexpected error" not in service.log("web")
        assert "Traceback" not in service.log("web") + service.log("scorer")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SERVERS)
def test_the_service_keeps_to_the_document_that_it_serves(name: str, request: pytest.FixtureRequest) -> None:
    conforms(name, request.config.getoption("--examples"), 300)


LIES = {
    "a required name that is not": ("Decide", lambda schema: schema["required"].append("workload")),
    "a bound that is not": ("Decide", lambda schema: schema["properties"]["options"].update(minItems=3)),
    "a word that is not": ("Decide", lambda schema: schema["properties"]["orderings"]["enum"].append("some")),
    "an answer that is not": ("DecideResult", lambda schema: schema["required"].append("logits")),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_document_that_says_something_else_than_the_service_does_is_noticed(lie: str, served: Pair) -> None:
    name, change = LIES[lie]
    told = document()
    change(told["components"]["schemas"][name])
    code, output = run(served, told, 1, "--include-path", "/decide")
    assert code == 1, output[-3000:]
    assert "POST /decide" in output
