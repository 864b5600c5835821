"""Plans of real models by `auto`: none is torn, and the order of devices changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from plait.graph.values.tensor import Array

onnxruntime = pytest.importorskip("onnxruntime")

SETS = (("cpu", "ort"), ("compiled", "ort"), ("cpu", "compiled", "ort"))


def in_package(package: str, *parts: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"pip install {package}")
    return Path(spec.origin).parent.joinpath(*parts)


def image(height: int, width: int) -> Mapping[str, Array]:
    return {"x": np.random.default_rng(0).random((1, 3, height, width), np.float32)}


MODELS = {
    "det": (("rapidocr_onnxruntime", "models", "ch_PP-OCRv4_det_infer.onnx"), image(64, 96)),
    "rec": (("rapidocr_onnxruntime", "models", "ch_PP-OCRv4_rec_infer.onnx"), image(48, 160)),
    "magika": (
        ("magika", "models", "standard_v3_3", "model.onnx"),
        {"bytes": np.arange(2048, dtype=np.int32).reshape(1, 2048) % 256},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("devices", SETS, ids=",".join)
@pytest.mark.parametrize("name", MODELS)
def test_a_network_is_one_subgraph_in_the_form_of_its_device(
    name: str, devices: tuple[str, ...]
) -> None:
    if "compiled" in devices:
        pytest.importorskip("numba")
    place, feeds = MODELS[name]
    path = in_package(*place)
    graph = pl.load(path)
    shapes = {tensor: value.shape for tensor, value in feeds.items()}
    plans = [pl.plan(graph, order, shapes=shapes) for order in (devices, devices[::-1])]
    (chosen,) = {plan.decision.chosen for plan in plans if plan.decision is not None}
    device = chosen.removeprefix("all on ")
    alone = Counter(n.op for n in pl.plan(graph, [device], shapes=shapes).graph.nodes)
    for plan in plans:
        assert len(plan.subgraphs) == 1
        assert Counter(node.op for node in plan.graph.nodes) == alone

    with pl.BlockingSession(plans[0]) as session:
        found = session.run(feeds)
    runtime = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for result, expected in zip(found.values(), runtime.run(None, dict(feeds)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)
