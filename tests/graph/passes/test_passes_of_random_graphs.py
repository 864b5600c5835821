"""Every pass alone, and all together: the same bits, a sound graph, and nothing left to do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes import PASSES
from plait.graph.passes.fold_constants import fold_constants
from plait.graph.passes.pipeline import Pass, name_of, run_passes
from plait.graph.passes.unneeded import remove_dead
from random_graphs import expected, feeds, graphs

ALONE = {name_of(one): one for one in PASSES}


def assert_same_bits(graph: Graph, other: Graph) -> None:
    fed = feeds(graph)
    before, after = expected(graph, fed), expected(other, fed)
    for name in graph.outputs:
        np.testing.assert_array_equal(after[name], before[name])
        assert after[name].dtype == before[name].dtype


@pytest.mark.parametrize("name", ALONE)
@given(graph=graphs())
@settings(max_examples=15, deadline=None)
def test_a_pass_keeps_every_bit(name: str, graph: Graph) -> None:
    one: Pass = ALONE[name]
    after = check(one(graph, lambda *_: True))
    assert after.inputs == graph.inputs
    assert after.outputs == graph.outputs
    assert_same_bits(graph, after)


@given(graph=graphs(max_nodes=20))
@settings(max_examples=50, deadline=None)
def test_all_passes_keep_every_bit_and_leave_nothing_to_do(graph: Graph) -> None:
    after, _ = run_passes(graph, PASSES, checked=True)
    assert_same_bits(graph, after)
    again, applied = run_passes(after, PASSES)
    assert again is after, [str(one) for one in applied]


@given(graph=graphs())
@settings(max_examples=30, deadline=None)
def test_where_nothing_may_merge_every_node_that_is_needed_stays(graph: Graph) -> None:
    after, _ = run_passes(graph, PASSES, lambda *_: False, checked=True)
    needed, _ = run_passes(graph, [fold_constants, remove_dead])
    assert [node.name for node in after.nodes] == [node.name for node in needed.nodes]
