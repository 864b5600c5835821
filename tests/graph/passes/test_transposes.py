"""Transposes meet and cancel across whatever works in any order of axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes import simplify
from plait.graph.passes.pairs import cancel_pairs
from plait.graph.passes.transposes import sink_transposes
from plait.graph.passes.unneeded import remove_dead

Formula = Callable[[pl.GraphBuilder, str], str]
F32 = np.float32
SHAPE = (1, 4, 6, 2)
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def count(graph: Graph) -> int:
    return sum(node.op == "Transpose" for node in check(graph).nodes)


def assert_same(graph: Graph, after: Graph, seed: int = 0) -> None:
    """Compare what two graphs compute; small integers as floats, so that sums are exact."""
    random = np.random.default_rng(seed)
    feeds = {
        name: random.integers(-4, 5, graph.tensors[name].static_shape).astype(F32)
        for name in graph.inputs
    }
    before, found = (pl.run(pl.plan(one, passes=()), feeds) for one in (graph, after))
    for name in graph.outputs:
        assert found[name].dtype == before[name].dtype
        np.testing.assert_allclose(found[name], before[name], rtol=1e-6, atol=1e-6)


def within(formula: Formula, back: tuple[int, ...] | None = TO_FIRST) -> Graph:
    """Return y = Transpose(f(Transpose(x))), without the last one where `back` is None."""
    b = pl.GraphBuilder("within")
    x = b.op("Neg", b.input("x", "float32", SHAPE))
    y = formula(b, b.op("Transpose", x, perm=TO_LAST))
    b.output("y", b.op("Neg", y if back is None else b.op("Transpose", y, perm=back)))
    return b.build()


def _parts(b: pl.GraphBuilder, x: str) -> str:
    first, second = b.op("Split", x, axis=-1, outputs=2)
    return str(b.op("Concat", second, first, np.ones((1, 6, 2, 1), F32), axis=3))


MOVED: Mapping[str, Formula] = {
    "two inputs": lambda b, x: b.op("Add", x, b.op("Relu", x)),
    "an input that is spread": lambda b, x: b.op("Mul", x, b.op("ReduceMax", x, np.array([1, 2]))),
    "a row of constants": lambda b, x: b.op("Add", x, np.arange(4, dtype=F32)),
    "a constant in front": lambda b, x: b.op("Sub", np.ones((2, 4), F32), x),
    "Where": lambda b, x: b.op("Where", b.op("Less", x, F32(0)), F32(1), x),
    "PRelu": lambda b, x: b.op("PRelu", x, np.arange(4, dtype=F32)),
    "CastLike": lambda b, x: b.op("CastLike", x, b.input("like", "float32", (5,))),
    "Clip": lambda b, x: b.op("Clip", x, F32(-1), F32(2)),
    "Split and Concat": _parts,
    "Pad": lambda b, x: b.op("Pad", x, np.array([0, 1, 2, 0, 0, 0, 1, 3])),
    "Pad of some axes": lambda b, x: b.op("Pad", x, np.array([1, 2]), None, np.array([-1])),
    "Slice": lambda b, x: b.op("Slice", x, np.array([0, 1]), np.array([1, 5])),
    "Slice of some axes": lambda b, x: b.op(
        "Slice", x, np.array([3]), np.array([0]), np.array([-1]), np.array([-2])
    ),
    "Slice by steps": lambda b, x: b.op(
        "Slice", x, np.array([0, 5]), np.array([1, 0]), None, np.array([1, -2])
    ),
    "Softmax": lambda b, x: b.op("Softmax", x, axis=-1),
    "ReduceSum": lambda b, x: b.op("ReduceSum", x, np.array([-1])),
    "ReduceMean over all": lambda b, x: b.op("ReduceMean", x),
    "ArgMax": lambda b, x: b.op("Cast", b.op("ArgMax", x, axis=-1), to="float32"),
    "CumSum": lambda b, x: b.op("CumSum", x, np.int64(-1)),
    "Tile": lambda b, x: b.op("Tile", x, np.array([1, 2, 1, 3])),
    "Expand": lambda b, x: b.op("Expand", b.op("ReduceMin", x, np.array([3])), np.array([2, 4])),
    "Gather": lambda b, x: b.op("Gather", x, np.array([3, 1]), axis=-1),
    "Resize": lambda b, x: b.op("Resize", x, None, np.array([1, 2, 3, 1], F32), mode="linear"),
    "Resize of some axes": lambda b, x: b.op("Resize", x, None, None, [9, 5], axes=[1, 2]),
    "QuantizeLinear": lambda b, x: b.op(
        "DequantizeLinear",
        b.op("QuantizeLinear", x, np.arange(1, 5, dtype=F32), np.zeros(4, np.int8), axis=-1),
        F32(0.5),
        np.int8(1),
    ),
}  # fmt: skip

STAYS: Mapping[str, Formula] = {
    "LayerNormalization": lambda b, x: b.op("LayerNormalization", x, np.ones(4, F32)),
    "Gather by a matrix": lambda b, x: b.op(
        "Squeeze", b.op("Gather", x, np.array([[3, 1]]), axis=3), np.array([3])
    ),
    "a computed row": lambda b, x: b.op("Add", x, b.input("row", "float32", (4,))),
    "a constant of more axes": lambda b, x: b.op(
        "Squeeze", b.op("Add", x, np.ones((1, 1, 1, 1, 1), F32)), np.array([0])
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_transposes_on_both_sides_cancel(name: str) -> None:
    graph = within(MOVED[name])
    after = sink_transposes(graph)
    assert count(after) == 0
    assert_same(graph, after)
    assert sink_transposes(after) is after


@pytest.mark.parametrize("name", STAYS)
def test_what_has_an_order_of_axes_keeps_them(name: str) -> None:
    graph = within(STAYS[name])
    assert sink_transposes(graph) is graph


@pytest.mark.parametrize(
    "formula",
    [
        lambda b, x: b.op("ReduceMean", x, np.array([1, 2]), keepdims=False),
        lambda b, x: b.op("Squeeze", b.op("ReduceMax", x, np.array([1, 2])), np.array([1, 2])),
        lambda b, x: b.op("ArgMax", x, axis=3, keepdims=False),
        lambda b, x: b.op("ReduceSum", x, keepdims=False),
    ],
)
def test_a_transpose_goes_where_no_axes_are_left_to_order(formula: Formula) -> None:
    graph = within(lambda b, x: str(b.op("Cast", formula(b, x), to="float32")), back=None)
    after = sink_transposes(graph)
    assert count(after) == 0
    assert_same(graph, after)


def test_a_transpose_that_is_read_elsewhere_stays_alone() -> None:
    b = pl.GraphBuilder("shared")
    turned = b.op("Transpose", b.input("x", "float32", SHAPE), perm=TO_LAST)
    b.output("y", b.op("Transpose", b.op("Relu", turned), perm=TO_FIRST))
    b.output("z", b.op("LayerNormalization", turned, np.ones(4, F32)))
    graph = b.build()
    after = sink_transposes(graph)
    assert count(after) == 1
    assert_same(graph, after)


def test_one_transpose_of_a_sum_in_place_of_two_of_its_terms() -> None:
    b = pl.GraphBuilder("sum")
    terms = [b.op("Transpose", b.input(n, "float32", SHAPE), perm=TO_LAST) for n in "ab"]
    b.output("y", b.op("Add", *terms))
    graph = b.build()
    after = sink_transposes(graph)
    assert [node.op for node in after.nodes] == ["Add", "Transpose"]
    assert_same(graph, after)


def test_two_inputs_are_not_transposed_to_save_one() -> None:
    b = pl.GraphBuilder("dear")
    total = b.input("a", "float32", (1, 6, 2, 4))
    turned = b.op("Transpose", b.input("x", "float32", SHAPE), perm=TO_LAST)
    b.output("y", b.op("Add", b.op("Add", turned, total), b.input("c", "float32", (1, 6, 2, 4))))
    graph = b.build()
    assert sink_transposes(graph) is graph


def test_of_as_many_transposes_the_one_that_moves_less_stays() -> None:
    graph = within(lambda b, x: str(b.op("ReduceMax", x, np.array([1, 2]))), back=None)
    after = sink_transposes(graph)
    assert [node.op for node in after.nodes][1:3] == ["ReduceMax", "Transpose"]
    assert_same(graph, after)


def test_where_nodes_are_pinned_apart_transposes_stay() -> None:
    graph = within(MOVED["two inputs"])
    assert sink_transposes(graph, lambda *_: False) is graph


def _converted(b: pl.GraphBuilder, x: str, channels: int, stride: int = 1) -> str:
    """Return a convolution as tf2onnx writes it: channels first inside, last around it."""
    inside = b.op("Transpose", x, perm=TO_FIRST)
    weights = np.random.default_rng(channels).integers(-1, 2, (channels, 3, 3, 3)).astype(F32)
    y = b.op("Conv", inside, weights, pads=(1, 1, 1, 1), strides=(stride, stride))
    return str(b.op("Transpose", y, perm=TO_LAST))


def test_a_model_with_channels_last_keeps_one_transpose_at_each_end() -> None:
    b = pl.GraphBuilder("converted")
    x = b.input("x", "float32", (1, 8, 8, 3))
    h = b.op("Relu", b.op("Add", _converted(b, x, 3), np.arange(3, dtype=F32)))
    skip = h
    for _ in range(2):
        h = b.op("Add", _converted(b, b.op("Pad", h, np.zeros(8, np.int64)), 3), F32(1))
        weight = b.op("Sigmoid", _converted(b, b.op("ReduceMax", h, np.array([1, 2])), 3))
        h = skip = b.op("Relu", b.op("Add", b.op("Mul", h, weight), skip))
    joined = b.op("Concat", h, skip, axis=3)
    b.output("y", b.op("Resize", joined, None, np.array([1, 2, 2, 1], F32), mode="nearest"))
    graph = b.build()
    assert count(graph) == 10
    after = simplify(graph)
    assert count(after) == 2
    ops = [node.op for node in after.nodes]
    assert ops[0] == "Transpose"
    assert "Conv" not in ops[ops.index("Transpose", 1) :]
    assert_same(graph, after)


def test_lengths_need_not_be_known() -> None:
    b = pl.GraphBuilder("dynamic")
    x = b.op("Transpose", b.input("x", "float32", ("n", 4, "h", "w")), perm=TO_LAST)
    y = b.op("Mul", b.op("Softmax", x, axis=3), b.op("ReduceMax", x, np.array([1, 2])))
    b.output("y", b.op("Transpose", y, perm=TO_FIRST))
    graph = b.build()
    after = sink_transposes(graph)
    assert count(after) == 0
    feeds = {"x": np.random.default_rng(0).standard_normal(SHAPE).astype(F32)}
    before, found = (pl.run(pl.plan(one, passes=()), feeds)["y"] for one in (graph, after))
    np.testing.assert_allclose(found, before, rtol=1e-5)


def test_transposes_that_undo_themselves_go_from_a_long_chain_at_once() -> None:
    b = pl.GraphBuilder("chain")
    x = b.input("x", "float32", (3, 3))
    for _ in range(20):
        x = b.op("Relu", b.op("Transpose", b.op("Add", x, np.arange(3, dtype=F32))))
    b.output("y", x)
    graph = b.build()
    after = sink_transposes(graph)
    assert count(after) == 0
    assert_same(graph, after)


def test_what_is_no_better_elsewhere_is_left_alone() -> None:
    b = pl.GraphBuilder("parts")
    gain = b.op("Transpose", b.op("Relu", b.op("Transpose", b.input("a", "float32", (3, 5)))))
    b.output("y", b.op("Neg", gain))
    for index in range(2):  # in either direction
        turned = b.op("Relu", b.op("Transpose", b.input(f"b{index}", "float32", (3, 3))))
        b.output(f"z{index}", b.op("MatMul", turned, turned))
        straight = b.op("Relu", b.input(f"c{index}", "float32", (3, 3)))
        b.output(f"w{index}", b.op("MatMul", straight, b.op("Transpose", straight)))
    graph = b.build()
    after = sink_transposes(graph)
    assert count(after) == count(graph) - 2
    same = {node.name for node in after.nodes if node in graph.nodes}
    assert {node.name for node in graph.nodes} - same == {
        *(node.name for node in graph.nodes[:3]),
        graph.nodes[3].name,
    }


def test_a_matrix_beside_its_transpose_keeps_it() -> None:
    b = pl.GraphBuilder("symmetric")
    x = b.op("Relu", b.input("x", "float32", (3, 3)))
    b.output("y", b.op("Neg", b.op("Add", x, b.op("Transpose", x))))
    graph = b.build()
    assert sink_transposes(graph) is graph


UNARY = ("Relu", "Neg", "Abs", "Identity")


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Draw a graph of cubes that are turned, joined, cut and added in any order."""
    b = pl.GraphBuilder("turned")
    known = {str(b.input(f"x{i}", "float32", (2, 2, 2))): 0 for i in range(2)}
    perms = draw(st.lists(st.permutations(range(3)), min_size=1, max_size=2))
    perms += [sorted(range(3), key=perm.__getitem__) for perm in perms]
    for _ in range(draw(st.integers(2, 14))):
        names = st.sampled_from(list(known))
        kind = draw(st.sampled_from(("turn", "turn", "add", "unary", "parts", "reduce", "row")))
        x, axis = draw(names), draw(st.integers(0, 2))
        if kind == "turn":
            made = b.op("Transpose", x, perm=tuple(draw(st.sampled_from(perms))))
        elif kind == "add":
            made = b.op("Add", x, draw(names))
        elif kind == "unary":
            made = b.op(draw(st.sampled_from(UNARY)), x)
        elif kind == "parts":
            first, second = b.op("Split", x, axis=axis, outputs=2)
            made = b.op("Concat", second, first, axis=axis)
        elif kind == "reduce":
            made = b.op("Sub", x, b.op("ReduceMax", x, np.array([axis])))
        else:
            made = b.op("Add", x, np.arange(2, dtype=F32))
        known[str(made)] = 1
    made_names = [name for name, is_made in known.items() if is_made]
    fetched = draw(st.lists(st.sampled_from(made_names), min_size=1, max_size=3, unique=True))
    for index, name in enumerate(dict.fromkeys([*fetched, made_names[-1]])):
        b.output(f"y{index}", name)
    return b.build()


@given(graph=networks())
@settings(max_examples=12, deadline=None)
def test_values_stay_and_transposes_only_become_fewer(graph: Graph) -> None:
    graph = simplify(graph, passes=[remove_dead, cancel_pairs])
    after = check(sink_transposes(graph))
    assert (count(after) < count(graph)) == (after is not graph)
    assert_same(graph, after)
