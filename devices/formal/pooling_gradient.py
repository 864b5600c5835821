"""Definition of the gradient of MaxPool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.tensor import Array, TensorSpec
from .ieee import exact_sum
from .indices import at, indices
from .registry import definition


@definition("MaxPoolGradient")
def max_pool_gradient(
    dy: Array, places: Array, shape: Array, *, outputs: Sequence[TensorSpec], **window: Any
) -> Array:
    """dx[i] = Σ dy[o] over the windows o whose maximum is element i, counted row by row.

    The window's attributes only say where to look for them.
    """
    made = outputs[0].static_shape
    gathered: list[list[float]] = [[] for _ in range(outputs[0].size)]
    for index in indices(dy.shape):
        gathered[at(places, *index)].append(at(dy, *index))
    sums = np.array([float(exact_sum(parts)) for parts in gathered], object)
    return sums.reshape(made)
