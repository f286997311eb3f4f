"""The contract's acceptance list as one command: what was expected of this engine on this machine, what was found.

Without a URL: a process that loads the engine and asks it (:mod:`scorer.bench.inside`), a second one, for the restart,
and a server of our own (:mod:`scorer.bench.pair`), one after the other, so that one model at a time is in memory. With
a URL only what a server can show. Every line says what was expected, what was found, and pass, FAIL or not applicable
and why.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scorer.bench import checks, inside, outside, pair
from scorer.bench.checks import FAIL, NOT_APPLICABLE, Line, Scores
from scorer.bench.client import Client, Unreachable
from scorer.bench.server import UrlSource
from scorer.bench.source import SourceBroken
from shared import jsonio

__all__ = ["AcceptError", "accept", "accept_url", "render", "restarted"]

_ROOT = Path(__file__).resolve().parents[2]
#: Seconds after which a process that asks the engine has hung.
_CHILD_S = 3600


class AcceptError(RuntimeError):
    """The engine could not be asked at all; ``code`` is the exit code of the process that tried (78: it refused)."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def accept(
    paths: Sequence[Path],
    *,
    least: float | None = None,
    tolerance: float | None = None,
    tell: Callable[[Line], None] = lambda line: None,
) -> tuple[dict[str, Any], list[Line]]:
    """The whole list for the engine that the settings name; ``tell`` is given each line as it is known.

    ``paths`` are labelled rows for the controls instead of the built-in ones, ``least`` the accuracy that they must
    reach, ``tolerance`` the distance that two runs may have. Returns the engine's description and the lines. Raises
    AcceptError and RowsError.
    """
    asked = inside.asked_rows(paths)
    lines: list[Line] = []

    def add(*more: Line) -> None:
        for line in more:
            lines.append(line)
            tell(line)

    options = [] if least is None else ["--min-accuracy", str(least)]
    first = _child(paths, [*options, *([] if tolerance is None else ["--tolerance", str(tolerance)])])
    add(*(Line(**line) for line in first["lines"]))
    allowed = inside.tolerance_of(first["info"]["device"], tolerance)
    add(restarted(first["scores"], lambda: _child(paths, ["--answers"])["scores"], allowed))
    if reason := pair.why_not():
        add(Line("through a server", "401, 429, chunks, latency, the engine's own numbers", "", NOT_APPLICABLE, reason))
        return first["info"], lines
    try:
        with pair.OwnPair() as own:
            source = UrlSource(own.client, f"{own.url}/decide")
            source.load()
            add(outside.same_numbers(source, asked, first["scores"], allowed))
            add(*outside.surface(own.client, "", checks.long_state(source)))
    except (pair.PairError, SourceBroken, Unreachable) as error:
        add(Line("through a server", "both processes up and answering", str(error), FAIL))
    return first["info"], lines


def accept_url(
    client: Client,
    url: str,
    paths: Sequence[Path],
    *,
    least: float | None = None,
    tolerance: float | None = None,
    tell: Callable[[Line], None] = lambda line: None,
) -> tuple[dict[str, Any], list[Line]]:
    """The list for a running server of semif's shape; see :func:`accept`. Raises SourceBroken, Unreachable,
    RowsError."""
    asked = outside.decidable(inside.asked_rows(paths))
    base = client.path.removesuffix("/decide/shared").removesuffix("/decide").removesuffix("/v1/systemone")
    source = UrlSource(client, f"{url}/decide")
    source.load()
    reason = inside.unfit(str(source.pins.get("served_model") or ""))
    scores, lost = checks.score(source, asked)
    allowed = inside.tolerance_of(str(source.pins.get("device") or "unknown"), tolerance)
    elsewhere = "not seen from here: the engine runs in another process"
    lines = [
        checks.whole(scores, lost),
        checks.positive(asked, scores, least, reason),
        checks.negative(source, asked, scores, reason),
        checks.compared("A-vs-A, the same server", scores, checks.score(source, asked[::-1])[0], allowed),
        Line("A-vs-A, restarted", "bit-identical", "", NOT_APPLICABLE, "the server is not ours to restart"),
        Line("memory", "told", "", NOT_APPLICABLE, elsewhere),
        Line("over-cap request", "503, then the same answers", "", NOT_APPLICABLE, elsewhere),
        *outside.surface(client, base, checks.long_state(source)),
    ]
    for line in lines:
        tell(line)
    return source.pins, lines


def restarted(first: Scores, again: Callable[[], Scores], allowed: float) -> Line:
    """Contract § Acceptance, 3: ``again`` scores the same rows in another process."""
    try:
        return checks.compared("A-vs-A, restarted", first, again(), allowed)
    except AcceptError as error:
        return Line("A-vs-A, restarted", "an answer from a second process", str(error), FAIL)


def render(line: Line) -> str:
    """One line of the list, wrapped."""
    text = f"expected: {line.expected}"
    if line.found:
        text += f"; found: {line.found}"
    if line.why:
        text += f" ({line.why})"
    return textwrap.fill(
        f"{line.outcome:<15} {line.name}: {text}", 118, subsequent_indent=" " * 16, break_on_hyphens=False
    )


def _child(paths: Sequence[Path], options: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ids-accept-") as scratch:
        out = Path(scratch) / "out.json"
        rows = [str(path.absolute()) for path in paths]
        command = [sys.executable, "-m", "scorer.bench.inside", *options, str(out), *rows]
        try:
            done = subprocess.run(
                command, cwd=_ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=_CHILD_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise AcceptError(f"the engine did not finish within {_CHILD_S} s", 70) from None
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").splitlines()
            raise AcceptError(lines[-1][:500] if lines else "it wrote nothing", done.returncode)
        told: dict[str, Any] = jsonio.loads(out.read_bytes())
        return told
