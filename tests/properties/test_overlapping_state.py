"""Items that hand variables on as they run: results and state are those of one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from overlapping_graphs import faults, feed, pairs, waits
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from stateful_graphs import Oracle

N_ITEMS = 12


def expect(graph: Graph) -> tuple[list[dict[str, Array] | None], Mapping[str, Array]]:
    """Return the results of one item after the other, and the final values."""
    oracle = Oracle(graph)
    found = [None if n in faults else oracle.run(feed(n)) for n in range(N_ITEMS)]
    return found, {f"stateful/{name}": value for name, value in oracle.values.items()}


def compare(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, name)


DEVICES: list[tuple[list[str], dict[str, str]]] = [
    (["cpu:0..2"], {}),
    (["cpu"], {}),
    (["cpu:0..2", "cpu:7"], {"first": "cpu:0..2", "last": "cpu:0..2"}),
]


@pytest.mark.parametrize(("devices", "pins"), DEVICES)
@settings(max_examples=30, deadline=None)
@given(
    graphs=pairs(),
    in_flight=st.integers(2, 6),
    faulty=st.dictionaries(st.integers(0, 11), st.sampled_from(["first", "last"]), max_size=4),
    seed=st.integers(0, 1 << 20),
)
def test_results_and_state_are_those_of_one_item_after_the_other(
    devices: list[str],
    pins: dict[str, str],
    graphs: tuple[Graph, Graph],
    in_flight: int,
    faulty: dict[int, str],
    seed: int,
) -> None:
    random = Random(seed)
    faults.clear()
    faults.update(faulty)
    waits.clear()
    waits.update({number: random.choice([0, 0, 0.001, 0.003]) for number in range(N_ITEMS)})
    inner, graph = graphs
    plan = pl.plan(graph, devices, pin=pins, max_in_flight=in_flight, strategy="preference")
    wanted, final = expect(inner)
    with pl.BlockingSession(plan) as session:
        fed = map(feed, range(N_ITEMS))
        found = [None if i.error else dict(i.outputs) for i in session.stream(fed)]
        compare(session.variables, final)
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            compare(one, other)
