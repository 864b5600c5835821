"""Marks for tests of what older releases of optional packages lack: they run with newer ones."""

from __future__ import annotations

import onnx
import pytest
from plait.devices.ort.runtime import find_newest_opset
from plait.graph.formats.onnx.upgrade import NEWEST_OPSET

ATTENTION = 23
"""The opset that has it; ONNX Runtime's kernels of it came with other corrections."""

newest_onnx = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < NEWEST_OPSET,
    reason=f"onnx {onnx.__version__} is older than opset {NEWEST_OPSET}",
)
newer_ort = pytest.mark.skipif(
    find_newest_opset() < ATTENTION, reason=f"this onnxruntime is older than opset {ATTENTION}"
)
