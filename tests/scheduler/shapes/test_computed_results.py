"""Results as long as values say, in buffers for the largest: with or without readers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.graph.values.tensor import Array

DEVICES: list[Any] = ["cpu", "formal", ["ort", "cpu"]]
X = np.array([[0, 2, 3], [4, 0, 0]], np.float32)
MASK = np.array([True, False, True])


def find_non_zero(b: pl.GraphBuilder, x: Any) -> Any:
    return b.op("NonZero", x)


def keep_columns(b: pl.GraphBuilder, x: Any) -> Any:
    return b.op("Compress", x, b.input("mask", "bool", ("n",)), axis=1)


def find_unique_columns(b: pl.GraphBuilder, x: Any) -> Any:
    return b.op("Unique", x, axis=1, outputs=2)[0]


KINDS: dict[str, tuple[Callable[..., Any], Callable[[Array], Array]]] = {
    "NonZero": (find_non_zero, lambda x: np.array(np.nonzero(x))),
    "Compress": (keep_columns, lambda x: x[:, MASK]),
    "Unique": (find_unique_columns, lambda x: np.unique(x, axis=1)),
}


def build_graph(kind: str, *, through: str = "") -> pl.Graph:
    b = pl.GraphBuilder(kind)
    y = KINDS[kind][0](b, b.input("x", "float32", (2, "n")))
    b.output("y", b.op(through, y) if through else y)
    return b.build()


def list_bounds(graph: pl.Graph) -> dict[str, int]:
    shapes = (graph.tensors[name].shape or () for name in (*graph.inputs, "y"))
    return {dim: 8 for shape in shapes for dim in shape if isinstance(dim, str)}


def feed(graph: pl.Graph, x: Array = X) -> dict[str, Array]:
    return {"x": x, "mask": MASK} if "mask" in graph.inputs else {"x": x}


@pytest.mark.parametrize(
    ("through", "device"),
    [*itertools.product(("", "Identity", "Neg"), DEVICES), ("", "worker:0")],
    ids=str,
)
@pytest.mark.parametrize("computed", [False, True], ids=["fed", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_of_the_last_axis_leave_the_graph(
    kind: str, through: str, computed: bool, device: Any
) -> None:
    graph = build_graph(kind, through=through)
    bounds = list_bounds(graph) if computed else {"n": 8}
    wanted = KINDS[kind][1](X) * (-1 if through == "Neg" else 1)
    with pl.BlockingSession(pl.plan(graph, device, bounds=bounds, max_in_flight=2)) as session:
        results = [item["y"] for item in session.stream([feed(graph)] * 3)]
        (fetched,) = session.run(feed(graph), ["y"])
    for found in (*results, fetched):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_plans_cut_results_alike(kind: str, tmp_path: Path) -> None:
    graph = build_graph(kind)
    pl.plan(graph, bounds=list_bounds(graph)).save(tmp_path / "a.plan")
    with pl.BlockingSession(pl.load_plan(tmp_path / "a.plan")) as session:
        np.testing.assert_array_equal(session.run(feed(graph))["y"], KINDS[kind][1](X))


def test_lengths_of_the_last_axis_are_read_in_the_same_plan() -> None:
    b = pl.GraphBuilder("read")
    places = b.op("NonZero", b.input("x", "float32", (2, "n")), name="kept")
    b.output("y", b.op("Gather", b.op("Neg", places), np.array([1]), axis=0))
    plan = pl.plan(b.build(), bounds={"n": 8, "kept.shape[1]": 16})
    assert "planned for all shapes" in plan.report()
    with pl.BlockingSession(plan) as session:
        for x in (X, X[:, :1], np.eye(2, 8, dtype="float32")):
            assert session.run({"x": x})["y"].tolist() == [(-np.nonzero(x)[1]).tolist()]


def test_results_that_are_not_read_have_lengths_of_their_own() -> None:
    b = pl.GraphBuilder("unread")
    values, first = b.op("Unique", b.input("x", "float32", ("n",)), outputs=2)
    b.output("y", b.op("Neg", values))
    b.output("first", first)
    graph = b.build()
    with pl.BlockingSession(pl.plan(graph, bounds=dict.fromkeys(list_lengths(graph), 8))) as s:
        found = s.run({"x": np.array([3, 1, 3], np.float32)})
    assert (found["y"].tolist(), found["first"].tolist()) == ([-1, -3], [1, 0])


def list_lengths(graph: pl.Graph) -> set[str]:
    return {
        dim for spec in graph.tensors.values() for dim in spec.shape or () if isinstance(dim, str)
    }


@pytest.mark.parametrize("op", ["NonZero", "Unique"])
def test_lengths_of_constants_leave_the_graph(op: str) -> None:
    b = pl.GraphBuilder("constant")
    b.output("y", b.op(op, np.array([2, 0, 2])))
    b.output("z", b.op("Neg", b.input("x", "float32", ("n",))))
    with pl.BlockingSession(pl.plan(b.build(), bounds={"n": 4})) as session:
        found = session.run({"x": np.ones(2, np.float32)})
    assert found["y"].tolist() == ([[0, 2]] if op == "NonZero" else [0, 2])
    assert found["z"].tolist() == [-1, -1]


def test_lengths_that_are_results_are_those_of_the_item() -> None:
    """Passes make constants of them at each length; the largest ones are not results."""
    b = pl.GraphBuilder("shapes")
    x = b.input("x", "float32", ("m", "n"))
    same = b.op("Reshape", x, b.op("Shape", x), name="same")
    b.output("y", b.op("Shape", b.op("Neg", same)))
    graph = b.build()
    bounds = dict.fromkeys(list_lengths(graph), 8)
    with pl.BlockingSession(pl.plan(graph, bounds=bounds)) as session:
        for shape in ((2, 3), (4, 5)):
            assert session.run({"x": np.ones(shape, np.float32)})["y"].tolist() == [*shape]


def build_growing_body() -> pl.Graph:
    """Return the body of a loop that adds one to its state."""
    b = pl.GraphBuilder("body")
    b.input("i", "int64", ())
    going, state = b.input("going", "bool", ()), b.input("state", "float32", ("r", "c"))
    b.output("goes_on", b.op("Identity", going))
    b.output("next", b.op("Add", state, np.float32(1)))
    return b.build()


def build_negating_body() -> pl.Graph:
    b = pl.GraphBuilder("rows")
    state, row = (b.input(name, "float32", ("c",)) for name in ("state", "row"))
    b.output("next", b.op("Add", state, row))
    b.output("negated", b.op("Neg", row))
    return b.build()


@pytest.mark.parametrize("reader", ["Shape", "Size", "Scan"])
def test_a_loop_of_computed_rounds_is_read_by_its_shape(reader: str) -> None:
    b = pl.GraphBuilder("loop")
    x = b.input("x", "float32", ("n", 3))
    is_high = b.op("Cast", b.op("Greater", x, np.float32(0)), to="int64")
    rounds = b.op("ReduceSum", is_high, keepdims=False)
    state = b.op("Loop", rounds, None, x, body=build_growing_body())
    if reader == "Scan":
        start = np.zeros(3, np.float32)
        y = b.op("Scan", start, state, body=build_negating_body(), num_scan_inputs=1, outputs=2)[1]
    else:
        y = b.op(reader, state)
    b.output("y", y)
    b.output("places", b.op("NonZero", x))
    with pl.BlockingSession(pl.plan(b.build(), bounds={"n": 8})) as session:
        for n in (2, 5):
            fed = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
            by_numpy = {"Shape": [n, 3], "Size": 3 * n, "Scan": -(fed + (fed > 0).sum())}
            np.testing.assert_allclose(session.run({"x": fed})["y"], by_numpy[reader], rtol=1e-6)


ROWS = pl.TensorSpec("float32", ("rows", "width"))


@pl.operator(pl.TensorSpec("float32", ("high", "width")), inputs=[ROWS], name="test.high")
def high(x: Array) -> Array:
    return x[x[:, 0] > 0]


@pl.operator(pl.TensorSpec("float32", ("both", "width")), inputs=[ROWS, ROWS], name="test.both")
def both(x: Array, y: Array) -> Array:
    return (x + y)[x[:, 0] > 1]


@pl.operator(pl.TensorSpec("float32", ("cut", "width")), inputs=[ROWS], name="test.too_narrow")
def too_narrow(x: Array) -> Array:
    return x[:, :-1]


def build_padded_graph(function: Any) -> pl.Graph:
    """Return a graph with a function of rows two longer than the input's."""
    b = pl.GraphBuilder("padded")
    x = b.op("Pad", b.input("x", "float32", (4, "n")), np.array([0, 1, 0, 1]), np.float32(1))
    b.output("y", b.call(function, x))
    return b.build()


