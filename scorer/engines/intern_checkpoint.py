"""From a snapshot directory to a running ``inference.py``, fail-closed (INV-3, INV-5).

The file is executed code on a data mount. So it is read once, and the bytes that were hashed are the bytes that are
compiled and run: a second read could see another file. Everything here that can refuse does so before torch is
imported.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

from scorer.engines.base import StartRefused
from shared.pins import INTERN_DECISION_4B, Pin, PinError, read_pin
from shared.settings import PREFIX

__all__ = [
    "MODULE_NAME",
    "Source",
    "check_path",
    "choose_pin",
    "read_source",
    "run",
]

#: Under this name the file stands in ``sys.modules``.
MODULE_NAME = "intern_decision_inference"


@dataclass(frozen=True)
class Source:
    """An ``inference.py`` that is the pinned one: where it lies and its code, compiled from the bytes that were
    hashed."""

    path: Path
    code: CodeType


def choose_pin(pins_file: Path | None) -> Pin:
    """The built-in release, or the one a pins file names. Raises StartRefused."""
    if pins_file is None:
        return INTERN_DECISION_4B
    try:
        return read_pin(pins_file)
    except PinError as error:
        raise StartRefused(f"{PREFIX}PINS_FILE: {error}") from None


def check_path(checkpoint: Path, pin: Pin) -> Path:
    """The absolute path of the snapshot directory, its links unresolved.

    Raises StartRefused unless the directory exists and its path ends in ``snapshots/<revision>`` (INV-3). The path
    counts as it is written (a trailing slash, a linked root) and, for a link that points at a snapshot, as it resolves;
    a file inside is never resolved, because a Hugging Face cache links it into ``blobs/``.
    """
    path = Path(os.path.abspath(checkpoint))
    expected = ("snapshots", pin.revision)
    if expected not in (path.parts[-2:], Path(os.path.realpath(checkpoint)).parts[-2:]):
        raise StartRefused(
            f"{PREFIX}CHECKPOINT: expected a path that ends in snapshots/{pin.revision}, found {checkpoint}"
        )
    if not path.is_dir():
        raise StartRefused(f"{PREFIX}CHECKPOINT: {checkpoint} is not a directory")
    return path


def read_source(checkpoint: Path, pin: Pin) -> Source:
    """Read, hash and compile ``inference.py`` of the snapshot, from one read.

    Raises StartRefused for a file that is missing, that is not the pinned one, or that this Python cannot parse (the
    pinned 4B file needs 3.12: engine/intern-decision.md §1.1).
    """
    path = checkpoint / "inference.py"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StartRefused(f"{path}: {error.strerror}") from None
    found = hashlib.sha256(data).hexdigest()
    if found != pin.sha256:
        raise StartRefused(f"{path}: expected sha256 {pin.sha256} (the pin of {pin.name}), found {found}")
    try:
        # Without dont_inherit this module's own __future__ imports would change the meaning of the file.
        return Source(path, compile(data, str(path), "exec", dont_inherit=True))
    except (SyntaxError, ValueError) as error:
        version = ".".join(map(str, sys.version_info[:3]))
        hint = "; it needs Python 3.12 or later" if sys.version_info < (3, 12) else ""
        raise StartRefused(
            f"{path}: Python {version} cannot parse it (line {getattr(error, 'lineno', None)}){hint}"
        ) from None


def run(source: Source) -> ModuleType:
    """Execute the file as a module. Raises StartRefused when a library it imports is missing or broken."""
    module = ModuleType(MODULE_NAME)
    module.__file__ = str(source.path)
    # Its dataclasses look their module up while the file still runs (engine/intern-decision.md §6.1, 3).
    sys.modules[MODULE_NAME] = module
    try:
        exec(source.code, module.__dict__)
    except Exception as error:
        del sys.modules[MODULE_NAME]
        raise StartRefused(f"{source.path}: does not run here ({type(error).__name__}: {error})") from None
    return module
