"""Gradients through branches and loops over sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from finite_differences import Differences
from plait.graph.core.ir import Graph


@pytest.fixture(scope="module")
def differences() -> Iterator[Differences]:
    opened = Differences()
    yield opened
    opened.close()


def cell() -> Graph:
    """Return a body: h -> tanh(h·w + x), a count, and h·x."""
    b = pl.GraphBuilder("cell")
    h, count = b.input("h", "float64", ("n",)), b.input("count", "int64", ())
    x, w = b.input("x", "float64", ("n",)), b.input("w", "float64", ("n", "n"))
    b.output("next", b.op("Tanh", b.op("Add", b.op("MatMul", h, w), x)))
    b.output("counted", b.op("Add", count, np.int64(1)))
    b.output("product", b.op("Mul", b.op("Mul", h, x), b.op("Cast", count, to="float64")))
    return b.build()


WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"scan_input_directions": [1]},
    {"scan_output_directions": [1], "scan_output_axes": [1]},
    {"scan_input_axes": [1], "scan_input_directions": [1], "scan_output_directions": [1]},
)


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("order", [1, 2])
def test_a_scan_is_what_differences_say(
    differences: Differences, ways: dict[str, Any], order: int
) -> None:
    b = pl.GraphBuilder("scan")
    shape = (3, 4) if ways.get("scan_input_axes") else (4, 3)
    sizes = {"h": (3,), "x": shape, "w": (3, 3)}
    h, x, w = (b.input(name, "float64", size) for name, size in sizes.items())
    zero = b.constant(np.int64(0))
    last, _, stacked = b.op(
        "Scan", h, zero, x, w, outputs=3, body=cell(), num_scan_inputs=1, captured=1, **ways
    )
    ys = [b.op("Identity", last), b.op("Identity", stacked)]
    for _ in range(order):
        weights = [b.input(f"weight/{y}", "float64", b.spec(y).shape or ()) for y in ys]
        seen, ys = ys, pl.gradients(b, ys, [h, x, w], weights)
    for y in seen:
        b.output(y, y)
    for name, gradient in zip(sizes, ys, strict=True):
        b.output(f"gradient/{name}", gradient)
    graph = b.build()
    rng = np.random.default_rng(0)
    fed = {n: rng.normal(size=graph.tensors[n].static_shape) for n in graph.inputs}
    differences.check(graph, fed, list(sizes))


def branch(op: str) -> Graph:
    b = pl.GraphBuilder(op)
    x, y = b.input("x", "float32", ("n",)), b.input("y", "float32", ("n",))
    b.output("z", b.op(op, x, y))
    return b.build()


@pytest.mark.parametrize("taken", [True, False])
def test_the_gradient_is_that_of_the_branch_taken(taken: bool) -> None:
    b = pl.GraphBuilder("if")
    condition = b.input("condition", "bool", ())
    x, y = b.input("x", "float32", (3,)), b.input("y", "float32", (3,))
    z = b.op("If", condition, x, y, then_branch=branch("Mul"), else_branch=branch("Sub"))
    for name, made in zip("xy", pl.gradients(b, z, [x, y]), strict=True):
        b.output(f"d{name}", made)
    fed = {"condition": np.array(taken), "x": np.arange(3.0), "y": np.arange(4.0, 7)}
    arrays = {name: value.astype(b.spec(name).dtype) for name, value in fed.items()}
    found = pl.run(pl.plan(b.build()), arrays)
    wanted = (fed["y"], fed["x"]) if taken else (np.ones(3), -np.ones(3))
    np.testing.assert_array_equal(found["dx"], wanted[0])
    np.testing.assert_array_equal(found["dy"], wanted[1])


def growing(limit: float | None) -> Graph:
    """Return a body: s -> s·s·w + step, while the sum is below a limit; puts out s·w."""
    b = pl.GraphBuilder("grow")
    step, going = b.input("step", "int64", ()), b.input("going", "bool", ())
    s, w = b.input("s", "float64", ("n",)), b.input("w", "float64", ("n",))
    product = b.op("Mul", s, w)
    following = b.op("Add", b.op("Mul", product, s), b.op("Cast", step, to="float64"))
    if limit is None:
        b.output("goes_on", b.op("Identity", going))
    else:
        total = b.op("ReduceSum", following, keepdims=False)
        b.output("goes_on", b.op("Less", total, np.float64(limit)))
    b.output("next", following)
    b.output("product", product)
    return b.build()


@pytest.mark.parametrize(("limit", "rounds"), [(None, 3), (4.0, 2), (-9.0, 1)])
def test_a_loop_is_what_it_is_written_out(limit: float | None, rounds: int) -> None:
    results = []
    for written_out in (False, True):
        b = pl.GraphBuilder("loop")
        s, w = b.input("s", "float64", (3,)), b.input("w", "float64", (3,))
        if written_out:
            last, rows = s, []
            for step in range(rounds):
                rows.append(b.op("Mul", last, w))
                last = b.op("Add", b.op("Mul", rows[-1], last), float(step))
            ys = [last, *rows]
        else:
            trips, start = b.constant(np.int64(3)), b.constant(np.bool_(True))
            body = growing(limit)
            ys = b.op("Loop", trips, start, s, w, outputs=2, body=body, captured=1)
        ys = [b.op("Sin", y) for y in ys]
        for name, made in zip("sw", pl.gradients(b, ys, [s, w]), strict=True):
            b.output(f"d{name}", made)
        fed = {"s": np.array([0.5, 1.0, -0.3]), "w": np.array([0.9, 1.5, 0.7])}
        results.append(pl.run(pl.plan(b.build()), fed))
    for name in ("ds", "dw"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-12)
