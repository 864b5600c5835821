"""Products of bytes are exact on `ort`, whichever processor it is."""

from __future__ import annotations

import itertools

import numpy as np
import plait as pl
import pytest

pytest.importorskip("onnxruntime")
from plait.devices.ort import saturation
from releases import newer_ort

SCALE, COARSE = np.float32(1 / 64), np.float32(4)


def build(op: str, left: str, right: str, *, decoded: bool, zero: bool, fed: bool) -> pl.Graph:
    """Return a graph with one product of bytes; the right operand is fed, or a constant."""
    b = pl.GraphBuilder("bytes")
    is_conv = "Conv" in op
    shapes = ((1, 8, 4, 4), (8, 8, 3, 3)) if is_conv else ((4, 64), (64, 16))
    random = np.random.default_rng(0)
    info = np.iinfo(right)
    x = b.input("x", left, shapes[0])
    weights = random.choice([info.min, info.max, info.max - 1], shapes[1]).astype(right)
    w = b.input("w", right, shapes[1]) if fed else b.constant(weights, "w")
    xz, wz = (np.dtype(one).type(3 * zero) for one in (left, right))
    if decoded:
        zeros = [[xz], [wz]] if zero else [[], []]
        floats = (
            b.op("DequantizeLinear", one, SCALE, *its)
            for one, its in zip((x, w), zeros, strict=True)
        )
        b.output("y", b.op("QuantizeLinear", b.op(op, *floats), COARSE, xz))
    elif op.startswith("QLinear"):
        b.output("y", b.op(op, x, SCALE, xz, w, SCALE, wz, COARSE, xz))
    else:
        b.output("y", b.op(op, x, w, *([xz, wz] if zero else [])))
    return b.build()


PRODUCTS = [
    *((op, False) for op in ("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv")),
    *((op, True) for op in ("MatMul", "Conv")),
]


@pytest.mark.parametrize(("op", "decoded"), PRODUCTS)
@pytest.mark.parametrize("forced", [False, True])
@newer_ort
def test_products_of_any_two_kinds_of_bytes_are_exact(
    op: str, decoded: bool, forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forced:  # as on a processor that cuts off
        monkeypatch.setattr(saturation, "is_saturating", lambda: True)
    zeros = (False, True) if forced else (True,)
    for left, right, zero, fed in itertools.product(
        *(("uint8", "int8"),) * 2, zeros, (False, True)
    ):
        graph = build(op, left, right, decoded=decoded, zero=zero, fed=fed)
        feeds = {
            name: np.full(spec.static_shape, np.iinfo(spec.dtype).max, spec.dtype)
            for name in graph.inputs
            for spec in [graph.tensors[name]]
        }
        found, wanted = (pl.run(graph, feeds, devices=[one])["y"] for one in ("ort", "cpu"))
        np.testing.assert_array_equal(found, wanted, f"{left} {right} {zero=} {fed=}")


@pytest.mark.parametrize(
    ("weight", "overflows"), [(64, False), (-64, False), (65, True), (-65, True)]
)
def test_weights_stay_as_they_are_where_no_two_products_overflow(
    weight: int, overflows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saturation, "is_saturating", lambda: True)
    b = pl.GraphBuilder("bytes")
    weights = np.full((64, 16), weight, np.int8)
    b.output("y", b.op("MatMulInteger", b.input("x", "uint8", (4, 64)), b.constant(weights, "w")))
    graph = b.build()
    (made,) = saturation.avoid_saturation(graph).nodes
    assert (made != graph.nodes[0]) == overflows
    x = np.full((4, 64), 255, np.uint8)
    assert (pl.run(graph, {"x": x}, devices=["ort"])["y"] == 64 * 255 * weight).all()


def test_products_in_branches_are_exact_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturation, "is_saturating", lambda: True)
    weights = np.full((64, 16), 127, np.int8)
    branches = []
    for name in ("then", "else"):
        inner = pl.GraphBuilder(name)
        x = inner.input("x", "uint8", (4, 64))
        inner.output("y", inner.op("MatMulInteger", x, inner.constant(weights, "w")))
        branches.append(inner.build())
    b = pl.GraphBuilder("either")
    x, first = b.input("x", "uint8", (4, 64)), b.input("first", "bool", ())
    b.output("y", b.op("If", first, x, then_branch=branches[0], else_branch=branches[1]))
    fed = {"x": np.full((4, 64), 255, np.uint8), "first": np.array(True)}
    assert (pl.run(b.build(), fed, devices=["ort"])["y"] == 64 * 255 * 127).all()