@pytest.mark.parametrize("bounds", [{"high": 4}, {"high": 4, "n": 6}], ids=["computed", "all"])
def test_functions_return_rows_as_wide_as_computed(bounds: dict[str, int]) -> None:
    x = np.arange(-6, 6, dtype=np.float32).reshape(4, 3)
    with pl.BlockingSession(pl.plan(build_padded_graph(high), bounds=bounds)) as session:
        for width in (1, 3):
            wide = np.pad(x[:, :width], [(0, 0), (1, 1)], constant_values=1)
            np.testing.assert_array_equal(session.run({"x": x[:, :width]})["y"], wide)


def test_the_shape_of_what_follows_a_function_is_known_before_it() -> None:
    b = pl.GraphBuilder("shape")
    rows = b.call(high, b.input("x", "float32", ("m", "n")))
    b.output("length", b.op("Shape", b.op("ReduceSum", rows, np.array([0]), keepdims=False)))
    with pl.BlockingSession(pl.plan(b.build(), bounds={"m": 4, "n": 6, "high": 4})) as session:
        for width in (2, 5):
            fed = {"x": np.ones((3, width), np.float32)}
            assert session.run(fed)["length"].tolist() == [width]


def test_a_function_whose_rows_are_too_narrow_is_refused() -> None:
    plan = pl.plan(build_padded_graph(too_narrow), bounds={"cut": 4, "n": 6})
    with pytest.raises(pl.KernelError, match=r"float32\[4, 4\], declared was float32\[cut, 5\]"):
        pl.run(plan, {"x": np.ones((4, 3), np.float32)})


