"""Models with DequantizeLinear of their weights: these are stored once, as the model has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from plait.graph.core import evaluation
from plait.graph.core.ir import Graph
from plait.graph.passes.fold_constants import decode_constants
from plait.graph.values.tensor import Array
from plait.scheduler.planner.partition.cutting import list_cuts

WIDTH = 32
X = {"x": np.random.default_rng(1).standard_normal((3, WIDTH)).astype(np.float32)}


def dequantised(weights: Array) -> Graph:
    """Return y = relu(x · (weights · 0.01) + bias), the bias of int32 as exporters have it."""
    b = pl.GraphBuilder("qdq")
    zero = weights.dtype.type(0)
    floats = b.op("DequantizeLinear", weights, np.float32(0.01), zero)
    bias = b.op("DequantizeLinear", np.arange(WIDTH, dtype=np.int32), np.float32(0.001))
    product = b.op("MatMul", b.input("x", "float32", ("n", WIDTH)), floats)
    b.output("y", b.op("Relu", b.op("Add", product, bias)))
    return b.build()


def weights(dtype: str = "int8", width: int = WIDTH) -> Array:
    return np.random.default_rng(0).integers(0, 120, (WIDTH, width)).astype(dtype)


def stored(plan: pl.Plan) -> int:
    """Return the bytes of what a plan holds for as long as it is open."""
    graphs = [plan.graph] if plan.prologue is None else [plan.graph, plan.prologue.graph]
    kept = sum(plan.graph.tensors[name].nbytes for name in plan.graph.prepared)
    return kept + sum(int(a.nbytes) for graph in graphs for a in graph.constants.values())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("passes", [(), ["fold_constants"], None])
@pytest.mark.parametrize("device", ["cpu", "formal"])
def test_weights_stay_integers_by_whichever_passes(
    passes: Sequence[str] | None, dtype: str, device: str
) -> None:
    values = weights(dtype)
    graph = dequantised(values)
    chosen = {} if passes is None else {"passes": passes}
    plan = pl.plan(graph, [device], shapes={"x": X["x"].shape}, **chosen)  # type: ignore[arg-type]
    assert [n.op for n in plan.graph.nodes].count("DequantizeLinear") >= 1
    assert stored(plan) < values.nbytes + 2 * 4 * WIDTH + 64
    wanted = np.maximum(X["x"] @ (values * np.float32(0.01)) + np.arange(WIDTH) * 0.001, 0)
    np.testing.assert_allclose(pl.run(plan, X)["y"], wanted, 1e-4, 1e-4)


def test_what_takes_no_more_bytes_is_computed_ahead() -> None:
    plan = pl.plan(dequantised(weights()), shapes={"x": X["x"].shape})
    assert [n.op for n in plan.graph.nodes].count("DequantizeLinear") == 1  # not of the bias


def test_they_are_decoded_ahead_where_that_is_chosen(tmp_path: Path) -> None:
    values = weights()
    plain = pl.plan(dequantised(values), shapes={"x": X["x"].shape})
    plan = pl.plan(dequantised(values), shapes={"x": X["x"].shape}, passes=["+decode_constants"])
    assert "DequantizeLinear" not in [node.op for node in plan.graph.nodes]
    assert stored(plan) >= 4 * values.nbytes
    assert decode_constants(plan.graph) is plan.graph
    assert pl.run(plan, X)["y"].tobytes() == pl.run(plain, X)["y"].tobytes()
    plan.save(tmp_path / "decoded.plan")
    assert stored(pl.load_plan(tmp_path / "decoded.plan")) == stored(plan)


@pytest.mark.parametrize("device", ["cpu", "compiled", "worker:0", "ort"])
def test_products_become_those_of_integers_where_that_is_chosen(
    device: str, tmp_path: Path
) -> None:
    packages = {"ort": "onnxruntime", "compiled": "numba"}
    pytest.importorskip(packages.get(device, "numpy"))
    b = pl.GraphBuilder("qdq")
    scale, zero = np.float32(0.05), np.uint8(128)
    rows = b.op("QuantizeLinear", b.input("x", "float32", (3, WIDTH)), scale, zero)
    rows = b.op("DequantizeLinear", rows, scale, zero)
    values = b.op("DequantizeLinear", weights(), np.float32(0.01), np.int8(0))
    product = b.op("Relu", b.op("MatMul", rows, values))
    quantized = b.op("QuantizeLinear", product, np.float32(0.2), np.uint8(0))
    b.output("y", b.op("DequantizeLinear", quantized, np.float32(0.2), np.uint8(0)))
    graph = b.build()
    chosen = ["+absorb_clip", "+hoist_quantize", "+integer_islands"]
    plan = pl.plan(graph, [device], passes=chosen)
    operators = {node.op for node in plan.graph.nodes}
    assert "QLinearMatMul" in operators
    assert operators.isdisjoint({"MatMul", "Relu"})
    assert stored(plan) < 2 * weights().nbytes
    wanted = pl.run(graph, X, devices=["cpu"])["y"]
    np.testing.assert_allclose(pl.run(plan, X)["y"], wanted, rtol=0, atol=0.21)
    plan.save(tmp_path / "integers.plan")
    assert pl.load_plan(tmp_path / "integers.plan") == plan


def test_weights_that_are_decoded_again_and_again_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "SWEPT_BYTES", 0)
    b = pl.GraphBuilder("repeated")
    values = b.constant(weights(width=256))
    floats = [b.op("DequantizeLinear", values, np.float32(n + 1)) for n in range(8)]
    b.output("y", b.op("Sum", *floats))
    left = [node.op for node in decode_constants(b.build()).nodes]
    assert left == ["DequantizeLinear"] * 6 + ["Sum"]


@pl.operator(lambda x: x, name="test_quantized_plans.passed_on")
def passed_on(x: Array) -> Array:
    return x.copy()


def test_weights_are_decoded_where_they_are_read_also_behind_a_function() -> None:
    """Else each would be a step of its own, which runs while the function does."""
    b = pl.GraphBuilder("behind")
    last = b.call(passed_on, b.input("x", "float32", (3, WIDTH)), name="before")
    for layer in range(6):
        network = dequantised(weights() + np.int8(layer))
        last = b.include(network, {"x": last}, f"{layer}/")["y"]
    b.output("y", b.call(passed_on, last, name="after"))
    graph = b.build()
    devices = ["cpu" if node.name in ("before", "after") else "ort" for node in graph.nodes]
    assert [
        len(parts) for parts in list_cuts(graph.producer_indices, devices, graph.constant_indices)
    ] == [3]
