"""Hypothesis strategies that several unit tests share."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

#: Finite doubles of every magnitude, -0.0 and subnormals included.
FINITE = st.floats(allow_nan=False, allow_infinity=False)
#: Text that has a UTF-8 form.
TEXT = st.text(max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-(10**25), 10**25) | FINITE | TEXT


def json_values(
    names: st.SearchStrategy[str] = TEXT, leaves: st.SearchStrategy[Any] = SCALARS
) -> st.SearchStrategy[Any]:
    """Any JSON value; ``names`` are the objects' names."""
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=5), max_leaves=20
    )


def probabilities(size: int) -> st.SearchStrategy[list[float]]:
    """``size`` shares of 1, some of them possibly 0."""
    weights = st.lists(st.floats(0.0, 1.0), min_size=size, max_size=size).filter(lambda w: sum(w) > 1e-6)
    return weights.map(lambda w: [x / sum(w) for x in w])
