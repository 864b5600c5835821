"""The three OCR models in fewer nodes, and as machine code: still ONNX Runtime's numbers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes import simplify
from plait.graph.values.tensor import Array
from plait.scheduler.shapes.specialise import specialise

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
MODELS = {
    "ch_PP-OCRv4_det_infer": ((2, 3, 96, 64), 170),
    "ch_ppocr_mobile_v2.0_cls_infer": ((3, 3, 48, 100), 130),
    "ch_PP-OCRv4_rec_infer": ((1, 3, 48, 90), 230),
}
"""A shape, and at most how many nodes are left of over 230."""


def loaded(name: str) -> tuple[Graph, Path]:
    """Return a model for its shape, with all that is known ahead computed."""
    spec = find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        pytest.skip("pip install rapidocr-onnxruntime==1.4.4")
    path = Path(spec.origin).parent / "models" / f"{name}.onnx"
    return specialise(pl.load(path), {"x": MODELS[name][0]}), path


def fed(name: str) -> Array:
    return np.random.default_rng(6).standard_normal(MODELS[name][0]).astype(np.float32)


def reference(path: Path, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    result: Array = session.run(None, {"x": x})[0]
    return result


def check_like_reference(graph: Graph, path: Path, x: Array, device: str) -> None:
    (found,) = pl.run(graph, {"x": x}, devices=[device]).values()
    np.testing.assert_allclose(found, reference(path, x), TOLERANCE, TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_fewer_nodes_gives_the_same_numbers(name: str) -> None:
    graph, path = loaded(name)
    simpler = check(simplify(graph))
    assert len(simpler.nodes) <= MODELS[name][1]
    check_like_reference(simpler, path, fed(name), "cpu")


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_gives_the_same_numbers(name: str) -> None:
    pytest.importorskip("numba", reason="needs numba: pip install '.[compiled]'")
    graph, path = loaded(name)
    check_like_reference(graph, path, fed(name), "compiled")
    check_like_reference(simplify(graph), path, fed(name), "compiled")