@pytest.mark.parametrize("has_all", [False, True])
def test_functions_read_tensors_that_passes_have_renamed(has_all: bool) -> None:
    """Reshape and Expand to a tensor's own shape go, once numbers stand for lengths."""
    b = pl.GraphBuilder("renamed")
    x = b.input("x", "float32", ("m", "n"))
    empty = np.zeros(0, np.int64)
    same = b.op("Reshape", x, b.op("Concat", b.op("Shape", x), empty, axis=0), name="same")
    found = b.call(high, same)
    again = b.op("Expand", found, b.op("Shape", found), name="again")
    b.output("y", b.op("Neg", b.call(both, again, found)))
    graph = b.build()
    fed = ("m", "n")
    bounds = {one: 8 for one in list_lengths(graph) if has_all or one not in fed}
    array = np.arange(-4, 8, dtype=np.float32).reshape(4, 3)
    rows = array[array[:, 0] > 0]
    with pl.BlockingSession(pl.plan(graph, bounds=bounds)) as session:
        np.testing.assert_array_equal(session.run({"x": array})["y"], -2 * rows[rows[:, 0] > 1])


def test_lengths_are_called_after_public_names() -> None:
    b = pl.GraphBuilder("named")
    b.output("y", b.op("Neg", b.op("NonZero", b.input("x", "float32", (4,)))))
    b.output("places", b.tensor("nonzero.0"))
    graph = b.build()
    assert graph.tensors["y"].shape == (1, "places.shape[1]")
    pl.plan(graph, bounds={"places.shape[1]": 4})


def test_bounds_of_lengths_that_are_not_needed_are_ignored() -> None:
    b = pl.GraphBuilder("dead")
    x = b.input("x", "float32", (4,))
    b.op("NonZero", x, name="unread")
    b.output("y", b.op("Neg", x))
    plan = pl.plan(b.build(), bounds={"unread.shape[1]": 4})
    assert pl.run(plan, {"x": np.ones(4, np.float32)})["y"].tolist() == [-1] * 4
