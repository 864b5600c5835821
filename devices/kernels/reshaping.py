"""Kernels of ``(xp, inputs, outputs, attributes) -> Step`` that copy bytes or return a shape."""

from __future__ import annotations

from functools import partial

from ...graph.core.attribute import Attributes
from ...graph.operators.reshaping import list_shape_axes
from .registry import ArrayModule, Arrays, Step, kernel


def copy_bytes(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    # The elements of x in order, under y's shape; for Reshape, Flatten, Squeeze, Unsqueeze.
    return partial(xp.copyto, outputs[0].reshape(-1), inputs[0].reshape(-1))


for _op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
    kernel(_op, binds=True)(copy_bytes)


@kernel("Shape", binds=True)
def shape(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    lengths = [inputs[0].shape[axis] for axis in list_shape_axes(inputs[0].ndim, attributes)]
    return partial(xp.copyto, outputs[0], xp.asarray(lengths, dtype="int64"))


@kernel("Size", binds=True)
def size(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    return partial(outputs[0].fill, inputs[0].size)
