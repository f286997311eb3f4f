"""``python -m tests.fuzz [--seconds N] [NAME ...]``: coverage-guided fuzzing with atheris, one target after the other.

Each target runs in a process of its own, from its seeds; a finding ends it with the traceback, and the input is printed
as the line to add to SEEDS. Exit code 1 when there was one.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

TARGETS = ("json", "schemas", "body", "wire")
#: Bytes of one input.
_MOST_BYTES = 4096
#: Seconds for one input: only a hang takes longer.
_TIMEOUT_S = 20


def fuzz(name: str, libfuzzer: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["shared", "web", "tests.fuzz"]):
        target = importlib.import_module(f"tests.fuzz.fuzz_{name}")
    atheris.Setup([sys.argv[0], *libfuzzer], target.check)
    atheris.Fuzz()


def run(name: str, seconds: int) -> bool:
    """One target in a process of its own; whether it found nothing."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(importlib.import_module(f"tests.fuzz.fuzz_{name}").SEEDS):
            (corpus / str(number)).write_bytes(seed)
        command = [sys.executable, "-m", "tests.fuzz", "--child", name, "--", str(corpus)]
        command += [f"-max_total_time={seconds}", f"-max_len={_MOST_BYTES}", f"-timeout={_TIMEOUT_S}"]
        command += [f"-artifact_prefix={folder}/", "-print_final_stats=1", "-verbosity=1"]
        print(f"== {name}", flush=True)
        ended = subprocess.run(command, check=False).returncode
        for path in sorted(Path(folder).iterdir()):
            if path.is_file():
                print(f"{path.name.split('-')[0]}: {path.read_bytes()!r}", flush=True)
    return ended == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Coverage-guided fuzzing with atheris.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(TARGETS)}; none means all")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    options = parser.parse_args()
    if unknown := set(options.names) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}")
    fine = [run(name, options.seconds) for name in options.names or TARGETS]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        fuzz(sys.argv[2], sys.argv[4:])
    else:
        sys.exit(main())
