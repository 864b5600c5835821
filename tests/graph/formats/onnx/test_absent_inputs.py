"""Inputs that are absent at the end of a node are not written."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from plait.formats import to_onnx


def test_absent_inputs_are_written_only_before_others() -> None:
    b = pl.GraphBuilder("absent")
    x = b.input("x", "float32", (2, 4))
    b.output("y", b.op("LayerNormalization", x, np.ones(4, "float32"), None, name="norm"))
    b.output("z", b.op("Clip", x, None, np.float32(1), name="clip"))
    written = {node.name: list(node.input) for node in to_onnx(b.build()).graph.node}
    assert len(written["norm"]) == 2
    assert written["clip"][1] == ""


def test_onnx_runtime_survives_absent_inputs() -> None:
    pytest.importorskip("onnxruntime")  # 1.32 reads an absent bias, which ends the process
    b = pl.GraphBuilder("absent")
    x = b.input("x", "float32", (2, 4))
    b.output("y", b.op("LayerNormalization", x, np.ones(4, "float32"), None))
    y = pl.run(pl.plan(b.build(), "ort"), {"x": np.arange(8, dtype="float32").reshape(2, 4)})["y"]
    np.testing.assert_allclose(y.mean(axis=1), 0, atol=1e-6)
