"""Models that people use: they load, and are the same after a stay in a `.plait` file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import plait as pl
import pytest

# Package, the model in it, and what it takes.
MODELS = {
    "magika": ("magika", "models/standard_v3_3/model.onnx", ["int32[unk__214, 2048]"]),
    "classify": (
        "rapidocr_onnxruntime",
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        ["float32[?0, 3, ?1, ?2]"],
    ),
    "detect": (
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_det_infer.onnx",
        [
            "float32[p2o.DynamicDimension.0, 3, p2o.DynamicDimension.1, p2o.DynamicDimension.2]",
        ],
    ),
    "recognize": (
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        ["float32[p2o.DynamicDimension.0, 3, ?0, p2o.DynamicDimension.1]"],
    ),
}


def path_of(name: str) -> Path:
    package, inside, _ = MODELS[name]
    spec = find_spec(package)  # importing the packages would load far more than a model
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {package} is not installed")
    return Path(spec.origin).parent / inside


@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_loads(name: str) -> None:
    graph = pl.load(path_of(name))

    assert [str(graph.tensors[tensor]) for tensor in graph.inputs] == MODELS[name][2]
    assert all(graph.tensors[tensor].dtype == np.float32 for tensor in graph.outputs)
    assert all(node.op != "Constant" for node in graph.nodes)


@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_survives_a_stay_in_a_plait_file(name: str, tmp_path: Path) -> None:
    graph = pl.load(path_of(name))
    pl.save(graph, tmp_path / "model.plait")
    loaded = pl.load(tmp_path / "model.plait")

    assert loaded.nodes == graph.nodes
    assert loaded.tensors == graph.tensors
    for tensor, value in graph.constants.items():
        np.testing.assert_array_equal(loaded.constants[tensor], value, strict=True)
        assert not loaded.constants[tensor].flags.owndata
