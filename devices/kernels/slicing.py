"""Kernels that take parts of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.operators.slicing import slice_range, slices_by_axis, split_sizes
from ...graph.tensor import Array, TensorSpec
from .registry import ArrayModule, Arrays, kernel
from .steps import Step, in_order

_BUFFERED_BYTES = 1 << 15
"""Up to here numpy's checked take, which copies its output once more, beats checking first."""


@kernel("Slice", binds=True)
def slice_(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    """Y = x[start:end:step, ...].  Source: ONNX Slice."""
    x = inputs[0]
    starts, ends = (array.reshape(-1).tolist() for array in inputs[1:3])
    optional = [None if array is None else array.reshape(-1).tolist() for array in inputs[3:]]
    axes, steps = (*optional, None, None)[:2]
    parts = [slice(None)] * x.ndim
    for axis, bounds in slices_by_axis(x.ndim, starts, ends, axes, steps).items():
        parts[axis] = _as_slice(slice_range(x.shape[axis], *bounds))
    return partial(xp.copyto, outputs[0], x[(..., *parts)])  # the dots keep a scalar an array


def _as_slice(indices: range) -> slice:
    if not indices:
        return slice(0, 0)
    return slice(indices.start, None if indices.stop < 0 else indices.stop, indices.step)


@kernel("Split", binds=True)
def split(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    """Y = x in parts along an axis."""
    x, begin, copies = inputs[0], 0, list[Step]()
    axis = attributes["axis"] % x.ndim
    sizes = None if len(inputs) < 2 or inputs[1] is None else inputs[1].reshape(-1).tolist()
    lengths = split_sizes(x.shape[axis], sizes, len(outputs))
    for y, length in zip(outputs, lengths, strict=True):
        if y is not None:
            part = x[(slice(None),) * axis + (slice(begin, begin + int(length)),)]
            copies.append(partial(xp.copyto, y, part))
        begin += int(length)
    return in_order(copies)


@kernel("Gather", binds=True)
def gather(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    """Y = x at the indices along an axis; negative ones count from the end.

    Raises IndexError for an index outside x, on arrays that the host can read.
    """
    (x, indices), (y,) = inputs, outputs
    axis = attributes["axis"] % x.ndim
    if not isinstance(x, np.ndarray):
        return partial(xp.take, x, indices, axis, y)
    if y.nbytes <= _BUFFERED_BYTES:
        return partial(x.take, indices, axis, y)
    return partial(_take_checked, x, indices, axis, y)


def _take_checked(x: Array, indices: Array, axis: int, y: Array) -> None:
    _check_indices(indices, x.shape[axis], axis)
    x.take(indices, axis, y, "wrap")


def _check_indices(indices: Array, length: int, axis: int) -> None:
    if indices.size == 0:
        return
    lowest, highest = int(indices.min()), int(indices.max())
    if lowest < -length or highest >= length:
        wrong = lowest if lowest < -length else highest
        raise IndexError(f"index {wrong} is outside axis {axis} of length {length}")


def _flat_indices(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return [TensorSpec("int64", outputs[0].shape)]


@kernel("GatherElements", scratch=_flat_indices, binds=True)
def gather_elements(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """y[i, j, ...] = x[i, indices[i, j, ...], ...], for the axis in the place of j."""
    (x, indices), (y,), (flat,) = inputs, outputs, scratch
    axis = attributes["axis"] % x.ndim
    source, length = x.reshape(-1), x.shape[axis]
    strides = [int(np.prod(x.shape[i + 1 :], dtype=np.int64)) for i in range(x.ndim)]
    along = [(-1,) + (1,) * (x.ndim - 1 - i) for i in range(x.ndim)]
    offsets = [
        (xp.arange(y.shape[i]) * strides[i]).reshape(along[i]) for i in range(x.ndim) if i != axis
    ]

    def step() -> None:
        if isinstance(indices, np.ndarray):
            _check_indices(indices, length, axis)
        xp.remainder(indices, length, out=flat)
        xp.multiply(flat, strides[axis], out=flat)
        for offset in offsets:
            xp.add(flat, offset, out=flat)
        if isinstance(source, np.ndarray):
            source.take(flat, None, y, "wrap")
        else:
            xp.take(source, flat, None, y)

    return step if y.size else in_order(())
