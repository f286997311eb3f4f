"""The lists of tests/chaos/coverage.py are whole, and name tests that exist."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.chaos.coverage import ARCHITECTURE, TROUBLE
from tests.harness import ROOT

#: The ranks that the document has.
RANKS = [1, 2, 4, 6, 8, 9, 11, 12, 13, 15, 16, 17, 19, 20, 21, 23, 25, 26, 28, 29, 30, 32, 33, 35, 36]
RANKS += [38, 39, 40, 41, 43, 45, 47, 48, 49, 50, 51, 52]


@cache
def functions(file: str) -> frozenset[str]:
    """The test functions of a file."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_failure_test_and_every_fault_has_an_entry() -> None:
    assert list(ARCHITECTURE) == list(range(1, 41))
    assert list(TROUBLE) == RANKS
    assert len(TROUBLE) == 37


@pytest.mark.parametrize(
    ("document", "number"),
    [("architecture", number) for number in ARCHITECTURE] + [("trouble", number) for number in TROUBLE],
)
def test_every_test_that_is_named_exists_and_an_entry_without_one_says_why(document: str, number: int) -> None:
    entry = (ARCHITECTURE if document == "architecture" else TROUBLE)[number]
    assert entry.tests or entry.instead
    missing = [test for test in entry.tests if test.partition("::")[2] not in functions(test.partition("::")[0])]
    assert missing == []
