"""What the offline commands do, once their options are read (:mod:`scorer.bench.cli`)."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scorer.bench import folder, rows, run
from scorer.bench.client import Client, TokenError, read_token
from scorer.bench.folder import FolderError
from scorer.bench.run import Options, Outcome
from scorer.bench.server import UrlSource, surface_of
from scorer.bench.source import EngineSource, Source
from shared import jsonio

__all__ = ["accept", "bench", "calibrate", "compare", "replay", "suite"]


def bench(given: argparse.Namespace) -> int:
    """Check the rows, run them, write the report, apply the gates."""
    # Before the hours that a run may take, not after them.
    report = None if given.no_report else _needs("scorer.bench.report")
    files = rows.find(given.rows)
    surface = "engine" if given.url is None else surface_of(given.url)
    checked = rows.check(files, families=given.families, orderings=given.orderings, surface=surface)
    options = Options(given.limit, given.families, given.seed, given.orderings, given.packed)
    source = _source(given)
    try:
        outcome = run.run(
            files, checked, source, given.out, options, overwrite=given.overwrite, concurrency=given.concurrency
        )
    finally:
        source.close()
    _tell(outcome)
    code = 1 if outcome.failures else 0
    if report is not None:
        metrics = _report(report, given.out, outcome)
        broken = report.gates(
            metrics, min_accuracy=given.min_accuracy, max_ece=given.max_ece, max_flips=given.max_flips
        )
        for gate in broken:
            print(f"gate: {gate}", file=sys.stderr)
        code = code or (1 if broken else 0)
    return code


def suite(given: argparse.Namespace) -> int:
    """Run the jevbench suite against the server."""
    from scorer.bench import suite as suites

    table, errors = suites.run(
        given.url,
        read_token(given.token_file, none=given.no_token),
        given.out,
        suite=given.suite_name,
        concurrency=given.concurrency,
        overwrite=given.overwrite,
    )
    print(table)
    print(f"report: {given.out / suites.REPORT}")
    if errors:
        print(f"scorer: {errors} answers were refused or invalid; the report names them", file=sys.stderr)
    return 1 if errors else 0


def accept(given: argparse.Namespace) -> int:
    """Work the acceptance list off, line by line."""
    from scorer.bench import accept as acceptance

    def tell(line: Any) -> None:
        print(acceptance.render(line), flush=True)

    if given.url is not None:
        client = _client(given)
        try:
            url = given.url.rstrip("/")
            for end in ("/decide/shared", "/decide", "/v1/systemone"):
                url = url.removesuffix(end)
            info, lines = acceptance.accept_url(
                client, url, given.rows, least=given.min_accuracy, tolerance=given.tolerance, tell=tell
            )
        finally:
            client.close()
    else:
        try:
            info, lines = acceptance.accept(given.rows, least=given.min_accuracy, tolerance=given.tolerance, tell=tell)
        except acceptance.AcceptError as error:
            print(error, file=sys.stderr)
            return error.code
    counts = {outcome: sum(line.outcome == outcome for line in lines) for outcome in ("pass", "FAIL", "not applicable")}
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    if given.out is not None:
        with given.out.open("xb") as file:
            file.write(jsonio.dumps({"engine": info, "lines": [line.to_json() for line in lines]}) + b"\n")
    return 1 if counts["FAIL"] else 0


def calibrate(given: argparse.Namespace, target: Path) -> int:
    """Fit, tell, store."""
    module = _needs("scorer.bench.calibrate")
    manifest = _manifest(given.run_folder)
    result = module.fit(folder.RecordFile(given.run_folder), _identity(manifest["engine"]), given.seed)
    module.save(target, result, overwrite=given.overwrite)
    print(module.render(result))
    print(f"stored: {target}")
    return 0


def compare(given: argparse.Namespace) -> int:
    """Pair two runs."""
    module = _needs("scorer.bench.compare")
    with contextlib.closing(folder.RecordFile(given.b)) as b:
        result = module.compare(folder.RecordFile(given.a), b)
    print(module.render(result))
    if given.out is not None:
        with given.out.open("xb") as file:
            file.write(jsonio.dumps(result) + b"\n")
    return 0


def replay(given: argparse.Namespace) -> int:
    """Score a saved run again."""
    from scorer.bench import replay as replays

    manifest = _manifest(given.run_folder)
    files = rows.find(given.rows)
    options = manifest["options"]
    checked = rows.check(files, families=options["families"], orderings=options["orderings"])
    source = _source(given)
    try:
        result = replays.replay(given.run_folder, files, checked, source, tolerance=given.tolerance, limit=given.limit)
    finally:
        source.close()
    print(replays.render(result))
    return 1 if result["verdict"] == replays.CHANGED else 0


def _client(given: argparse.Namespace) -> Client:
    try:
        return Client(given.url, read_token(given.token_file, none=given.no_token))
    except TokenError:
        raise
    except ValueError as error:
        raise TokenError(f"--url: {error}") from None


def _source(given: argparse.Namespace) -> Source:
    return EngineSource() if given.url is None else UrlSource(_client(given), given.url)


def _identity(pins: Mapping[str, Any]) -> dict[str, Any]:
    """The pins without the place that was asked: a calibration is the engine's."""
    return {name: value for name, value in pins.items() if name not in ("url", "surface")}


def _manifest(path: Path) -> dict[str, Any]:
    manifest = folder.manifest_of(path)
    if manifest is None:
        raise FolderError(f"{path} holds no run")
    return manifest


def _needs(name: str) -> Any:
    """A module whose libraries are an extra."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise FolderError(
            f"this command needs the package {error.name!r}: pip install 'intern-decision-serve[bench]'"
        ) from None


def _tell(outcome: Outcome) -> None:
    if outcome.cut_bytes:
        print(f"a half-written last line was cut off ({outcome.cut_bytes} bytes); its answers were asked again")
    if not outcome.written and not outcome.failures:
        print(f"the run is finished: {outcome.before} answers are there, nothing was asked")
        return
    share = outcome.source_seconds / outcome.seconds if outcome.seconds else 0.0
    print(
        f"{outcome.written} answers written, {outcome.before} were there, {outcome.failures} failed; "
        f"{outcome.seconds:.2f} s, {share:.0%} of it waiting for the answers"
    )
    for reason, count in sorted(outcome.failed.items()):
        print(f"  failed: {count} {reason} (see {folder.FAILURES})")


def _report(module: Any, out: Path, outcome: Outcome) -> dict[str, Any]:
    """Measure, and write the report unless it is there and nothing has changed; returns the metrics."""
    from scorer.bench import measures

    records = folder.RecordFile(out)
    there = all((out / name).exists() for name in ("report.md", "metrics.json"))
    metrics: dict[str, Any]
    if outcome.written or outcome.failures or not there:
        # What is replaced is a report on an earlier state of the same run.
        metrics = module.write(out, outcome.manifest, records, overwrite=True)
    else:
        metrics = measures.summarise(records)
    print(
        f"accuracy {_share(metrics['accuracy'])} of {metrics['labelled']} labelled answers "
        f"(95 % {_share(metrics['low'])} to {_share(metrics['high'])}), ECE {_share(metrics['ece_10'])}, "
        f"Brier {_share(metrics['brier'])}, NLL {_share(metrics['nll'])}"
    )
    print(f"report: {out / 'report.html'}")
    return metrics


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
