"""Places of rows in the outputs of operators, compared with running them row by row."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import plait as pl
import pytest
from bound import Bound
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from node_strategies.catalogue import STRATEGIES
from node_strategies.drawing import NodeCase
from plait.devices import Device
from plait.graph.core.operator import find_operator, list_operators
from plait.graph.core.traits import Trait
from plait.graph.operators import row_axes
from plait.graph.operators.row_axes import RowAxis, Rows, locate_rows
from single_node import AnyArray, single_node_graph
from thirds import leave_to_test_all

EXAMPLES = int(os.environ.get("PLAIT_NODE_EXAMPLES", "6"))
UNHURRIED = (HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large)

WITHOUT_RULES = {
    *("Assign", "Each", "Group", "Loop", "ReduceRows", "ReducedCall", "Scan"),
    *("BoundedCall", "Variable", "Philox", "Multinomial", "RandomNormal", "RandomNormalLike"),
    *("RandomUniform", "RandomUniformLike", "Compress", "NonMaxSuppression", "NonZero", "Unique"),
    *("MaxPoolGradient", "MaxUnpool", "GatherND", "ScatterElements", "ScatterND", "TensorScatter"),
    *("RoiAlign", "MelWeightMatrix", "Range", "Shape", "Size"),
}
"""Operators of which nothing is said: they move rows by their values, or are about their number."""


def has_rule(op: str) -> bool:
    return op in row_axes._rules or Trait.ELEMENTWISE in find_operator(op).traits


OPS = sorted(
    op
    for op in STRATEGIES
    if has_rule(op) and op not in ("Bernoulli", "ConstantOfShape", "Dropout", "Fused")
)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with ExitStack() as stack:
        found = pl.devices.find("cpu")
        found.open()
        stack.callback(found.close)
        yield found


def run(
    device: Device, op: str, inputs: Sequence[AnyArray | None], case: NodeCase
) -> list[AnyArray] | None:
    """Return the outputs, None if the node is not valid for such inputs."""
    try:
        graph = single_node_graph(op, inputs, case.attributes, case.n_outputs, case.constant)
        if not graph.is_static:
            return None
        fed = {name: np.asarray(inputs[int(name[1:])]) for name in graph.inputs}
        with Bound(device, graph) as bound, np.errstate(all="ignore"):
            found = bound.run(fed)
    except pl.PlaitError:
        return None
    return [found[name] for name in graph.outputs]


def test_every_operator_has_a_rule_or_is_listed() -> None:
    homes = {op: find_operator(op).infer.__module__ for op in list_operators()}
    own = {op for op, home in homes.items() if ".graph.operators." in home}
    own = {op for op in own if not op.startswith(("cvm.", "Bounded."))}
    assert {op for op in own if not has_rule(op)} == WITHOUT_RULES


@pytest.mark.parametrize("op", leave_to_test_all(OPS, third=1))
@settings(max_examples=EXAMPLES, suppress_health_check=UNHURRIED, deadline=None)
@given(data=st.data())
def test_rows_that_an_operator_keeps_apart_are_computed_apart(
    device: Device, op: str, data: st.DataObject
) -> None:
    case = STRATEGIES[op](data.draw)
    inputs = list(case.inputs)
    movable = [i for i, x in enumerate(inputs) if x is not None and x.ndim and x.size]
    movable = [i for i in movable if i not in case.constant]
    assume(movable)
    chosen = data.draw(st.sampled_from([movable[:1], movable[:1], movable[:2], movable[-1:]]))
    axes = {i: data.draw(st.integers(0, np.asarray(inputs[i]).ndim - 1)) for i in chosen}
    lengths = {np.asarray(inputs[i]).shape[axis] for i, axis in axes.items()}
    count = min(lengths)
    assume(len(lengths) == 1 and count > 1)
    whole = run(device, op, inputs, case)
    assume(whole is not None)
    graph = single_node_graph(op, inputs, case.attributes, case.n_outputs, case.constant)
    places: list[RowAxis] = [axes.get(i, Rows.NONE) for i, x in enumerate(inputs)]
    places = places[: len(graph.nodes[0].inputs)]
    found = locate_rows(graph, graph.nodes[0], places)
    for row in range(count):
        alone = list(inputs)
        for i, axis in axes.items():
            alone[i] = np.take(np.asarray(inputs[i]), [row], axis)
        by_itself = run(device, op, alone, case)
        if by_itself is None:
            continue  # not for one row: fixed numbers of groups, lengths, or the like
        for place, all_rows, one in zip(found, whole or (), by_itself, strict=True):
            if isinstance(place, int) and op in ("Reshape", "Flatten"):  # in runs of any shape
                in_front = math.prod(all_rows.shape[:place])
                own = all_rows.reshape(in_front, count, -1)[:, row]
                np.testing.assert_array_equal(own.reshape(-1), one.reshape(-1))
            elif isinstance(place, int):
                if one.shape[place] != 1:
                    break  # as many rows as an input says in numbers
                own = np.take(all_rows, [row], place)
                np.testing.assert_allclose(own, one, rtol=1e-3, atol=1e-5)
            elif place is Rows.NONE:
                np.testing.assert_array_equal(all_rows, one)


MIXING = {
    "BatchNormalization": lambda b, x: b.op(
        "BatchNormalization", x, *[np.ones(3, "f4")] * 4, training_mode=True
    ),
    "LRN over rows": lambda b, x: b.op(
        "Transpose", b.op("LRN", b.op("Transpose", x, perm=(1, 0)), size=3), perm=(1, 0)
    ),
    "ReduceMax over all": lambda b, x: x - b.op("ReduceMax", x),
    "TopK over rows": lambda b, x: b.op("TopK", x, np.array([1]), axis=0, outputs=2)[0] + x,
    "Softmax over rows": lambda b, x: b.op("Softmax", x, axis=0),
    "CumSum over rows": lambda b, x: b.op("CumSum", x, np.array(0)),
    "DynamicQuantizeLinear": lambda b, x: b.op("DynamicQuantizeLinear", x, outputs=3)[0],
    "gram": lambda b, x: b.op("MatMul", b.op("MatMul", x, b.op("Transpose", x)), x),
    "flattened": lambda b, x: b.op(
        "Reshape", b.op("Softmax", b.op("Reshape", x, np.array([1, -1]))), np.array([-1, 3])
    ),
    "triangle": lambda b, x: b.op("Trilu", x),
    "elements of one row": lambda b, x: b.op("Reshape", x.reshape(3, 1), b.op("Shape", x)),
}


def build_body(kind: str) -> pl.Graph:
    b = pl.GraphBuilder("rows")
    b.output("y", MIXING[kind](b, b.input("x", "float32", ("rows", 3))))
    return b.build()


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("kind", MIXING)
def test_graphs_that_mix_rows_are_refused_in_all_forms(kind: str, batch: int | None) -> None:
    b = pl.GraphBuilder("each")
    x = b.input("x", "float32", ("n", 3))
    with pytest.raises(pl.GraphError, match="of a row depends on the others"):
        b.each(x, build_body(kind), batch=batch)


@pytest.mark.parametrize("kind", ["Softmax over rows", "DynamicQuantizeLinear"])
def test_graphs_that_mix_items_run_in_no_batch(kind: str) -> None:
    items = [{"x": np.ones((1, 3), np.float32)}] * 3
    with pl.BlockingSession(pl.plan(build_body(kind))) as session:
        with pytest.raises(pl.SessionError, match="of an item depends on the others"):
            list(session.stream(items, batch=2))
        assert len(list(session.stream(items))) == 3


@pytest.mark.parametrize("devices", ["cpu", "ort", "worker:0", "formal"])
@pytest.mark.parametrize("kind", ["Softmax over rows", "DynamicQuantizeLinear"])
def test_one_row_at_a_time_mixes_nothing_on_any_device(kind: str, devices: str) -> None:
    body, rows = build_body(kind), np.array([[1, 2, 4], [3, 0, 9], [0, 0, 1]], "f4")
    inner = pl.GraphBuilder("inner")
    x = inner.input("x", "float32", ("rows", 3))
    inner.output("y", inner.each(x, body, batch=1, name="inner"))
    expected = [pl.run(body, {"x": row[None]})["y"][0] for row in rows]
    for made in body, inner.build():
        b = pl.GraphBuilder("each")
        y, ok = b.each(b.input("x", "float32", ("n", 3)), made, batch=1, on_error="value")
        b.output("y", y)
        b.output("ok", ok)
        plan = pl.plan(b.build(), devices)
        for count in (3, 0, 1):
            found = pl.run(plan, {"x": rows[:count]})
            assert np.array_equal(found["y"], np.reshape(expected[:count], (count, 3)))
            assert found["ok"].tolist() == [True] * count
