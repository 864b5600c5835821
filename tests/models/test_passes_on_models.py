"""Real models before and after all passes: the same results, and nothing left to do."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from plait.graph.passes import PASSES
from plait.graph.passes.pipeline import run_passes
from plait.graph.values.tensor import Array

RTOL, ATOL = 1e-3, 1e-4
"""Sums of thousands of float32 in another order, through all the layers of a model."""

OCR = ("rapidocr_onnxruntime", "models")
RANDOM = np.random.default_rng(0)


def image(*shape: int) -> dict[str, Array]:
    return {"x": RANDOM.standard_normal((1, *shape)).astype(np.float32)}


MODELS: Mapping[str, tuple[tuple[str, ...], dict[str, Array]]] = {
    "direction": ((*OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx"), image(3, 48, 192)),
    "recognition": ((*OCR, "ch_PP-OCRv4_rec_infer.onnx"), image(3, 48, 64)),
    "magika": (
        ("magika", "models", "standard_v3_3", "model.onnx"),
        {"bytes": RANDOM.integers(0, 256, (1, 2048)).astype(np.int32)},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_passes_keep_what_a_model_says(name: str) -> None:
    (package, *parts), fed = MODELS[name]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"pip install {package}")
    graph = pl.load(Path(spec.origin).parent.joinpath(*parts))
    shapes = {name: value.shape for name, value in fed.items()}
    plain, simple = pl.plan(graph, shapes=shapes, passes=()), pl.plan(graph, shapes=shapes)
    assert len(simple.graph.nodes) < len(plain.graph.nodes)
    assert run_passes(simple.graph, PASSES)[0] is simple.graph
    before, after = pl.run(plain, fed), pl.run(simple, fed)
    for output, wanted in before.items():
        np.testing.assert_allclose(after[output], wanted, rtol=RTOL, atol=ATOL)
