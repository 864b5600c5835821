"""Elementwise kernels: one pass over memory, into the output."""

from __future__ import annotations

from ...graph.attribute import Attributes
from .registry import ArrayModule, Arrays, kernel


@kernel("Add")
def add(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    """Y = a + b.  Source: ONNX Add."""
    xp.add(inputs[0], inputs[1], out=outputs[0])


@kernel("Relu")
def relu(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    """Y = max(x, 0).  Source: ONNX Relu."""
    xp.maximum(inputs[0], 0, out=outputs[0])


@kernel("Identity")
def identity(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    """Y = x; runs only where the plan could not make y a view of x."""
    xp.copyto(outputs[0], inputs[0])
