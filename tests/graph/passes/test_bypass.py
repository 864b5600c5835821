"""Nodes that change nothing go; those that change a bit of some input stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.graph.core.check import check
from plait.graph.core.ir import Graph, Node
from plait.graph.passes.bypass import bypass_identities
from plait.graph.values.tensor import Array

Formula = Callable[[pl.GraphBuilder, str], str]
SHAPE = (2, 3)
SPECIAL = np.array([[-0.0, 0.0, np.nan], [np.inf, -np.inf, -1.5]], np.float32)


def _float(value: Any) -> Array:
    return np.asarray(value, np.float32)


GONE: Mapping[str, Formula] = {
    "identity": lambda b, x: b.op("Identity", x),
    "cast to its own dtype": lambda b, x: b.op("Cast", x, to="float32"),
    "cast like itself": lambda b, x: b.op("CastLike", x, x),
    "times one": lambda b, x: b.op("Mul", x, _float(1)),
    "ones times it": lambda b, x: b.op("Mul", _float([1, 1, 1]), x),
    "by one": lambda b, x: b.op("Div", x, _float([[1]])),
    "to the first": lambda b, x: b.op("Pow", x, _float(1)),
    "plus negative zero": lambda b, x: b.op("Add", x, _float(-0.0)),
    "minus zero": lambda b, x: b.op("Sub", x, _float(0.0)),
    "dropout outside of training": lambda b, x: b.op("Dropout", x, _float(0.5)),
    "reshape to its own shape": lambda b, x: b.op("Reshape", x, np.array(SHAPE)),
    "axes in order": lambda b, x: b.op("Transpose", x, perm=(0, 1)),
    "expanded to its own shape": lambda b, x: b.op("Expand", x, np.array([1, 3])),
    "all of it": lambda b, x: b.op("Slice", x, np.array([0]), np.array([9]), np.array([0])),
    "padded by nothing": lambda b, x: b.op("Pad", x, np.zeros(4, np.int64)),
    "once": lambda b, x: b.op("Tile", x, np.array([1, 1])),
    "joined with nothing": lambda b, x: b.op("Concat", x, axis=0),
    "largest of one": lambda b, x: b.op("Max", x),
    "squeezed by nothing": lambda b, x: b.op("Squeeze", x, np.zeros(0, np.int64)),
    "unsqueezed by nothing": lambda b, x: b.op("Unsqueeze", x, np.zeros(0, np.int64)),
    "resized by one": lambda b, x: b.op("Resize", x, None, _float([1, 1]), mode="nearest"),
    "resized to its own size": lambda b, x: b.op(
        "Resize", x, None, None, np.array(SHAPE), mode="nearest"
    ),
    "chosen everywhere": lambda b, x: b.op("Where", np.array([True]), x, _float(3)),
    "chosen nowhere else": lambda b, x: b.op("Where", np.zeros(SHAPE, bool), _float(3), x),
    "the same on either side": lambda b, x: b.op("Where", b.op("Less", x, _float(0)), x, x),
    "largest over no axes": lambda b, x: b.op(
        "ReduceMax", x, np.zeros(0, np.int64), noop_with_empty_axes=True
    ),
    "clipped to no bounds": lambda b, x: b.op("Clip", x, None, None),
}

KEPT: Mapping[str, Formula] = {
    "plus zero": lambda b, x: b.op("Add", x, _float(0.0)),
    "minus negative zero": lambda b, x: b.op("Sub", x, _float(-0.0)),
    "one by it": lambda b, x: b.op("Div", _float(1), x),
    "times two": lambda b, x: b.op("Mul", x, _float([1, 1, 2])),
    "times more ones": lambda b, x: b.op("Mul", x, _float(np.ones((4, 1, 1)))),
    "resized by a little": lambda b, x: b.op("Resize", x, None, _float([1, 1.1]), mode="nearest"),
    "summed over no axes": lambda b, x: b.op(
        "ReduceSum", x, np.zeros(0, np.int64), noop_with_empty_axes=True
    ),
    "resized by one, by weights": lambda b, x: b.op(
        "Resize", x, None, _float([1, 1]), mode="linear"
    ),
    "chosen here and there": lambda b, x: b.op(
        "Where", np.array([True, False, True]), x, _float(3)
    ),
    "the other side, spread": lambda b, x: b.op("Where", np.ones((2, 2, 3), bool), x, _float(3)),
    "backwards": lambda b, x: b.op(
        "Slice", x, np.array([-1]), np.array([-9]), np.array([0]), np.array([-1])
    ),
    "axes the other way round": lambda b, x: b.op("Transpose", x, perm=(1, 0)),
    "another dtype": lambda b, x: b.op("Cast", x, to="float64"),
    "rounded": lambda b, x: b.op("Round", x),
}


def between(formula: Formula, dtype: str = "float32") -> Graph:
    """Return y = -f(-x), so that neither end of f is public."""
    b = pl.GraphBuilder("between")
    b.output("y", b.op("Neg", formula(b, b.op("Neg", b.input("x", dtype, SHAPE), name="first"))))
    return b.build()


def run(graph: Graph, x: Array) -> Array:
    result: Array = pl.run(pl.plan(graph, ["formal"], passes=()), {"x": x})["y"]
    return result


@pytest.mark.parametrize("name", GONE)
def test_a_node_that_changes_no_number_goes(name: str) -> None:
    graph = between(GONE[name])
    after = check(bypass_identities(graph))
    assert [node.op for node in after.nodes if node.op != "Less"] == ["Neg", "Neg"]
    got, wanted = run(after, SPECIAL), run(graph, SPECIAL)
    np.testing.assert_array_equal(got, wanted)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(wanted)[numbers])


@pytest.mark.parametrize("name", KEPT)
def test_a_node_that_changes_a_bit_stays(name: str) -> None:
    graph = between(KEPT[name])
    assert bypass_identities(graph) is graph


def test_adding_zero_to_integers_changes_nothing() -> None:
    graph = between(lambda b, x: b.op("Add", x, np.int32(0)), "int32")
    assert len(bypass_identities(graph).nodes) == 2


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        ("Relu", "Relu", ["Relu"]),
        ("Sigmoid", "Relu", ["Sigmoid"]),
        ("Abs", "Abs", ["Abs"]),
        ("Sign", "Sign", ["Sign"]),
        ("Floor", "Round", ["Floor"]),
        ("Round", "Ceil", ["Round"]),
        ("Neg", "Relu", ["Neg", "Relu"]),
        ("Tanh", "Floor", ["Tanh", "Floor"]),
    ],
)
def test_what_is_done_already_is_not_done_again(first: str, second: str, left: list[str]) -> None:
    graph = between(lambda b, x: str(b.op(second, b.op(first, x))))
    after = check(bypass_identities(graph))
    assert [node.op for node in after.nodes[1:-1]] == left
    np.testing.assert_array_equal(run(after, SPECIAL), run(graph, SPECIAL))


@pytest.mark.parametrize(
    ("inner", "outer", "left"),
    [((0, 6), (0, 6), 1), ((1, 5), (0, 6), 1), ((0, 6), (1, 5), 2), ((5, 1), (0, 6), 2)],
)
def test_wider_bounds_behind_closer_ones_clip_nothing(
    inner: tuple[int, int], outer: tuple[int, int], left: int
) -> None:
    graph = between(
        lambda b, x: str(b.op("Clip", b.op("Clip", x, *map(_float, inner)), *map(_float, outer)))
    )
    after = check(bypass_identities(graph))
    assert len(after.nodes) == left + 2
    np.testing.assert_array_equal(run(after, SPECIAL), run(graph, SPECIAL))


@pytest.mark.parametrize(
    ("op", "value", "dtype"),
    [
        ("And", True, "bool"),
        ("Or", False, "bool"),
        ("Xor", False, "bool"),
        ("BitwiseAnd", -1, "int32"),
        ("BitwiseOr", 0, "int32"),
        ("BitwiseXor", 0, "int32"),
    ],
)
def test_bits_that_are_combined_with_none_stay(op: str, value: int, dtype: str) -> None:
    b = pl.GraphBuilder("bits")
    x = b.op("Cast", b.input("x", "float32", SHAPE), to=dtype)
    other = np.array(value, dtype)
    b.output("y", b.op("Cast", b.op(op, other, b.op(op, x, other)), to="float32"))
    graph = b.build()
    after = check(bypass_identities(graph))
    assert [node.op for node in after.nodes] == ["Cast", "Cast"]
    x_value = np.array([[0, 1, 5], [-3, 0, 2]], np.float32)
    np.testing.assert_array_equal(run(after, x_value), run(graph, x_value))


@pytest.mark.parametrize(("op", "value"), [("And", False), ("Or", True), ("Xor", True)])
def test_bits_that_decide_stay(op: str, value: bool) -> None:
    graph = between(lambda b, x: str(_decided(b, x, op, value)))
    assert bypass_identities(graph) is graph


def _decided(b: pl.GraphBuilder, x: str, op: str, value: bool) -> str:
    decided = b.op(op, b.op("Cast", x, to="bool"), np.array(value))
    return str(b.op("Cast", decided, to="float32"))


def test_the_largest_of_one_cell_is_that_cell() -> None:
    b = pl.GraphBuilder("pooled")
    x = b.op("Neg", b.input("x", "float32", (1, 2, 3, 3)))
    b.output("y", b.op("Neg", b.op("MaxPool", x, kernel_shape=(1, 1))))
    b.output("z", b.op("MaxPool", x, kernel_shape=(1, 1), strides=(2, 2)))
    after = bypass_identities(b.build())
    assert [node.op for node in after.nodes] == ["Neg", "Neg", "MaxPool"]


@pytest.mark.parametrize(
    "formula",
    [
        lambda b, x: b.op("Slice", x, np.array([0]), np.array([1]), np.array([0])),
        lambda b, x: b.op("ReduceMax", x, np.array([1])),
        lambda b, x: b.op("Mul", x, np.ones((1, 1, 1), np.float32)),
        lambda b, x: b.op("Squeeze", x),
        lambda b, x: b.op("Expand", x, np.array([2, 1, 1])),
    ],
)
def test_two_unknown_shapes_are_two(formula: Formula) -> None:
    b = pl.GraphBuilder("unknown")
    unknown = b.op("Reshape", b.input("x", "float32", ("n",)), b.input("shape", "int64", ("r",)))
    b.output("y", b.op("Relu", formula(b, unknown)))
    graph = b.build()
    assert graph.tensors[unknown].shape is None
    assert bypass_identities(graph) is graph


def test_the_names_of_outputs_stay() -> None:
    b = pl.GraphBuilder("named")
    inner = b.op("Neg", b.input("x", "float32", SHAPE))
    b.output("y", b.op("Identity", inner))
    after = check(bypass_identities(b.build()))
    assert [(node.op, node.outputs) for node in after.nodes] == [("Neg", ("y",))]


def test_two_public_names_stay_two() -> None:
    b = pl.GraphBuilder("public")
    inner = b.op("Neg", b.input("x", "float32", SHAPE))
    b.output("y", inner)
    b.output("z", b.op("Identity", inner))
    graph = b.build()
    assert len(bypass_identities(graph).nodes) == 2


def test_what_is_pinned_apart_stays() -> None:
    pinned = {"id": "far"}

    def may_merge(graph: Graph, nodes: object, one: object) -> bool:
        assert isinstance(nodes, list)
        return len({pinned.get(node.name) for node in nodes if isinstance(node, Node)}) == 1

    b = pl.GraphBuilder("pinned")
    inner = b.op("Neg", b.input("x", "float32", SHAPE), name="before")
    b.output("y", b.op("Abs", b.op("Identity", inner, name="id"), name="behind"))
    graph = b.build()
    assert bypass_identities(graph, may_merge) is graph
    pinned["behind"] = "far"
    assert len(bypass_identities(graph, may_merge).nodes) == 2
