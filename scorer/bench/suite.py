"""The coherence suite that the PyPI package ``jevbench`` ships (engine/intern-decision.md §4), against a running
server.

It asks whether answers change when nothing that matters has: other words, other orders, other neighbours. It knows no
right answers. An optional extra: the package and its HTTP library are imported here alone, and only when asked for.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from scorer.bench.client import Client

__all__ = ["SUITES", "SuiteError", "run"]

#: Requests: 43, 1,248 and 10,320 (jevbench 0.1.0).
SUITES = ("examples", "jevbench-mini", "jevbench-240")
REPORT = "jevbench.json"


class SuiteError(RuntimeError):
    """The suite could not be run; the message says why."""


def run(
    url: str, token: str | None, out: Path, *, suite: str, concurrency: int = 1, overwrite: bool = False
) -> tuple[str, int]:
    """Run ``suite`` (one of :data:`SUITES`) against the server at ``url`` with at most ``concurrency`` requests at
    once, and save its report as ``out/jevbench.json``.

    Returns the table to print and the number of answers that were refused or invalid. Raises SuiteError without the
    package, without a server, or when ``out`` has a report already and ``overwrite`` is not asked.
    """
    target = out / REPORT
    if target.exists() and not overwrite:
        raise SuiteError(f"{target} is there: give another folder, or --overwrite")
    try:
        jevbench: Any = importlib.import_module("jevbench")
    except ModuleNotFoundError as error:
        raise SuiteError(
            f"the suite needs the package {error.name!r}: pip install 'intern-decision-serve[jevbench]'"
        ) from None
    base = Client(url).path.removesuffix("/v1/systemone")
    origin = url.rstrip("/").removesuffix("/v1/systemone").removesuffix(base) + base
    # No environment variable of the package's own: the token is the one that the command was given.
    model = jevbench.systemone(
        f"{origin}/v1/systemone", "jev-latest", api_key=token, api_key_env=None, per_replica=concurrency
    )
    try:
        report = jevbench.evaluate(model, suite=suite, cache=None, concurrency=concurrency)
    except (jevbench.AnswerFormatError, jevbench.ModelError) as error:
        # Its messages may quote an answer; the first line names the rule.
        raise SuiteError(
            f"stopped before the run: {type(error).__name__}: {str(error).splitlines()[0][:300]}"
        ) from None
    finally:
        model.client.close()
    out.mkdir(parents=True, exist_ok=True)
    report.save(target)
    down = report.result.get("backend_down")
    if down:
        raise SuiteError("the server went down during the run")
    return f"{report.table('dimension')}\n{report.table('group')}", len(report.errors)
