"""``python -m scorer serve``: the scorer process; and the offline commands of :mod:`scorer.bench.cli`.

Exit codes of serve: 0 drained after SIGTERM or SIGINT, 70 broken at run time (restart it), 73 another scorer holds the
run directory, 78 a setting or the engine's start check refuses (do not restart it).
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import signal
import sys

from scorer import engines
from scorer.broker import EXIT_REFUSED, EXIT_RUNNING, Broker
from scorer.engines.base import StartRefused
from scorer.notify import Notifier
from shared import logs, settings
from shared.rundir import RunDir, RunDirError, ScorerRunning
from shared.settings import ScorerSettings, SettingsError
from shared.slots import SlotFileError

__all__ = ["main", "serve"]

#: The commands that need no server, with what ``--help`` says of them.
OFFLINE = {
    "bench": "ask an engine or a server labelled rows and measure the answers",
    "accept": "the contract's acceptance list",
    "calibrate": "fit temperatures on a run; nothing applies them by itself",
    "compare": "two runs side by side",
    "replay": "score a saved run again",
}


def serve() -> int:
    """Run the scorer until it is stopped; returns the exit code."""
    # numpy is imported with the engine. Its matrices here are small, and OpenBLAS's other threads would spin between
    # them: with two busy neighbours on two cores a 10-option call had a p99 of 15.9 ms with them and 0.66 ms without.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A crash inside a library, and systemd's watchdog, which sends SIGABRT, leave every thread's stack in the log.
    faulthandler.enable()
    try:
        config = ScorerSettings.from_env()
        run_dir = RunDir(config.run_dir)
        logs.configure(config.log_format, config.log_level)
        for name in settings.unknown_names():
            logging.getLogger("scorer").warning("unknown setting", extra={"fields": {"name": name}})
        if config.hang_s <= config.request_budget_s:
            # A warning only: the web tier, whose setting it is, may have another environment.
            logging.getLogger("scorer").warning("HANG_S is not above REQUEST_BUDGET_S")
        lock = run_dir.lock_scorer()
        broker = Broker(config, run_dir, engines.create(config), Notifier.from_env())
    except (SettingsError, RunDirError, SlotFileError, StartRefused, OSError) as error:
        logs.tell(f"scorer: {error}")
        return EXIT_REFUSED
    except ScorerRunning as error:
        logs.tell(f"scorer: {error}")
        return EXIT_RUNNING
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: broker.stop())
    code = broker.run()
    os.close(lock)
    return code


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    logs.complete_streams()
    given = sys.argv[1:] if argv is None else argv
    if given and given[0] in OFFLINE:
        # Imported for them alone: serve starts without it.
        from scorer.bench import cli

        return cli.main(given)
    parser = argparse.ArgumentParser(prog="python -m scorer", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="serve the web tier until SIGTERM")
    for name, text in OFFLINE.items():
        commands.add_parser(name, help=text)
    parser.parse_args(given)
    return serve()


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a full disk; the exit code says more than what is left in there
            stream.flush()
    # The inference thread is a daemon that may sit inside a CUDA call; the interpreter's orderly exit would abort
    # there.
    os._exit(code)
