"""Labelled rows: finding the files, checking every row before anything is scored, and reading them one at a time.

Three forms of a line, told apart by what it has (engine/intern-decision.md §4, wire/semif.md §1 and §2b):

    JevBench    ``{id, state, question: {type, instructions, criteria}, labels?, expected?, family?}``; its one question
                is named ``decision``
    canonical   ``{id, state, questions: {field: question}, targets?: {field: {label}}, family? or category?}``
    semif       ``{id, state, question: "...", options: [{id, description}], label? or expected?, family?}``

A row without a label is asked and counts in no accuracy. Unknown names are passed over. A file is read twice, once to
be checked and once to be scored, so it must be a regular file that does not change in between; only a little input is
kept in memory instead.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from scorer.bench import forms
from scorer.bench.forms import Row
from scorer.bench.index import Index
from scorer.bench.plan import count_orders
from shared import jsonio

__all__ = ["MAX_LINE_BYTES", "Checked", "InputFile", "Problem", "RowsError", "check", "find", "read"]

#: A longer line is refused: it has to be held in memory whole.
MAX_LINE_BYTES = 16 << 20
#: Problems that are told one by one; the rest are counted.
_MOST_PROBLEMS = 50
#: Rows of up to so many bytes of lines are kept, as some ten times as much in memory, and not read again: for a
#: thousand short rows that is a sixth of all the harness does.
_KEPT_BYTES = 4 << 20


@dataclass(frozen=True)
class Problem:
    """One broken rule: the file's name, the line from 1 (0: the file itself), the field as a dotted path, and the rule.
    Holds names and ids, never a text of a row."""

    file: str
    line: int
    field: str
    rule: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.field}: {self.rule}" if self.field else f"{where}: {self.rule}"


class RowsError(ValueError):
    """The input cannot be scored: ``problems`` are at most 50 of them, ``more`` counts the rest."""

    def __init__(self, problems: Sequence[Problem], more: int = 0) -> None:
        self.problems = tuple(problems)
        self.more = more
        text = "\n".join(map(str, self.problems))
        super().__init__(f"{text}\nand {more} more" if more else text)


@dataclass(frozen=True)
class InputFile:
    """A file of rows: ``name`` is what records call it (its path below the directory that was given, or its own name),
    ``path`` where it lies."""

    name: str
    path: Path


@dataclass
class Checked:
    """What :func:`check` saw: per file its name, sha256 (hex), bytes, lines that hold rows, and the stamp by which
    :func:`read` knows it again; ``rows`` and ``answers`` are counted after the family filter; ``kept`` has these rows
    if they are few."""

    files: list[dict[str, Any]] = field(default_factory=list)
    stamps: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    rows: int = 0
    answers: int = 0
    kept: list[Row] | None = field(default_factory=list)


def find(paths: Sequence[Path]) -> list[InputFile]:
    """The files that ``paths`` name: a file is itself, a directory every ``*.jsonl`` below it, in order of name.

    Raises RowsError for a path that is not there, a directory without rows, or two files with one name.
    """
    found: list[InputFile] = []
    problems: list[Problem] = []
    for path in paths:
        if path.is_dir():
            below = sorted(one for one in path.rglob("*.jsonl") if one.is_file())
            found += [InputFile(one.relative_to(path).as_posix(), one) for one in below]
            if not below:
                problems.append(Problem(str(path), 0, "", "has no .jsonl file"))
        elif path.is_file():
            found.append(InputFile(path.name, path))
        else:
            problems.append(Problem(str(path), 0, "", "is no regular file" if path.exists() else "does not exist"))
    names = [file.name for file in found]
    problems += [
        Problem(name, 0, "", "two input files have this name; give the directory above them")
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if problems:
        raise RowsError(problems)
    return found


def check(
    files: Sequence[InputFile], *, families: Collection[str] = (), orderings: str = "none", surface: str = "engine"
) -> Checked:
    """Read every row of every file and check it, those of other families included.

    ``families`` selects rows (empty: all); ``orderings`` is as for :func:`scorer.bench.plan.orders`; ``surface`` is
    ``engine``, ``systemone`` or ``decide``, the last of which takes choices only. Raises RowsError with every problem.
    """
    return _Check(families, orderings, surface).run(files)


class _Check:
    """One :func:`check` in progress."""

    def __init__(self, families: Collection[str], orderings: str, surface: str) -> None:
        self.families, self.orderings, self.surface = families, orderings, surface
        self.checked = Checked()
        self.problems: list[Problem] = []
        self.more = 0
        self.known: set[str] = set()
        self.ids = Index()
        self.bytes = 0

    def run(self, files: Sequence[InputFile]) -> Checked:
        try:
            for number, file in enumerate(files):
                self._file(number, file)
        finally:
            self.ids.close()
        if not self.problems and not self.checked.rows:
            there = ", ".join(sorted(self.known)) or "none"
            self._problem("families", 0, "", f"no row is of the families asked; there are {there}")
        if self.problems:
            raise RowsError(self.problems, self.more)
        return self.checked

    def _file(self, number: int, file: InputFile) -> None:
        digest, rows, size = hashlib.sha256(), 0, 0
        broken: list[tuple[str, str]] = []
        try:
            with file.path.open("rb") as stream:
                self.checked.stamps[file.name] = _stamp(stream)
                for line, data in _lines(stream):
                    digest.update(data)
                    size += len(data)
                    if data.isspace():
                        continue
                    rows += 1
                    row = _check_line(data, file.name, broken)
                    if row is not None:
                        if not self.ids.add((number, row.id)):
                            broken.append(("id", "occurs in an earlier line of the file"))
                        self._row(row, len(data), broken)
                    if broken:
                        for where, rule in broken:
                            self._problem(file.name, line, where, rule)
                        broken.clear()
        except OSError as error:
            self._problem(file.name, 0, "", f"cannot be read: {error.strerror}")
            return
        if not rows:
            self._problem(file.name, 0, "", "has no rows")
        self.checked.files.append({"file": file.name, "sha256": digest.hexdigest(), "bytes": size, "rows": rows})

    def _row(self, row: Row, size: int, broken: list[tuple[str, str]]) -> None:
        if self.orderings == "all" or self.surface == "decide":
            broken += forms.refusals(row, self.orderings, self.surface)
        if row.family is not None and len(self.known) < _MOST_PROBLEMS:
            self.known.add(row.family)
        if self.families and row.family not in self.families:
            return
        checked = self.checked
        checked.rows += 1
        if self.orderings == "none":
            checked.answers += len(row.questions)
        else:
            for name, question in row.questions.items():
                checked.answers += count_orders(question["type"], len(row.labels[name]), self.orderings)
        self.bytes += size
        if self.bytes > _KEPT_BYTES:
            checked.kept = None
        if checked.kept is not None:
            checked.kept.append(row)

    def _problem(self, file: str, line: int, where: str, rule: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(Problem(file, line, where, rule))
        else:
            self.more += 1


def read(files: Sequence[InputFile], checked: Checked, families: Collection[str] = ()) -> Iterator[Row]:
    """The rows that :func:`check` has passed, in order, one at a time.

    Raises RowsError when a file is no longer the one that was checked.
    """
    if checked.kept is not None:
        yield from checked.kept
        return
    for file in files:
        try:
            with file.path.open("rb") as stream:
                if _stamp(stream) != checked.stamps[file.name]:
                    raise RowsError([Problem(file.name, 0, "", "has changed since it was checked")])
                for line, data in _lines(stream):
                    if data.isspace():
                        continue
                    broken: list[tuple[str, str]] = []
                    # The strict parse was the check's: this one takes half the time.
                    row = forms.read_row(jsonio.loads_ours(data), file.name, broken)
                    if row is None or broken:
                        raise RowsError([Problem(file.name, line, "", "has changed since it was checked")])
                    if not families or row.family in families:
                        yield row
        except (OSError, jsonio.InvalidJSON):
            raise RowsError([Problem(file.name, 0, "", "has changed since it was checked")]) from None


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Line numbers from 1 and lines with their line breaks. One that is too long comes as its first part, and ends the
    file: where the next one begins is not known without reading it."""
    number = 0
    while data := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        yield number, data
        if len(data) > MAX_LINE_BYTES:
            return


def _check_line(data: bytes, file: str, broken: list[tuple[str, str]]) -> Row | None:
    if len(data) > MAX_LINE_BYTES:
        broken.append(("", f"the line has more than {MAX_LINE_BYTES} bytes"))
        return None
    try:
        value = jsonio.loads(data)
    except jsonio.InvalidJSON as error:
        broken.append(("", str(error).replace("the body", "the line")))
        return None
    return forms.read_row(value, file, broken)


def _stamp(stream: BinaryIO) -> tuple[int, int, int]:
    found = os.fstat(stream.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is no regular file")
    return found.st_ino, found.st_size, found.st_mtime_ns
