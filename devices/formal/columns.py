"""The definition of Col2Im."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...graph.operator import Specs
from ...graph.tensor import Array
from .ieee import exact_sum
from .indices import at, indices, table
from .registry import definition
from .windows import is_inside, places, windows


@definition("Col2Im")
def col2im(
    x: Array, image_shape: Array, block_shape: Array, *, outputs: Specs, **attributes: Any
) -> Array:
    """Y = for each place of the image, the sum of what blocks have there.

    x[n, c·cells + k, o] is cell k of block o; blocks lie as a convolution's windows do.
    Source: ONNX Col2Im.
    """
    shape = outputs[0].static_shape
    lengths, block = shape[2:], [int(size) for size in block_shape.reshape(-1).tolist()]
    sliding = windows(lengths, block, block, {**attributes, "auto_pad": "NOTSET"})
    counts = [
        (axis.begin + axis.length + axis.end - (axis.kernel - 1) * axis.dilation - 1) // axis.stride
        + 1
        for axis in sliding
    ]
    gathered = np.empty(shape, object)
    for index in indices(shape):
        gathered[index] = []
    for n, c in indices(shape[:2]):
        for o, window in enumerate(indices(counts)):
            for k, (_, place) in enumerate(places(sliding, window)):
                if is_inside(place, lengths):
                    gathered[(n, c, *place)].append(at(x, n, c * math.prod(block) + k, o))
    return table(shape, lambda *index: _added(gathered[index]))


def _added(values: list[Any]) -> Any:
    """Return the sum of numbers, complex ones by their parts."""
    if not any(isinstance(value, complex) for value in values):
        return exact_sum(values)
    return complex(exact_sum(v.real for v in values), exact_sum(v.imag for v in values))
