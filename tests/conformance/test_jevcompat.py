"""jevcompat 0.1.1 against the running service.

``jev`` profile: every MUST and every SHOULD that it can exercise. ``native`` profile: exactly the failures that the
contract forces, each with the contract's reason (an engine that shows ids to the model, as intern does, may add the
``semantics.*`` ones; the fake engine shows it nothing).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import jevcompat
import pytest
from jevcompat import report, runner

from tests.harness import TOKEN, Pair, pair

#: Of the two, exactly one applies to any run; this service always has a key.
NOT_APPLICABLE = {"auth.ignored-when-off"}
#: Exercised only by a server that refuses an unknown model, hence with STRICT_MODEL=1.
ONLY_STRICT = {"errors.shape"}

ENGINES = ["fake", "sparrow"]

#: What the contract makes fail in the ``native`` profile.
FORCED = {
    "choice.options": "1..16 options (§ POST /v1/systemone, per-question shape validation); the suite wants up to 255",
    "score.map-rejected": "score criteria are 'a list/object' there; the suite wants the object refused",
    "errors.reject-invalid": "the same object is one of the suite's eight invalid bodies",
    "response.extensions": "'extra engine fields (timing, calibration, backend) ride along', unprefixed",
    "confidence.formula": "'the answers block is the engine's own response, unmodified': its confidence is the top "
    "probability",
}


def run(service: Pair) -> runner.Report:
    return runner.run(f"http://127.0.0.1:{service.port}", key=TOKEN)


def statuses(found: runner.Report, status: str) -> set[str]:
    return {result.id for result in found.results if result.status == status}


def explain(found: runner.Report) -> str:
    return report.terminal(found, evidence=3)


@pytest.fixture(scope="module", params=ENGINES)
def default(request: pytest.FixtureRequest) -> Iterator[runner.Report]:
    """A run against default settings (both engines' own profile is ``jev``)."""
    with pair(ENGINE=request.param) as service:
        yield run(service)


@pytest.fixture(scope="module", params=ENGINES)
def strict(request: pytest.FixtureRequest) -> Iterator[runner.Report]:
    """A run against STRICT_MODEL=1."""
    with pair(ENGINE=request.param, STRICT_MODEL="1") as service:
        yield run(service)


def test_the_suite_is_the_pinned_release() -> None:
    assert jevcompat.__version__ == "0.1.1"


def test_the_jev_profile_meets_32_of_32_musts_and_14_of_14_shoulds(default: runner.Report) -> None:
    found = default.summary()
    assert found["conformant"], explain(default)
    assert (found["MUST"]["passed"], found["MUST"]["tested"]) == (32, 32), explain(default)
    assert (found["SHOULD"]["passed"], found["SHOULD"]["tested"]) == (14, 14), explain(default)
    assert statuses(default, "skip") == NOT_APPLICABLE | ONLY_STRICT


def test_with_strict_model_it_meets_15_of_15_shoulds(strict: runner.Report) -> None:
    found = strict.summary()
    assert found["conformant"], explain(strict)
    assert (found["MUST"]["passed"], found["MUST"]["tested"]) == (32, 32), explain(strict)
    assert (found["SHOULD"]["passed"], found["SHOULD"]["tested"]) == (15, 15), explain(strict)
    assert statuses(strict, "skip") == NOT_APPLICABLE


def test_no_request_of_the_suite_is_inconclusive(default: runner.Report) -> None:
    assert default.inconclusive == []
    assert default.case_errors == []
    assert default.untested_musts == []


def test_the_native_profile_fails_exactly_where_the_contract_forces_it() -> None:
    with pair(SYSTEMONE_PROFILE="native") as service:
        found = run(service)
    assert statuses(found, "fail") == set(FORCED), explain(found)
    assert statuses(found, "skip") == NOT_APPLICABLE | ONLY_STRICT, explain(found)
    assert found.verdict == "not conformant"


def test_the_command_line_says_conformant_and_exits_0() -> None:
    with pair() as service:
        ended = subprocess.run(
            [
                sys.executable,
                "-c",
                "from jevcompat.cli import main; raise SystemExit(main())",
                "test",
                f"http://127.0.0.1:{service.port}",
                "--key",
                TOKEN,
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.rstrip().endswith("conformant to spec 0.1: MUST 32/32, SHOULD 14/14")


def test_without_the_key_the_suite_is_turned_away() -> None:
    with pair() as service:
        for key in (None, "a-wrong-key-0123456789"):
            found = runner.run(f"http://127.0.0.1:{service.port}", key=key)
            assert found.verdict == "not tested"
            assert found.aborted
