"""Elements that are gathered in even steps are sliced."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes.strength import reduce_strength

SHAPE = (3, 9)


def gathered(indices: list[int], axis: int = -1, dtype: str = "int64") -> Graph:
    b = pl.GraphBuilder("gathered")
    x = b.input("x", "float32", SHAPE)
    b.output("y", b.op("Gather", x, np.array(indices, dtype), axis=axis))
    return b.build()


def assert_sliced(graph: Graph) -> None:
    after = check(reduce_strength(graph))
    assert [node.op for node in after.nodes] == ["Slice"]
    x = {"x": np.arange(27, dtype=np.float32).reshape(SHAPE)}
    before, found = (pl.run(pl.plan(one, ["formal"], passes=()), x) for one in (graph, after))
    np.testing.assert_array_equal(found["y"], before["y"])


@given(first=st.integers(0, 8), step=st.integers(-4, 4).filter(bool), count=st.integers(2, 9))
@settings(max_examples=30, deadline=None)
def test_even_steps_are_a_slice(first: int, step: int, count: int) -> None:
    indices = [i for i in range(first, first + step * count, step) if 0 <= i < SHAPE[1]]
    graph = gathered(indices)
    if len(indices) > 1:
        assert_sliced(graph)
    else:
        assert reduce_strength(graph) is graph


def test_backwards_from_the_last_row_to_the_first_is_a_slice() -> None:
    assert_sliced(gathered([2, 1, 0], axis=0, dtype="int32"))


@pytest.mark.parametrize("indices", [[0, 1, 3], [4, 4, 4], [-2, -1], [5]])
def test_other_indices_stay(indices: list[int]) -> None:
    graph = gathered(indices)
    assert reduce_strength(graph) is graph


def test_what_is_outside_still_raises() -> None:
    b = pl.GraphBuilder("outside")
    x = b.input("x", "float32", ("n",))
    b.output("y", b.op("Gather", x, np.array([7, 8, 9])))
    graph = b.build()
    assert reduce_strength(graph) is graph
