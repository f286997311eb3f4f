"""A record and its line: what is left out of the line is what the rest says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.bench.records import Record, RecordError
from shared import jsonio
from tests.bench_offline.made import record, spread


@given(
    st.permutations(["a", "b", "c"]),
    st.permutations([0, 1, 2]),
    st.sampled_from([None, "family"]),
    st.sampled_from([None, 0.0, 1.5]),
    st.sampled_from([0.0, 0.25, 0.6, 1.0]),
)
def test_a_record_comes_back_from_its_line_as_it_was(
    labels: list[str], order: list[int], family: str | None, score: float | None, confidence: float
) -> None:
    one = record(spread(0.6, "abc"), "a", order=order, family=family, score=score, confidence=confidence)
    one = Record(**{**one.__dict__, "labels": tuple(labels)})
    assert Record.from_json(jsonio.loads_ours(jsonio.dumps(one.to_json()))) == one


def test_a_line_leaves_out_what_follows_from_it_and_a_line_that_has_it_is_read_too() -> None:
    one = record(spread(0.6, "abc"), "a", family=None)
    line = one.to_json()
    assert not line.keys() & {"labels", "order", "family", "score", "confidence"}
    whole: dict[str, Any] = {**line, "labels": ["a", "b", "c"], "order": [0, 1, 2], "confidence": 0.6, "family": None}
    assert Record.from_json(whole) == Record.from_json(line) == one


@pytest.mark.parametrize(
    "change",
    [
        {"probabilities": None},
        {"probabilities": {}},
        {"probabilities": []},
        {"labels": ["a", "b"]},
        {"labels": 3},
        {"decision": "d"},
        {"more": 1},
        {"order": None},
    ],
)
def test_a_line_that_contradicts_itself_is_no_record(change: dict[str, Any]) -> None:
    line = {**record(spread(0.6, "abc"), "a").to_json(), **change}
    for value in (line, [line], None):
        with pytest.raises(RecordError, match="not a result record"):
            Record.from_json(value)
