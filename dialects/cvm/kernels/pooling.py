"""Exact kernels on planes: maxima over windows, and cells made larger."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ....devices.kernels.registry import ArrayModule, Arrays, kernel
from ....devices.kernels.sliding import AxisWindow, slide
from ....devices.kernels.steps import Step, in_order
from ....graph.attribute import Attributes
from ....graph.operator import Call, Specs
from ....graph.tensor import TensorSpec
from ..operators.neural import pooling_steps

_LEAST = int(np.iinfo(np.int32).min)
"""What a cell of the padding counts as."""


def _windows(shape: Sequence[int], attributes: Attributes) -> tuple[AxisWindow, AxisWindow]:
    rows, columns = (
        AxisWindow(length, outputs, pool, stride, begin=pad)
        for length, outputs, pool, stride, pad in pooling_steps(shape[2:], attributes)
    )
    return rows, columns


def _pooling_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Scratch: what lies between the passes along the two axes."""
    batch, channels, height, _ = call.spec(0).static_shape
    return [TensorSpec("int32", (batch, channels, height, outputs[0].static_shape[3]))]


@kernel("cvm.max_pool2d", scratch=_pooling_scratch, binds=True)
def max_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = the largest cell of each window: of the rows' parts first, then of those."""
    (x,), (y,), (between,) = inputs, outputs, scratch
    rows, columns = _windows(x.shape, attributes)
    return in_order(
        (
            *slide(xp, xp.maximum, x, between, 3, columns, _LEAST),
            *slide(xp, xp.maximum, between, y, 2, rows, _LEAST),
        )
    )


@kernel("cvm.upsampling", binds=True)
def upsample(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    """Y = x with each cell as a square of equal ones."""
    x, scale = inputs[0], attributes["scale"]
    batch, channels, height, width = x.shape
    squares = outputs[0].reshape(batch, channels, height, scale, width, scale)
    return partial(xp.copyto, squares, x[:, :, :, None, :, None])
