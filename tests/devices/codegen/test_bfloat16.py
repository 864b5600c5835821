"""bfloat16 in generated kernels: rounded once, whatever it is computed from."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import plait as pl
import pytest
from bound import Bound
from generated_code import run_generated
from node_strategies.drawing import NodeCase
from plait.devices.codegen.registry import find_refusal
from plait.devices.formal.device import FormalDevice
from plait.graph.core.ir import Graph
from plait.graph.values.dtypes import dtype_of
from plait.graph.values.errors import PlaitError
from plait.graph.values.tensor import Array
from single_node import single_node_graph

from .test_drawn_nodes import STRATEGIES, drawn

BFLOAT16 = dtype_of("bfloat16")
WIDER = (np.dtype(np.float16), np.dtype(np.float32))
ULP = 2.0**-7
"""The relative distance between neighbours."""
EDGES = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        -np.nan,
        3.3895e38,
        3.4e38,
        1e-40,
        9.2e-41,
        1 + 2**-8,
        1 + 3 * 2**-8,
    ]
)
"""Among them the largest number, what is beyond it, denormal numbers, and halves between two."""


def test_floats_are_rounded_once_to_even_at_all_sizes() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(6000) * 10.0 ** rng.integers(-41, 38, 6000)
    x = np.concatenate([x, EDGES]).astype(np.float32)
    b = pl.GraphBuilder("cast")
    b.output("y", b.op("Cast", b.input("x", "float32", x.shape), to="bfloat16"))
    y = run_generated(b.build(), {"x": x})["y"]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y.view(np.uint16), x.astype(BFLOAT16).view(np.uint16))


def test_doubles_are_not_rounded_to_singles_on_the_way() -> None:
    just_above = 1 + 2**-8 + 2**-40  # between two numbers, and not in the middle
    b = pl.GraphBuilder("cast")
    b.output("y", b.op("Cast", b.input("x", "float64", (2,)), to="bfloat16"))
    y = run_generated(b.build(), {"x": np.array([just_above, -just_above])})["y"]
    np.testing.assert_array_equal(y.astype(np.float64), [1 + 2**-7, -1 - 2**-7])


def test_what_is_read_again_within_a_kernel_is_what_was_stored() -> None:
    """(x + 1) - 1 is 0 where x is less than half a unit of 1, although f32 has more digits."""
    b = pl.GraphBuilder("chain")
    one = b.constant(np.ones((), BFLOAT16))
    x = b.input("x", "bfloat16", (3,))
    b.output("y", b.op("Sub", b.op("Add", x, one), one))
    graph, feeds = b.build(), {"x": np.array([0.001, 0.01, 0.5], BFLOAT16)}
    found = pl.run(graph, feeds, devices=["opencl:0"])["y"]
    np.testing.assert_array_equal(found.astype(np.float32), [0, 2**-7, 0.5])


def in_bfloat16(op: str, case: NodeCase, graph: Graph) -> tuple[Graph, dict[str, Array]] | None:
    """Return a node with its floats as bfloat16, and feeds; None if it has none, or no code."""
    if not any(spec.dtype in WIDER for spec in graph.tensors.values()):
        return None
    arrays = [None if x is None else np.asarray(x) for x in case.inputs]
    inputs = [x if x is None or x.dtype not in WIDER else x.astype(BFLOAT16) for x in arrays]
    named = {dtype.name: "bfloat16" for dtype in WIDER}
    attributes = {
        name: named.get(value, value) if isinstance(value, str) else value
        for name, value in case.attributes.items()
    }
    constant = {int(name[1:]) for name in graph.constants}
    try:
        made = single_node_graph(op, inputs, attributes, case.n_outputs, constant)
    except PlaitError:  # the operator is not defined for bfloat16
        return None
    (node,) = made.nodes
    if find_refusal(node, made.call(node)) is not None:
        return None
    return made, {name: x for i in range(len(inputs)) if (name := f"x{i}") in made.inputs
                  and (x := inputs[i]) is not None}  # fmt: skip


@pytest.mark.extended
def test_drawn_nodes_give_what_their_definitions_say_to_a_unit_or_two() -> None:
    builder, feeds = pl.GraphBuilder("drawn"), dict[str, Array]()
    taken = set()
    for op in STRATEGIES:
        for number, (case, graph) in enumerate(drawn(op, 4)):
            if (made := in_bfloat16(op, case, graph)) is None:
                continue
            prefix = f"{op}{number}/"
            fed = {n: builder.input(prefix + n, x.dtype, x.shape) for n, x in made[1].items()}
            feeds |= {prefix + name: x for name, x in made[1].items()}
            for name, tensor in builder.include(made[0], fed, prefix).items():
                builder.output(f"{prefix}{name}", tensor)
            taken.add(op)
    assert len(taken) >= 25, sorted(taken)
    every, device = builder.build(), FormalDevice()
    found = run_generated(every, feeds)
    device.open()
    with closing(device), Bound(device, every) as bound:
        definition = bound.run(feeds)
    for name in every.outputs:
        with np.errstate(all="ignore"):
            got, wanted = (np.asarray(x[name]).astype(np.float64) for x in (found, definition))
        size = np.abs(wanted[np.isfinite(wanted)]).max(initial=2**-100)
        np.testing.assert_allclose(got, wanted, 2 * ULP, ULP * float(size), err_msg=name)
