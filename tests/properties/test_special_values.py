"""Infinities, NaNs and subnormal numbers among inputs: devices put them where definitions do.

Kernels may not multiply by zeros that they added themselves: zero times infinity is NaN.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from bound import Bound
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from node_strategies.catalogue import STRATEGIES
from node_strategies.drawing import FLOATS
from plait.devices import Device
from plait.devices.device import check_support
from plait.devices.ort.differences import SPECIAL_VALUES
from plait.graph.core.ir import Graph
from plait.graph.core.operator import find_operator
from plait.graph.core.traits import Trait
from single_node import AnyArray, single_node_graph
from thirds import leave_to_test_all

EXAMPLES = int(os.environ.get("PLAIT_NODE_EXAMPLES", "8"))
UNHURRIED = (HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large)

WITHOUT_FLOATS = {
    *("And", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "ConstantOfShape"),
    *("ConvInteger", "MatMulInteger", "Not", "Or", "Philox", "Xor"),
}
OF_COMPUTED_LENGTHS = {"Compress", "NonMaxSuppression", "NonZero", "Range", "Unique"}
WHOLE = {"Cofactors", "Det", "DFT", "STFT"}
"""Sums over all of a matrix or line, in an order of their own: see docs/limits.md."""

OPS = sorted(STRATEGIES.keys() - WITHOUT_FLOATS - OF_COMPUTED_LENGTHS - WHOLE)


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, Device]]:
    names = [name for name in ("formal", "cpu", "compiled") if pl.devices.probe(name).found]
    opened = {name: pl.devices.find(name) for name in names}
    with ExitStack() as stack:
        for device in opened.values():
            device.open()
            stack.callback(device.close)
        yield opened


def scatter_special(values: AnyArray, rng: np.random.Generator, share: float) -> AnyArray:
    limits = np.finfo(values.dtype)
    palette = [np.inf, -np.inf, np.nan, -0.0, 0.0, limits.tiny, -limits.smallest_subnormal]
    chosen = rng.choice(np.array(palette, values.dtype), values.shape)
    return np.where(rng.random(values.shape) < share, chosen, values)


def run(device: Device, graph: Graph, fed: dict[str, AnyArray]) -> list[AnyArray] | None:
    """Return the outputs, or None if the device refuses the values."""
    try:
        with Bound(device, graph) as bound, np.errstate(all="ignore"):
            found = bound.run(fed)
    except pl.PlaitError:
        return None
    return [found[name] for name in graph.outputs]


@pytest.mark.parametrize("op", leave_to_test_all(OPS, third=2))
@settings(max_examples=EXAMPLES, suppress_health_check=UNHURRIED, deadline=None)
@given(data=st.data())
def test_special_values_stay_where_the_definition_puts_them(
    devices: dict[str, Device], op: str, data: st.DataObject
) -> None:
    case = STRATEGIES[op](data.draw)
    floats = [i for i, x in enumerate(case.inputs) if x is not None and x.dtype.name in FLOATS]
    assume(floats)
    # The others of a normalization or a cell are parameters: any of them ruins all results.
    are_data = find_operator(op).traits & (Trait.ELEMENTWISE | Trait.PRODUCT)
    which = floats[: data.draw(st.integers(1, len(floats))) if are_data else 1]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    share = data.draw(st.sampled_from([0.05, 0.3]))
    inputs = [
        x if x is None or i not in which else scatter_special(x, rng, share)
        for i, x in enumerate(case.inputs)
    ]
    try:
        graph = single_node_graph(op, inputs, case.attributes, case.n_outputs, case.constant)
    except pl.PlaitError:
        assume(False)  # a constant that has to be a number
    assume(all(spec.is_static and spec.size < 3000 for spec in graph.tensors.values()))
    fed = {x: np.asarray(inputs[int(x[1:])]) for x in graph.inputs}
    wanted = run(devices["formal"], graph, fed)
    assume(wanted is not None)
    for name in devices.keys() - {"formal"}:
        found = run(devices[name], graph, fed)
        assert found is not None, name
        for one, other in zip(found, wanted or (), strict=True):
            check(name, one, other)


def check(name: str, found: AnyArray, wanted: AnyArray) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind in "fc":
        special = ~np.isfinite(wanted)
        np.testing.assert_array_equal(~np.isfinite(found), special, err_msg=name)
        np.testing.assert_array_equal(found[special], wanted[special], err_msg=name)


CONVOLUTIONS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "depthwise, few cells": ((2, 8, 10, 10), (8, 1, 5, 5), {"group": 8, "pads": (2,) * 4}),
    "depthwise, strides": ((1, 6, 13, 9), (6, 1, 3, 3), {"group": 6, "strides": (2, 1)}),
    "depthwise, lines": ((1, 4, 16), (4, 1, 3), {"group": 4, "pads": (1, 1), "dilations": (2,)}),
    "depthwise, volume": ((1, 3, 5, 5, 5), (3, 1, 3, 3, 3), {"group": 3}),
    "3x3, many channels": ((1, 64, 14, 15), (64, 64, 3, 3), {"pads": (1, 1, 1, 1)}),
}


@pytest.mark.parametrize(
    ("device", "dtype"), [*product(("cpu", "compiled"), FLOATS), ("worker:0", "float32")]
)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_one_infinity_or_nan_is_seen_by_its_own_windows_alone(
    name: str, dtype: str, device: str
) -> None:
    if device == "compiled" and not pl.devices.probe(device).found:
        pytest.skip(f"{device} is not here")
    shape, weights_shape, attributes = CONVOLUTIONS[name]
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.1, 0.2, weights_shape).astype(dtype)
    bias = rng.standard_normal(weights_shape[0]).astype(dtype)
    b = pl.GraphBuilder("conv")
    x = b.input("x", dtype, shape)
    y = b.op("Conv", x, weights, bias, **attributes)
    b.output("y", b.op("Neg", y))
    plan = pl.plan(b.build(), [device, "cpu"] if device == "compiled" else device)
    with pl.BlockingSession(plan) as session:
        for value in (np.nan, np.inf, -np.inf):
            fed = rng.standard_normal(shape).astype(dtype)
            channel, *place = (int(rng.integers(length)) for length in shape[1:])
            fed[(0, channel, *place)] = value
            # A window sees the place if one that counts ones there counts any.
            mark = np.zeros_like(fed)
            mark[(0, channel, *place)] = 1
            counted = session.run({"x": mark})["y"] != session.run({"x": mark * 0})["y"]
            with np.errstate(all="ignore"):
                found = session.run({"x": fed})["y"]
            np.testing.assert_array_equal(~np.isfinite(found), counted)
            np.testing.assert_array_equal(found[counted], np.full(counted.sum(), -value, dtype))


@pytest.mark.parametrize("device", ["cpu", "compiled"])
def test_keys_that_are_hidden_may_hold_anything(device: str) -> None:
    """A cache of keys and values is longer than its used part."""
    if not pl.devices.probe(device).found:
        pytest.skip(f"{device} is not here")
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 2, 4, 8)).astype(np.float32) for _ in range(3))
    b = pl.GraphBuilder("attention")
    fed: dict[str, AnyArray] = {"q": q, "k": k, "v": v, "used": np.array([3], np.int64)}
    tensors = [b.input(name, array.dtype, array.shape) for name, array in fed.items()]
    b.output("y", b.op("Attention", *tensors[:3], None, None, None, tensors[3]))
    clean = pl.run(b.build(), fed, devices=[device, "cpu"] if device != "cpu" else device)["y"]
    v[:, :, 3:] = np.nan
    found = pl.run(b.build(), fed, devices=[device, "cpu"] if device != "cpu" else device)["y"]
    assert np.isfinite(clean).all()
    np.testing.assert_allclose(found, clean, rtol=1e-5, atol=1e-6)


OF_SCALES = {"OneHot", "Resize"}
"""Their first floats are scales, or values to fill in."""


@pytest.fixture(scope="module")
def ort_and_formal() -> Iterator[list[Device]]:
    pytest.importorskip("onnxruntime")
    with ExitStack() as stack:
        opened = [pl.device("ort", nan="formal"), pl.device("formal")]
        for device in opened:
            device.open(1)
            stack.callback(device.close)
        yield opened


@pytest.mark.extended
@pytest.mark.parametrize("op", sorted({*OPS} - OF_SCALES - SPECIAL_VALUES.keys()))
@settings(max_examples=EXAMPLES, suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_other_operators_keep_special_values_in_their_places(
    ort_and_formal: list[Device], op: str, data: st.DataObject
) -> None:
    case = STRATEGIES[op](data.draw)
    floats = [i for i, x in enumerate(case.inputs) if x is not None and x.dtype.name in FLOATS]
    assume(floats)
    are_data = find_operator(op).traits & (Trait.ELEMENTWISE | Trait.PRODUCT)
    inputs, rng = list(case.inputs), np.random.default_rng(data.draw(st.integers(0, 2**16)))
    for index in floats if are_data else floats[:1]:
        x = inputs[index]
        assert x is not None
        inputs[index] = scatter_special(x, rng, 0.4)
    graph = single_node_graph(op, inputs, case.attributes, case.n_outputs, case.constant)
    assume(all(spec.size < 3000 for spec in graph.tensors.values()))
    if not check_support(graph, graph.nodes[0], ort_and_formal[0]).ok:
        return
    fed = {name: np.asarray(inputs[int(name[1:])]) for name in graph.inputs}
    found, wanted = (run(device, graph, fed) for device in ort_and_formal)
    for one, other in zip(found or (), wanted or (), strict=False):
        np.testing.assert_array_equal(classify(one), classify(other))


def classify(values: AnyArray) -> AnyArray:
    """Return 0 for numbers, 1 and 2 for infinities, 3 for NaN."""
    if values.dtype.kind in "biu":
        return np.zeros(values.shape, "int8")
    kinds = [np.isposinf(values), np.isneginf(values), np.isnan(values)]
    return np.select(kinds, [1, 2, 3], 0)


def test_the_table_of_limits_is_current() -> None:
    text = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
    (table,) = re.findall("special values: begin -->(.*)<!-- special values: end", text, re.DOTALL)
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", table, re.MULTILINE)
    written = {op: text for ops, text in rows for op in re.findall("`(.*?)`", ops)}
    assert written == dict(SPECIAL_VALUES)


def test_an_option_leaves_such_nodes_to_other_devices() -> None:
    pytest.importorskip("onnxruntime")
    b = pl.GraphBuilder("largest")
    b.output("y", b.op("ReduceMax", b.input("x", "float64", (4,)), name="max", keepdims=False))
    ort, x = pl.device("ort", nan="formal"), np.array([1, np.nan, 3, np.inf])
    plan = pl.plan(b.build(), [ort, "cpu"], pin={})
    assert plan.assignment == {"max": "cpu"}
    assert np.isnan(pl.run(plan, {"x": x})["y"])
    with pytest.raises(pl.UnsupportedOpError, match="nan='formal'"):
        pl.plan(b.build(), ort)
