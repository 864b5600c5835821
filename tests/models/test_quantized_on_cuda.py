"""A model that ONNX Runtime quantized, its products by cuBLAS on a fake GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plait as pl
import pytest
from cupy_double import CupyDouble
from fake_cublas import FakeCublas
from plait.devices.cuda import byte_products
from plait.graph.core.infer import get_cost
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.quantization.accuracy import compare
from pocl import pocl_device

from .test_quantized_models import CLASSIFIER, by_runtime, lines, model, ocr

quantization = pytest.importorskip("onnxruntime.quantization")

pytestmark = [ocr, pytest.mark.slow]

PRODUCTS = ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")
IN_INTEGERS = ("+absorb_clip", "+hoist_quantize", "+integer_islands")


def quantized(name: str, folder: Path, items: list[dict[str, Array]] | None = None) -> Path:
    """Return a model as ONNX Runtime quantizes it: by ranges of items, or of what it computes."""
    plain, made = folder / "plain.onnx", folder / "quantized.onnx"
    quantization.shape_inference.quant_pre_process(model(name), plain, skip_symbolic_shape=True)
    if items is None:
        quantization.quantize_dynamic(plain, made, weight_type=quantization.QuantType.QInt8)
        return made

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        rest = iter(items or ())

        def get_next(self) -> dict[str, Array] | None:
            return next(self.rest, None)

    given = quantization.QuantType.QUInt8, quantization.QuantType.QInt8
    quantization.quantize_static(
        plain, made, Reader(), activation_type=given[0], weight_type=given[1]
    )
    return made


def share_of_cublas(graph: Graph, device: Any) -> float:
    """Return how much of the operations of integer products cuBLAS computes."""
    spent = {True: 0, False: 0}
    for node in graph.nodes:
        if node.op in PRODUCTS:
            reason = device.supports(node, graph.call(node)).reason
            spent[reason.startswith("cuBLAS")] += get_cost(graph, node).flops
    return spent[True] / sum(spent.values())


@pytest.mark.extended
@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
def test_results_are_those_of_onnx_runtime_to_a_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_static: bool
) -> None:
    """Sums are exact; what is rounded to bytes between them may fall to the next one."""
    pocl_device()
    monkeypatch.setattr(byte_products, "LEAST", 0)
    items = lines(2)
    path = quantized(CLASSIFIER, tmp_path, items if is_static else None)
    double = CupyDouble()
    library = FakeCublas(double.gpu)
    device = double.generating(cublas=lambda: library)
    passes: dict[str, Any] = {"passes": IN_INTEGERS} if is_static else {}
    plan = pl.plan(pl.load(path), [device], shapes={"x": (1, 3, 48, 96)}, **passes)
    with pl.BlockingSession(plan) as session:
        found = [dict(session.run(item)) for item in items]
    (beside,) = compare(zip(found, by_runtime(path, items), strict=True)).values()
    assert beside.sqnr_db > 30
    assert library.forms == {"TN"}
    assert share_of_cublas(plan.graph, device) > 0.65  # all but convolutions of one channel each


@pytest.mark.parametrize(
    ("name", "shape", "share"),
    [
        ("ch_PP-OCRv4_rec_infer", (6, 3, 48, 320), 0.88),
        ("ch_PP-OCRv4_det_infer", (1, 3, 640, 640), 0.81),
    ],
)
def test_most_operations_of_large_models_are_for_cublas(
    tmp_path: Path, name: str, shape: tuple[int, ...], share: float
) -> None:
    """As docs/cuda.md says."""
    path, device = quantized(name, tmp_path), CupyDouble().generating()
    plan = pl.plan(pl.load(path), [device], shapes={"x": shape})
    assert share_of_cublas(plan.graph, device) > share
