"""Dilated windows with SAME padding run on ONNX Runtime, which takes them with numbers alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.graph.values.tensor import Array

_rng = np.random.default_rng(0)
IMAGE, WEIGHTS = _rng.random((1, 3, 9, 8), "float32"), _rng.random((4, 3, 3, 2), "float32")
BYTES = _rng.integers(0, 255, IMAGE.shape, "uint8"), _rng.integers(0, 255, WEIGHTS.shape, "uint8")


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("op", "inputs", "device"),
    [
        ("Conv", (IMAGE, WEIGHTS), "ort"),
        ("ConvInteger", BYTES, "ort"),
        ("AveragePool", (IMAGE,), "cpu"),
        ("LpPool", (IMAGE,), "cpu"),
        ("MaxPool", (IMAGE,), "cpu"),
    ],
)
def test_results_are_those_of_the_definition(
    op: str, inputs: tuple[Array, ...], device: str, auto_pad: str
) -> None:
    pytest.importorskip("onnxruntime")
    attributes: dict[str, Any] = {} if len(inputs) > 1 else {"kernel_shape": (3, 2)}
    b = pl.GraphBuilder("dilated")
    x = b.input("x", inputs[0].dtype, inputs[0].shape)
    made = b.op(op, x, *inputs[1:], auto_pad=auto_pad, dilations=(2, 3), **attributes, name="node")
    b.output("y", made)
    pins = {"node": "ort"} if device == "ort" else {}
    plan = pl.plan(b.build(), ["ort", "cpu"], pin=pins, passes=())
    found, wanted = (pl.run(p, {"x": inputs[0]})["y"] for p in (plan, pl.plan(b.build(), "formal")))
    assert plan.partition.assignment == {"node": device}
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
