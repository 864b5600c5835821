"""Control flow as ONNX models: nested graphs see the names of those around them there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import plait as pl
import pytest
from nested_graphs import doubling_body, running_sum_body
from plait.graph.core.ir import Graph

X = np.array([1.0, 2.0, 3.0], np.float32)


def nested_choice() -> Graph:
    """Return a graph whose branches use the names of the graph around, and hand inputs through."""
    b = pl.GraphBuilder("inner")
    x, y = b.input("x", "float32", (3,)), b.input("y", "float32", (3,))
    b.output("sum", b.op("Add", x, y))
    b.output("twice", y)
    inner = replace(b.build(), outputs=("x", "sum"))
    b = pl.GraphBuilder("outer")
    x, y = b.input("y", "float32", (3,)), b.input("x", "float32", (3,))
    cond = b.op("Less", b.op("ReduceSum", x, keepdims=False), np.float32(9))
    one, other = b.op("If", cond, x, y, then_branch=inner, else_branch=inner, outputs=2)
    b.output("one", b.op("Add", one, other))
    b.output("other", other)
    outer = b.build()
    b = pl.GraphBuilder("choice")
    x, cond = b.input("x", "float32", (3,)), b.input("cond", "bool", ())
    scaled_x = b.op("Mul", x, np.float32(3))
    one, other = b.op("If", cond, x, scaled_x, then_branch=outer, else_branch=inner, outputs=2)
    b.output("a", b.op("Neg", one))
    b.output("b", b.op("Neg", other))
    return b.build()


def loops() -> Graph:
    b = pl.GraphBuilder("loops")
    x, trips = b.input("x", "float32", (3,)), b.input("trips", "int64", ())
    last, rows = b.op("Loop", trips, None, x, body=doubling_body(limit=50), outputs=2)
    total, squares = b.op("Scan", x, rows, body=running_sum_body(), num_scan_inputs=1, outputs=2)
    b.output("last", b.op("Identity", last))
    b.output("total", b.op("Identity", total))
    b.output("squares", b.op("Identity", squares))
    return b.build()


def check_written(graph: Graph, feeds: dict[str, np.ndarray], path: Path) -> None:
    pl.save(graph, path)
    onnx.checker.check_model(onnx.load(path))
    wanted = pl.run(pl.plan(graph, "formal"), feeds)
    session = onnxruntime.InferenceSession(path)
    found = dict(zip(graph.outputs, session.run([*graph.outputs], feeds), strict=True))
    again = pl.run(pl.load(path), feeds)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(again[name], array)


def test_names_of_nested_graphs_are_told_apart(tmp_path: Path) -> None:
    for cond in (True, False):
        for x in (X, 4 * X):
            feeds = {"x": x, "cond": np.array(cond)}
            check_written(nested_choice(), feeds, tmp_path / "choice.onnx")


def test_loops_are_written(tmp_path: Path) -> None:
    feeds = {"x": X, "trips": np.array(30)}
    check_written(loops(), feeds, tmp_path / "loops.onnx")


def rows_in_batches() -> Graph:
    """Return a graph with rows of rows in a loop, and rows that keep their errors."""
    inner = pl.GraphBuilder("inner")
    inner.output("y", inner.op("Add", inner.input("x", "float32", ("rows", 2)), 1.0))
    middle = pl.GraphBuilder("middle")
    y = middle.each(middle.input("x", "float32", ("rows", 2)), inner.build(), batch=3, name="add")
    middle.output("y", middle.op("Mul", y, np.array([2.0, 3.0], "float32")))
    body = pl.GraphBuilder("body")
    body.input("i", "int64", ())
    going, state = body.input("going", "bool", ()), body.input("state", "float32", ("n", 2))
    body.output("on", body.op("Identity", going))
    body.output("next", body.each(state, middle.build(), batch=2, name="step"))
    b = pl.GraphBuilder("rows")
    x, trips = b.input("x", "float32", ("n", 2)), b.input("trips", "int64", ())
    looped = b.op("Loop", trips, None, x, body=body.build(), name="loop")
    y, ok = b.each(looped, inner.build(), batch=4, on_error="value", name="last")
    b.output("y", y)
    b.output("ok", ok)
    return b.build()


@pytest.mark.parametrize("count", [1, 5])
def test_rows_in_batches_are_written_as_part_of_the_graph_around(
    count: int, tmp_path: Path
) -> None:
    x = np.arange(2 * count, dtype="float32").reshape(-1, 2)
    check_written(rows_in_batches(), {"x": x, "trips": np.array(3)}, tmp_path / "rows.onnx")
