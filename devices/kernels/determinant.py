"""The determinant, by the array module's LU decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.tensor import Array, TensorSpec
from .precision import wide_copies, widen
from .registry import ArrayModule, Arrays, kernel
from .steps import Step


def _scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return wide_copies((call.spec(0), outputs[0]))


@kernel("Det", scratch=_scratch, binds=True)
def determinant(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = the determinant of each matrix; that of an empty one is 1.  Source: ONNX Det."""
    wide = widen(xp, inputs, outputs, scratch)
    return wide.around([partial(_determinants, xp, *wide.inputs, *wide.outputs)])


def _determinants(xp: ArrayModule, x: Array, y: Array) -> None:
    xp.copyto(y, xp.linalg.det(x))
