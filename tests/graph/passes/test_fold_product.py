"""Scales and shifts folded into products of matrices: the same numbers from fewer nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes.fold_product import fold_product

RTOL = 2e-5
COLUMNS = np.linspace(-2, 3, 5).astype(np.float32)
ALIKE: Mapping[str, Any] = {
    "number": np.float32(1.7),
    "vector": COLUMNS,
    "row": COLUMNS.reshape(1, 5),
}


def built(product: str, *steps: tuple[str, Any], lengths: tuple[int, ...] = (3, 4)) -> Graph:
    """Return y = steps of x @ w; x has `lengths`, w has 5 columns."""
    random = np.random.default_rng(1)
    w = random.standard_normal((lengths[-1], 5)).astype(np.float32)
    b = pl.GraphBuilder("product")
    x = b.input("x", "float32", lengths)
    if product == "MatMul":
        y = b.op("MatMul", x, w)
    elif product == "Gemm turned":
        y = b.op("Gemm", x, w.T.copy(), COLUMNS, transB=1, alpha=0.5, beta=2.0)
    else:
        y = b.op("Gemm", x, w, *([COLUMNS] if product == "Gemm" else []))
    for op, value in steps:
        y = b.op(op, y, value)
    b.output("y", y)
    return b.build()


def assert_same(graph: Graph, other: Graph) -> None:
    x = np.random.default_rng(0).standard_normal(graph.tensors["x"].static_shape)
    before, after = (
        pl.run(pl.plan(g, ["formal"], passes=()), {"x": x.astype(np.float32)})["y"]
        for g in (graph, check(other))
    )
    np.testing.assert_allclose(after, before, rtol=RTOL, atol=1e-5)


@pytest.mark.parametrize("value", ALIKE)
@pytest.mark.parametrize("op", ["Mul", "Div"])
@pytest.mark.parametrize("product", ["MatMul", "Gemm", "Gemm turned", "Gemm without bias"])
def test_a_scale_goes_into_the_weights(product: str, op: str, value: str) -> None:
    graph = built(product, (op, ALIKE[value]))
    after = fold_product(graph)
    assert len(after.nodes) == 1
    assert_same(graph, after)


@pytest.mark.parametrize("value", ALIKE)
@pytest.mark.parametrize("product", ["MatMul", "Gemm", "Gemm turned"])
def test_a_shift_goes_into_the_bias(product: str, value: str) -> None:
    graph = built(product, ("Add", ALIKE[value]))
    after = fold_product(graph)
    assert [node.op for node in after.nodes] == ["Gemm"]
    assert_same(graph, after)


def test_many_steps_go_one_after_the_other() -> None:
    graph = built("MatMul", ("Mul", COLUMNS), ("Add", COLUMNS), ("Div", np.float32(3)))
    after = fold_product(graph)
    assert [node.op for node in after.nodes] == ["Gemm"]
    assert_same(graph, after)


def test_products_of_more_axes_are_scaled_and_keep_their_shift() -> None:
    graph = built("MatMul", ("Mul", COLUMNS), ("Add", COLUMNS), lengths=(2, 3, 4))
    after = fold_product(graph)
    assert [node.op for node in after.nodes] == ["MatMul", "Add"]
    assert_same(graph, after)


@pytest.mark.parametrize(
    "step",
    [
        ("Mul", np.ones((3, 1), np.float32) * 2),
        ("Mul", np.ones((2, 1, 1), np.float32)),
        ("Mul", np.float32(np.inf)),
        ("Mul", np.float32(3e38)),
        ("Div", np.float32(0)),
        ("Add", np.ones((3, 1), np.float32)),
    ],
    ids=["per row", "more axes", "infinite", "overflow", "by zero", "per row, added"],
)
def test_what_is_no_number_per_column_stays(step: tuple[str, Any]) -> None:
    graph = built("MatMul", step)
    assert fold_product(graph) is graph


def test_a_product_that_is_fetched_stays() -> None:
    b = pl.GraphBuilder("fetched")
    y = b.op("MatMul", b.input("x", "float32", (3, 4)), np.ones((4, 5), np.float32))
    b.output("seen", y)
    b.output("y", b.op("Mul", y, np.float32(2)))
    graph = b.build()
    assert fold_product(graph) is graph


@pytest.mark.parametrize("ops", [("Mul",), ("Add",), ("Mul", "Add"), ("Sub", "Div")])
def test_scales_and_shifts_go_into_a_batch_normalization(ops: tuple[str, ...]) -> None:
    b = pl.GraphBuilder("normalized")
    x = b.input("x", "float32", (2, 5, 3))
    y = b.op("BatchNormalization", x, *(np.abs(COLUMNS) + index for index in range(1, 5)))
    for op in ops:
        y = b.op(op, y, (COLUMNS + 0.3).reshape(5, 1))
    b.output("y", y)
    graph = b.build()
    after = fold_product(graph)
    assert [node.op for node in after.nodes] == ["BatchNormalization"]
    assert_same(graph, after)


def test_weights_that_two_products_share_stay_shared() -> None:
    b = pl.GraphBuilder("shared")
    x, w = b.input("x", "float32", (3, 5)), b.constant(np.ones((5, 5), np.float32))
    scaled = b.op("Mul", b.op("MatMul", x, w), np.float32(2))
    b.output("y", b.op("MatMul", scaled, w))
    graph = b.build()
    assert fold_product(graph) is graph
