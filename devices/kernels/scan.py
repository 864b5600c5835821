"""Scans: each element combined with all before it along an axis."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...graph.attribute import Attributes
from ...graph.dims import normalize_axis
from ...graph.tensor import Array
from .axes import at
from .registry import ArrayModule, Arrays, kernel

_ACROSS = 96
"""Elements in a slice across the axis, from which on numpy adds slices faster than it scans."""


def _scan(
    name: str,
    neutral: int,
    xp: ArrayModule,
    inputs: Arrays,
    outputs: Arrays,
    attributes: Attributes,
) -> None:
    """Y = x accumulated along the axis, without the element itself and from the end if asked.

    Raises ShapeError for an axis that x lacks. Sources: ONNX CumSum, CumProd.
    """
    x, y = inputs[0], outputs[0]
    axis = normalize_axis(int(inputs[1].reshape(())), x.ndim)
    if attributes["reverse"]:
        backward = at(axis, slice(None, None, -1))
        x, y = x[backward], y[backward]
    if attributes["exclusive"]:
        y[at(axis, slice(0, 1))] = neutral
        x, y = x[at(axis, slice(None, -1))], y[at(axis, slice(1, None))]
    across = x.size // max(x.shape[axis], 1)
    if xp is np and axis < x.ndim - 1 and across >= _ACROSS:
        _combine_slices(np.add if name == "cumsum" else np.multiply, x, y, axis)
    else:
        getattr(x, name)(axis, x.dtype, y)


def _combine_slices(combine: Any, x: Array, y: Array, axis: int) -> None:
    source, target = np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)
    target[:1] = source[:1]
    for before, part, found in zip(target, source[1:], target[1:], strict=False):
        combine(before, part, found)


_READS_AXIS = "its axis is read by the host on each run"
kernel("CumSum", host=_READS_AXIS)(partial(_scan, "cumsum", 0))
kernel("CumProd", host=_READS_AXIS)(partial(_scan, "cumprod", 1))
