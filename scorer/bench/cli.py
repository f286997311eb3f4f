"""The offline commands: bench, accept, calibrate, compare, replay.

Exit codes: 0 as it should be; 1 a finding (a gate, an answer that failed, a changed number, a line of the list); 2 the
command or its input is refused, before anything is scored; 70 the source broke under the run, which can be continued;
78 the engine refuses to start; 130 stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scorer.bench.client import TokenError, Unreachable
from scorer.bench.folder import FolderError
from scorer.bench.plan import MODES
from scorer.bench.rows import RowsError
from scorer.bench.source import SourceBroken
from scorer.bench.suite import SUITES, SuiteError
from scorer.engines.base import StartRefused
from shared.settings import SettingsError

__all__ = ["main"]

EXIT_FOUND, EXIT_USAGE, EXIT_BROKEN, EXIT_REFUSED, EXIT_STOPPED = 1, 2, 70, 78, 130


class UsageError(ValueError):
    """Options that do not go together, or a file that must not be written."""


def main(argv: Sequence[str]) -> int:
    """Run one command line (without the program's name); returns the exit code."""
    given = _parser().parse_args(argv)
    # As serve does, and before numpy is loaded: what is measured here is what is served.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _stop_on_sigterm()
    command: Callable[[argparse.Namespace], int] = given.run
    try:
        return command(given)
    except (RowsError, FolderError, UsageError, TokenError, SuiteError) as error:
        return _told(error, EXIT_USAGE)
    except (SettingsError, StartRefused) as error:
        return _told(error, EXIT_REFUSED)
    except (SourceBroken, Unreachable) as error:
        return _told(error, EXIT_BROKEN)
    except OSError as error:
        return _told(f"{error.filename or 'input or output'}: {error.strerror}", EXIT_BROKEN)
    except KeyboardInterrupt:
        return _told("stopped; a run is continued by the same command", EXIT_STOPPED)


def _told(what: Any, code: int) -> int:
    print(f"scorer: {what}", file=sys.stderr)
    return code


def _stop_on_sigterm() -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    # Refused on any thread but the main one, which only a test's is.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, stop)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scorer",
        description="Ask the scorer's engine, or a server, labelled rows, and judge the answers. The engine is the one "
        "that INTERN_DECISION_ENGINE names.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _bench(commands)
    _accept(commands)
    _calibrate(commands)
    _compare(commands)
    _replay(commands)
    return parser


def _bench(commands: Any) -> None:
    bench = _command(commands, "bench", "ask labelled rows, write the answers, measure them", run_bench)
    bench.add_argument("rows", type=Path, nargs="*", help="JSONL files of labelled rows, or directories of them")
    bench.add_argument("--out", type=Path, required=True, help="the run's folder; the same command continues it")
    bench.add_argument("--overwrite", action="store_true", help="begin anew in a folder that holds a run")
    bench.add_argument("--limit", type=_positive, help="ask so many rows: the first, or with --seed drawn at random")
    bench.add_argument("--families", type=_names, default=(), help="ask rows of these families: a,b")
    bench.add_argument("--seed", type=int, help="of --limit's drawing")
    bench.add_argument(
        "--orderings", choices=MODES, default="none", help="ask each choice in other orders of its options too"
    )
    how = bench.add_mutually_exclusive_group()
    how.add_argument("--one-by-one", dest="packed", action="store_false", help="each question a call (the default)")
    how.add_argument("--packed", action="store_true", help="the questions of a row in one call")
    bench.set_defaults(packed=False)
    _source_options(bench, concurrency=True)
    bench.add_argument("--no-report", action="store_true", help="write the answers only")
    bench.add_argument("--min-accuracy", type=_share, help="gate: exit 1 below this accuracy (0 to 1)")
    bench.add_argument("--max-ece", type=_share, help="gate: exit 1 above this calibration error (10 bins)")
    bench.add_argument("--max-flips", type=_share, help="gate: exit 1 if reordering moves a larger share of decisions")
    bench.add_argument("--suite", choices=("jevbench",), help="run the package's coherence suite against --url instead")
    bench.add_argument("--suite-name", choices=SUITES, default="jevbench-mini", help="which of its suites")


def _accept(commands: Any) -> None:
    accept = _command(commands, "accept", "the contract's acceptance list, line by line", run_accept)
    accept.add_argument("rows", type=Path, nargs="*", help="labelled rows for the controls (built-in ones without)")
    accept.add_argument(
        "--min-accuracy", type=_share, help="what the positive control must reach (without: above chance)"
    )
    accept.add_argument(
        "--tolerance", type=_share, help="how far two runs may differ (without: 0 on a CPU, 0.02 on a GPU)"
    )
    accept.add_argument("--out", type=Path, help="write the lines as JSON, to a new file")
    _source_options(accept)


def _calibrate(commands: Any) -> None:
    text = "fit one temperature a question type on a run; nothing applies it by itself"
    calibrate = _command(commands, "calibrate", text, run_calibrate)
    calibrate.add_argument("run_folder", metavar="RUN", type=Path, help="a run's folder")
    calibrate.add_argument("--seed", type=int, default=0, help="of the split into fitting and held-out rows")
    calibrate.add_argument("--out", type=Path, help="the file to write (RUN/calibration.json)")
    calibrate.add_argument("--overwrite", action="store_true", help="replace that file")


def _compare(commands: Any) -> None:
    compare = _command(commands, "compare", "two runs over the same rows, side by side", run_compare)
    compare.add_argument("a", metavar="A", type=Path, help="a run's folder")
    compare.add_argument("b", metavar="B", type=Path, help="another run's folder")
    compare.add_argument("--out", type=Path, help="write the result as JSON, to a new file")


def _replay(commands: Any) -> None:
    text = "score a saved run again: bit-identical, within the tolerance, or changed"
    replay = _command(commands, "replay", text, run_replay)
    replay.add_argument("run_folder", metavar="RUN", type=Path, help="a run's folder")
    replay.add_argument("rows", type=Path, nargs="+", help="the rows of that run, as they were given to it")
    replay.add_argument("--tolerance", type=_share, default=0.0, help="how far a probability may move (0)")
    replay.add_argument("--limit", type=_positive, help="stop after so many answers")
    _source_options(replay)


def _command(commands: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(run=run)
    return parser


def _source_options(parser: argparse.ArgumentParser, concurrency: bool = False) -> None:
    parser.add_argument("--url", help="ask this server and not the engine: its origin, .../v1/systemone or .../decide")
    if concurrency:
        parser.add_argument("--concurrency", type=_positive, default=1, help="requests at once; with --url only")
    token = parser.add_mutually_exclusive_group()
    token.add_argument(
        "--token-file", type=Path, help="the bearer token (without: the setting API_TOKEN or API_TOKEN_FILE)"
    )
    token.add_argument("--no-token", action="store_true", help="the server asks for none")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number of at least 1")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError("must be a number from 0 to 1")
    return value


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


# The commands' own modules are imported by the command that needs them: measures and pictures take a second to load.


def run_bench(given: argparse.Namespace) -> int:
    """``bench``."""
    from scorer.bench import commands

    if given.suite is None and not given.rows:
        raise UsageError("give at least one file or directory of rows")
    if given.url is None and given.concurrency > 1:
        raise UsageError("--concurrency goes with --url: an engine has one thread")
    if given.suite is not None and given.url is None:
        raise UsageError("--suite needs --url, a running server")
    if given.no_report and (given.min_accuracy, given.max_ece, given.max_flips) != (None, None, None):
        raise UsageError("gates need the measures that --no-report leaves out")
    return commands.suite(given) if given.suite is not None else commands.bench(given)


def run_accept(given: argparse.Namespace) -> int:
    """``accept``."""
    from scorer.bench import commands

    if given.out is not None and given.out.exists():
        raise UsageError(f"{given.out} is there: give another file")
    return commands.accept(given)


def run_calibrate(given: argparse.Namespace) -> int:
    """``calibrate``."""
    from scorer.bench import commands

    target = given.out or given.run_folder / "calibration.json"
    if target.exists() and not given.overwrite:
        raise UsageError(f"{target} is there: give another file, or --overwrite")
    return commands.calibrate(given, target)


def run_compare(given: argparse.Namespace) -> int:
    """``compare``."""
    from scorer.bench import commands

    if given.out is not None and given.out.exists():
        raise UsageError(f"{given.out} is there: give another file")
    return commands.compare(given)


def run_replay(given: argparse.Namespace) -> int:
    """``replay``."""
    from scorer.bench import commands

    return commands.replay(given)
