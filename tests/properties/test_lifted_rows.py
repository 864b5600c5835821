"""Graphs that are lifted to rows compute for each row the results of an item alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import numpy as np
import plait as pl
import pytest
from bound import Bound
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from node_strategies.catalogue import STRATEGIES
from plait.devices import Device
from plait.graph.core.ir import Graph
from plait.graph.core.operator import find_operator
from plait.graph.core.traits import Trait
from plait.graph.operators import row_axes
from plait.scheduler.shapes.lifted_rows import LiftedGraph, lift_rows
from plait.scheduler.shapes.specialise import specialise
from single_node import AnyArray, single_node_graph
from thirds import leave_to_test_all

EXAMPLES = int(os.environ.get("PLAIT_NODE_EXAMPLES", "6"))
UNHURRIED = (HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large)
COUNT = 3
OPS = sorted(
    op
    for op in STRATEGIES
    if (op in row_axes._rules or Trait.ELEMENTWISE in find_operator(op).traits)
    and op != "ConstantOfShape"  # its input is a length
)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with ExitStack() as stack:
        found = pl.devices.find("cpu")
        found.open()
        stack.callback(found.close)
        yield found


def run(device: Device, graph: Graph, fed: Mapping[str, AnyArray]) -> Mapping[str, AnyArray] | None:
    """Return the outputs, None if the node is not valid for such inputs."""
    try:
        graph = specialise(graph, {name: array.shape for name, array in fed.items()})
        if not graph.is_static:
            return None
        with Bound(device, graph) as bound, np.errstate(all="ignore"):
            found = bound.run(fed)
    except pl.PlaitError:
        return None
    return {**graph.constants, **found, **fed}


def stack(lifted: LiftedGraph, items: list[dict[str, AnyArray]]) -> dict[str, AnyArray]:
    fed = {}
    for name, (axis, added) in lifted.places.items():
        parts = [item[name].reshape((1,) * added + item[name].shape) for item in items]
        fed[name] = np.concatenate(parts, axis)
    return fed


def compare_rows(
    device: Device, graph: Graph, lifted: LiftedGraph, items: list[dict[str, AnyArray]]
) -> None:
    alone = [run(device, graph, item) for item in items]
    together = run(device, lifted.graph, stack(lifted, items))
    if None in alone or together is None:
        return
    for name, axis in lifted.axes.items():
        whole, added = np.asarray(together[name]), lifted.added[name]
        for row, wanted in enumerate(alone):
            part = whole if axis is None else np.split(whole, COUNT, axis)[row]
            own = part.reshape(part.shape[added:])
            np.testing.assert_allclose(own, (wanted or {})[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("op", leave_to_test_all(OPS, third=1))
@settings(max_examples=EXAMPLES, suppress_health_check=UNHURRIED, deadline=None)
@given(data=st.data())
def test_rows_of_a_lifted_node_are_those_of_items(
    device: Device, op: str, data: st.DataObject
) -> None:
    """The first input differs from item to item, and may have an axis of length 1."""
    case, random = STRATEGIES[op](data.draw), np.random.default_rng(data.draw(st.integers(0, 99)))
    first, *others = case.inputs
    first = np.asarray(first)
    if first.ndim and data.draw(st.booleans()):
        first = first.take([0] if first.size else [], data.draw(st.integers(0, first.ndim - 1)))
    inputs, fixed = [first, *others], {*case.constant, *range(1, len(case.inputs))} - {0}
    try:
        graph = single_node_graph(op, inputs, case.attributes, case.n_outputs, fixed)
        lifted = lift_rows(graph)
    except pl.PlaitError:
        return
    items = [{"x0": first}]
    while len(items) < COUNT:
        items.append({"x0": random.permuted(first.ravel()).reshape(first.shape)})
    compare_rows(device, graph, lifted, items)


@settings(max_examples=EXAMPLES, deadline=None)
@given(axes=st.lists(st.integers(0, 2), min_size=5, max_size=5))
@example(axes=[2] * 5)  # of 243 ways, the last that would be tried in order
def test_inputs_find_their_axis_of_rows_among_those_of_length_1(
    device: Device, axes: list[int]
) -> None:
    b = pl.GraphBuilder("axes")
    x = b.input("x", "float32", (1, 2))
    for number, axis in enumerate(axes):
        now = b.op("Unsqueeze", x, np.delete([0, 1, 2], axis))
        now = b.op("Concat", now, now, axis=3)
        last = b.input(f"last{number}", "float32", (1, 1, 1, 4))
        b.output(f"y{number}", b.op("Concat", last, now, axis=3))
    graph = b.build()
    lifted, random = lift_rows(graph), np.random.default_rng(0)
    assert [lifted.places[f"last{n}"].axis for n in range(5)] == axes
    shapes = {name: graph.tensors[name].static_shape for name in graph.inputs}
    items = [{n: random.normal(size=s).astype("f4") for n, s in shapes.items()} for _ in range(3)]
    compare_rows(device, graph, lifted, items)
