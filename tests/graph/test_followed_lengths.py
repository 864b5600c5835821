"""Lists of lengths are followed from a Shape to the Reshape that reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.infer import infer_changed, infer_node
from plait.graph.core.ir import Graph, Node, make_call
from plait.graph.values.tensor import Dim

Draw = Any


def evaluate(shape: tuple[Dim, ...] | None, n: int, m: int) -> list[int]:
    assert shape is not None
    scope = {"n": n, "m": m, "slice": lambda length, *part: len(np.zeros(length)[slice(*part)])}
    return [int(eval(str(dim), scope)) for dim in shape]


def draw_list(draw: Draw, b: pl.GraphBuilder, x: Any, steps: int) -> Any:
    """Add nodes that compute a list of lengths from that of x, and return it."""
    lengths = b.op("Shape", x, start=draw(st.integers(-2, 0)))
    for _ in range(steps):
        (count,) = b.spec(lengths).static_shape
        index = st.integers(-count, count - 1)
        number = draw(st.lists(st.integers(1, 4), min_size=1, max_size=1) | st.just([2] * count))
        match draw(st.sampled_from(["Cast", "Slice", "Gather", "Concat", "scalar", "compute"])):
            case "Cast":
                lengths = b.op("Cast", lengths, to=draw(st.sampled_from(["int32", "int64"])))
            case "Slice" if count > 1:
                step, first = draw(st.sampled_from([-1, 1, 2])), draw(index)
                end = 2**31 if step > 0 else -(2**31)
                ints = [np.array([one]) for one in (first, end, 0, step)]
                lengths = b.op("Slice", lengths, *ints)
            case "Gather":
                lengths = lengths.gather(np.array(draw(st.lists(index, min_size=1, max_size=4))))
            case "Concat":
                more = np.array(number, b.spec(lengths).dtype)
                both = [lengths, more] if draw(st.booleans()) else [more, lengths, lengths]
                lengths = b.op("Concat", *both[: 2 if count > 8 else None], axis=0)
            case "scalar":
                lengths = lengths.gather(np.array(draw(index))).unsqueeze(np.array([0]))
            case "compute":
                op = draw(st.sampled_from(["Add", "Mul", "Div"]))
                lengths = b.op(op, lengths, np.array(number, b.spec(lengths).dtype))
    return lengths


@settings(max_examples=60)
@given(data=st.data(), n=st.integers(1, 9), m=st.integers(1, 9), steps=st.integers(0, 6))
def test_the_inferred_lengths_are_those_of_the_run(
    data: st.DataObject, n: int, m: int, steps: int
) -> None:
    b = pl.GraphBuilder("lengths")
    x = b.input("x", "float32", ("n", "m", 4))
    lengths = draw_list(data.draw, b, x, steps)
    inferred = b.spec(b.op("ConstantOfShape", b.op("Cast", lengths, to="int64"))).shape
    b.output("lengths", b.op("Identity", lengths))
    graph = b.build()
    feeds = {"x": np.zeros((n, m, 4), np.float32)}
    computed = pl.run(pl.plan(graph, "cpu", passes=()), feeds)["lengths"]  # by kernels
    assert evaluate(inferred, n, m) == computed.tolist()
    folded = pl.run(graph, feeds)["lengths"]
    assert (folded.dtype, folded.tolist()) == (computed.dtype, computed.tolist())


@settings(max_examples=60)
@given(
    n=st.integers(1, 9),
    m=st.integers(1, 9),
    least=st.integers(0, 12),
    part=st.tuples(st.integers(-4, 4), st.integers(-3, 3), st.integers(1, 3)),
)
def test_pads_and_slices_by_lengths_are_those_of_the_run(
    n: int, m: int, least: int, part: tuple[int, int, int]
) -> None:
    """A sound is filled up to a least length and to a multiple of 4, and cut again."""
    b = pl.GraphBuilder("padded")
    x = b.input("x", "float32", ("n", "m"))
    length, zero = b.op("Shape", x, start=1), np.array([0])
    missing = b.op("Max", np.array([least]) - length, zero)
    rest = b.op("Div", length + 3, np.array([4])) * 4 - length
    y = b.op("Pad", x, b.op("Concat", zero, missing, zero + 1, rest, axis=0))
    start, more, step = (np.array([one]) for one in part)
    z = b.op("Slice", y, start, length + more, zero + 1, step)
    for name, tensor in (("y", y), ("z", z)):
        b.output(name, tensor)
    inferred = [evaluate(b.spec(one).shape, n, m) for one in (y, z)]
    found = pl.run(b.build(), {"x": np.ones((n, m), np.float32)})
    assert inferred == [[*found[name].shape] for name in "yz"]
    wanted = np.pad(np.ones((n, m)), ((0, 1), (max(least - m, 0), -m % 4)))
    np.testing.assert_array_equal(found["y"], wanted)
    np.testing.assert_array_equal(found["z"], wanted[:, part[0] : m + part[1] : part[2]])


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (["n", -1], ("n", "4*m")),
        (["n", "m", 2, -1], ("n", "m", 2, 2)),
        ([-1, "m"], ("4*n", "m")),
        ([0, -1], ("n", "4*m")),
        (["n*m", 4], ("n*m", 4)),
    ],
)
def test_a_reshape_keeps_the_names_of_axes(target: list[Dim], wanted: tuple[Dim, ...]) -> None:
    b = pl.GraphBuilder("reshape")
    x = b.input("x", "float32", ("n", "m", 4))
    n, m = (b.op("Shape", x, start=axis, end=axis + 1) for axis in (0, 1))
    parts = [
        {"n": n, "m": m, "n*m": n * m}[length] if isinstance(length, str) else np.array([length])
        for length in target
    ]
    b.output("y", b.op("Reshape", x.relu(), b.op("Concat", *parts, axis=0)))
    graph = b.build()
    assert graph.tensors["y"].shape == wanted
    found = pl.run(graph, {"x": np.zeros((3, 5, 4), np.float32)})["y"]
    assert list(found.shape) == evaluate(wanted, 3, 5)


def test_an_expand_keeps_the_names_of_axes() -> None:
    b = pl.GraphBuilder("expand")
    x, row = b.input("x", "float32", ("n", 4)), b.input("row", "float32", (1, 4))
    b.output("y", b.op("Expand", row, b.op("Shape", x)))
    assert b.build().tensors["y"].shape == ("n", 4)


def test_a_length_that_a_value_decides_gets_a_name_of_its_own() -> None:
    b = pl.GraphBuilder("unknown")
    x, count = b.input("x", "float32", ("n", 4)), b.input("count", "int64", (1,))
    b.output("y", b.op("Reshape", x, b.op("Concat", count, np.array([-1]), axis=0)))
    assert b.build().tensors["y"].shape == ("y.shape[0]", "y.shape[1]")


def test_lengths_that_stay_are_followed_to_nodes_that_change() -> None:
    b = pl.GraphBuilder("changed")
    x, y = b.input("x", "float32", ("n", "m")), b.input("y", "float32", ("m", "n"))
    shape = b.op("Concat", b.op("Shape", x), np.array([1]), axis=0)
    b.output("z", b.op("Reshape", b.op("Relu", y), shape))
    graph = b.build()
    *first, reshape = graph.nodes
    more = Node("more", "Tanh", reshape.inputs[:1], ("t",))
    nodes = [*first, more, replace(reshape, inputs=("t", reshape.inputs[1]))]
    given = {name: graph.tensors[name] for name in graph.inputs}
    assert infer_changed(graph, nodes, given, graph.constants)["z"].shape == ("n", "m", 1)


def test_new_lengths_are_followed_though_no_spec_between_changes() -> None:
    """A pass that makes x shorter leaves the spec of its Shape: a list of two."""
    b = pl.GraphBuilder("changed")
    x, row = b.input("x", "float32", ("n", 4)), b.input("row", "float32", (1, 4))
    b.output("y", b.op("Expand", row, b.op("Shape", x, name="shape")).relu())
    graph = b.build()
    spec = pl.TensorSpec("float32", (3, 4))
    given = {"x": spec, "row": graph.tensors["row"]}
    assert infer_changed(graph, graph.nodes, given, graph.constants)["y"].shape == (3, 4)


def test_an_output_without_a_name_lists_nothing() -> None:
    lengths: dict[str, tuple[Dim, ...]] = {}
    node = Node("shape", "Shape", ("x",), ("",), {"start": 0, "end": None})
    infer_node(node, make_call(node, {"x": pl.TensorSpec("float32", ("n", 4))}, {}), lengths)
    assert lengths == {}


def test_a_list_without_a_name_is_kept_by_a_pass() -> None:
    shape = Node("shape", "Shape", ("x",), ("",), {"start": 0, "end": None})
    spec = pl.TensorSpec("float32", ("n", 4))
    graph = Graph("unnamed", ("x",), ("x",), (shape,), {"x": spec}, {})
    assert infer_changed(graph, graph.nodes, {"x": spec}, {}) == {"x": spec}
