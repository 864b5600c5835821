"""Scans: each element combined with all before it along an axis."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...graph.attribute import Attributes
from ...graph.tensor import Array
from .registry import ArrayModule, Arrays, kernel

_ACROSS = 32
"""Elements in a slice across the axis, from which on numpy adds slices faster than it scans."""


def _scan(
    name: str,
    neutral: int,
    xp: ArrayModule,
    inputs: Arrays,
    outputs: Arrays,
    attributes: Attributes,
) -> None:
    """Accumulate along the axis, exclusive of the element itself and from the end if asked."""
    x, y = inputs[0], outputs[0]
    axis = int(inputs[1].reshape(())) % x.ndim
    before = (slice(None),) * axis
    if attributes["reverse"]:
        x, y = x[(*before, slice(None, None, -1))], y[(*before, slice(None, None, -1))]
    if attributes["exclusive"]:
        y[(*before, slice(0, 1))] = neutral
        x, y = x[(*before, slice(None, -1))], y[(*before, slice(1, None))]
    across = x.size // max(x.shape[axis], 1)
    if isinstance(x, np.ndarray) and axis < x.ndim - 1 and across >= _ACROSS:
        _combine_slices(np.add if name == "cumsum" else np.multiply, x, y, axis)
    else:
        getattr(x, name)(axis, x.dtype, y)


def _combine_slices(combine: Any, x: Array, y: Array, axis: int) -> None:
    source, target = np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)
    target[:1] = source[:1]
    for i in range(1, len(source)):
        combine(target[i - 1], source[i], out=target[i])


kernel("CumSum")(partial(_scan, "cumsum", 0))
kernel("CumProd")(partial(_scan, "cumprod", 1))
