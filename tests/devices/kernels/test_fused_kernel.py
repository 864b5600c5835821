"""The kernel of Fused: in many blocks, on few buffers, the bits of single nodes."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plait.devices.device import scratch_specs
from plait.devices.kernels import fused, registry
from plait.devices.kernels.registry import kernel
from plait.graph.core.ir import Graph
from plait.graph.core.operator import define, unregister_operator
from plait.graph.core.traits import ELEMENTWISE
from plait.graph.operators.fused import FUSED
from plait.scheduler.planner import lowering
from single_node import AnyArray

SHAPES = ((9000,), (3, 70, 50), (2, 5, 1, 1300), (4000, 3), (2, 1, 5000), (300,))
FLOATS = ("float16", "float32", "float64")
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1.0)

UNARY = ("Relu", "Neg", "Exp", "Tanh", "Sigmoid", "HardSwish", "Gelu", "Mish", "Erf", "Shrink")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "PRelu")


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "BLOCK", 1 << 12)
    monkeypatch.setattr(lowering, "LEAST_BYTES", 0)
    monkeypatch.setattr(lowering, "LEAST_BETWEEN_BYTES", 0)


def fed(graph: Graph) -> dict[str, AnyArray]:
    rng = np.random.default_rng(3)
    arrays = {}
    for name in graph.inputs:
        spec = graph.tensors[name]
        values = 3 * rng.standard_normal(spec.static_shape)
        places = rng.integers(0, 50, spec.static_shape)
        for index, value in enumerate(SPECIAL):
            values = np.where(places == index, value, values)
        with np.errstate(all="ignore"):
            arrays[name] = np.asarray(values).astype(spec.dtype)
    return arrays


def with_one_nan(array: AnyArray) -> AnyArray:
    """Return an array with nan of one sign: which one nan + -nan has depends on vector units."""
    return array if array.dtype.kind != "f" else np.where(np.isnan(array), np.nan, array)


def check_bits(graph: Graph, fused: int | None = None) -> None:
    """Run a graph with its chains fused and without; `fused` says how many there are to be."""
    inputs = fed(graph)
    plan = pl.plan(graph, passes=["fuse_chains"])
    single = pl.run(pl.plan(graph, passes=()), inputs)
    found = pl.run(plan, inputs)
    for name, wanted in single.items():
        assert with_one_nan(found[name]).tobytes() == with_one_nan(wanted).tobytes(), name
    if fused is not None:
        assert [node.op for node in plan.graph.nodes].count(FUSED) == fused


@st.composite
def graphs(draw: Any) -> Graph:
    """Draw nodes that read one another, and inputs of all shapes that broadcast."""
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(FLOATS))
    b = pl.GraphBuilder("drawn")
    full = [b.input("x", dtype, shape), b.input("z", dtype, shape)]
    others: list[Any] = []
    for index in range(draw(st.integers(0, 2))):
        part = [n if draw(st.booleans()) else 1 for n in shape][draw(st.integers(0, len(shape))) :]
        others.append(b.input(f"b{index}", dtype, part))
    others.append(np.array(1.75, dtype))
    for _ in range(draw(st.integers(2, 9))):
        x = draw(st.sampled_from(full[-3:]))
        match draw(st.integers(0, 7)):
            case 0 | 1:
                made = b.op(draw(st.sampled_from(UNARY)), x)
            case 2:
                made = b.op("Clip", x, np.array(-2, dtype), np.array(1.5, dtype))
            case 3:
                y = draw(st.sampled_from(full))
                made = b.op("Where", b.op("Less", x, y), y, x)
            case 4:
                made = b.op("Pow", x, np.array(draw(st.sampled_from([0.5, 2, 3, 1.3])), dtype))
            case 5:
                wide = draw(st.sampled_from(["float64", "int32", "bool"]))
                made = b.op("Cast", b.op("Cast", x, to=wide), to=dtype)
            case _:
                other = draw(st.sampled_from([*full, *others]))
                made = b.op(draw(st.sampled_from(BINARY)), x, other)
        full.append(made)
    b.output("y", b.op("Add", full[-1], draw(st.sampled_from(full))))
    return b.build()


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(graphs())
def test_fused_nodes_write_the_bits_of_single_nodes(graph: Graph) -> None:
    check_bits(graph)


def test_an_operator_of_a_package_that_says_so_is_part_of_chains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "test_fused_kernel.Doubled"
    monkeypatch.setattr(registry, "_kernels", copy(registry._kernels))
    define(name, inputs="x", traits=ELEMENTWISE)(lambda call: [call.spec(0)])
    kernel(name)(lambda xp, inputs, outputs, attributes: xp.add(inputs[0], inputs[0], outputs[0]))
    try:
        b = pl.GraphBuilder("package")
        x = b.input("x", "float32", (3, 3000))
        b.output("y", b.op("Relu", b.op(name, b.op("Neg", x))))
        check_bits(b.build(), 1)
    finally:
        unregister_operator(name)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_integers_wrap_as_they_do_alone(dtype: str) -> None:
    b = pl.GraphBuilder("integers")
    x, z = b.input("x", dtype, (3, 3000)), b.input("z", dtype, (3, 1))
    made = b.op("Div", b.op("Mul", b.op("Add", x, z), x), b.op("Max", x, np.ones((), dtype)))
    b.output("y", b.op("Mod", made, np.array(7, dtype)))
    check_bits(b.build(), 1)


def test_what_is_read_again_is_not_overwritten() -> None:
    b = pl.GraphBuilder("again")
    x = b.input("x", "float32", (9000,))
    a = b.op("Neg", x)
    c = b.op("Exp", a)
    b.output("y", b.op("Add", b.op("Mul", c, x), b.op("Mul", a, x)))
    check_bits(b.build(), 1)


@pytest.mark.parametrize("last", ["Pow", "Where", "Mul"])
def test_a_last_node_that_may_not_overwrite_its_input_does_not(last: str) -> None:
    b = pl.GraphBuilder("last")
    x = b.op("MatMul", b.input("x", "float32", (90, 100)), np.eye(100, dtype=np.float32))
    a = b.op("Abs", x)
    match last:
        case "Pow":
            made = b.op("Pow", b.op("Abs", a), np.float32(3))
        case "Where":
            made = b.op("Where", b.op("Less", a, np.float32(1)), a, x)
        case _:
            made = b.op("Mul", a, a)
    b.output("y", made)
    check_bits(b.build(), 1)


def test_temporaries_are_a_block_long_and_few() -> None:
    b = pl.GraphBuilder("ten")
    x = b.input("x", "float32", (1 << 20,))
    made = x
    for _ in range(10):
        made = b.op("Add", b.op("Mul", made, np.float32(1.5)), x)
    b.output("y", made)
    plan = pl.plan(b.build(), passes=["fuse_chains"])
    (node,) = plan.graph.nodes
    scratch = scratch_specs(plan.prototypes["cpu"], plan.graph, node)
    assert [spec.nbytes for spec in scratch.values()] == [(1 << 12) * 4]
    single = pl.plan(b.build(), passes=())
    assert plan.memory is not None
    assert single.memory is not None
    assert plan.memory.pools["host"].nbytes < 0.7 * single.memory.pools["host"].nbytes


@pytest.mark.parametrize("shape", [(0,), (3, 0), (), (1, 1)])
def test_tensors_of_no_or_one_element_go_through(shape: tuple[int, ...]) -> None:
    b = pl.GraphBuilder("few")
    x = b.input("x", "float32", shape)
    b.output("y", b.op("Relu", b.op("Add", x, np.float32(1))))
    check_bits(b.build(), 1)
