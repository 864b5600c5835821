"""Kernels that return parts of x: ``(xp, inputs, outputs, attributes[, scratch]) -> Step``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.slicing import list_slices, split_sizes
from ...graph.values.dims import slice_range
from ...graph.values.tensor import Array, TensorSpec
from .arguments import check_indices, get_integers, index_at
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order

_BUFFERED_BYTES = 1 << 15
"""Up to here numpy's checked take, which copies its output once more, beats checking first."""


@kernel("Slice", binds=True)
def slice_(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    x = inputs[0]
    starts, ends, axes, steps = (get_integers(inputs, index) for index in range(1, 5))
    parts = [slice(None)] * x.ndim
    for axis, bounds in list_slices(x.ndim, starts or (), ends or (), axes, steps).items():
        parts[axis] = _to_slice(slice_range(x.shape[axis], *bounds))
    return partial(xp.copyto, outputs[0], x[(..., *parts)])  # the dots keep a scalar an array


def _to_slice(indices: range) -> slice:
    if not indices:
        return slice(0, 0)
    return slice(indices.start, None if indices.stop < 0 else indices.stop, indices.step)


@kernel("Split", binds=True)
def split(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    x, begin, copies = inputs[0], 0, list[Step]()
    axis = attributes["axis"] % x.ndim
    lengths = split_sizes(x.shape[axis], get_integers(inputs, 1), len(outputs))
    for y, length in zip(outputs, lengths, strict=True):
        if y is not None:
            part = x[index_at(axis, slice(begin, begin + int(length)))]
            copies.append(partial(xp.copyto, y, part))
        begin += int(length)
    return run_in_order(copies)


@kernel("Gather", binds=True)
def gather(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    # y = x at the indices along an axis; negative ones count from the end. Raises IndexError for an
    # index outside x, on arrays that the host can read.
    (x, indices), (y,) = inputs, outputs
    axis = attributes["axis"] % x.ndim
    if xp is not np:
        return partial(xp.take, x, indices, axis, y)
    if y.nbytes <= _BUFFERED_BYTES:
        return partial(x.take, indices, axis, y)
    return partial(_take_checked, x, indices, axis, y)


def _take_checked(x: Array, indices: Array, axis: int, y: Array) -> None:
    check_indices(indices, x.shape[axis], axis)
    x.take(indices, axis, y, "wrap")


def _gather_elements_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return [TensorSpec("int64", outputs[0].shape)]


@kernel("GatherElements", scratch=_gather_elements_scratch, binds=True)
def gather_elements(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y[i, j, ...] = x[i, indices[i, j, ...], ...], for the axis in the place of j. Raises
    # IndexError for an index outside x, on arrays that the host can read.
    (x, indices), (y,), (flat,) = inputs, outputs, scratch
    axis = attributes["axis"] % x.ndim
    source, length = x.reshape(-1), x.shape[axis]
    strides = [math.prod(x.shape[i + 1 :]) for i in range(x.ndim)]
    terms = [partial(xp.multiply, strides[axis])] if strides[axis] > 1 else []
    for i, stride in enumerate(strides):
        if i != axis and y.shape[i] > 1:
            offsets = (xp.arange(y.shape[i]) * stride).reshape(-1, *(1 for _ in y.shape[i + 1 :]))
            terms.append(partial(xp.add, offsets))

    def step() -> None:
        places = indices
        if xp is not np or check_indices(indices, length, axis):
            xp.remainder(places, length, out=flat)
            places = flat
        for term in terms:
            term(places, out=flat, dtype="int64")
            places = flat
        if xp is np:
            source.take(places, None, y, "wrap")
        else:
            xp.take(source, places, None, y)

    return step if y.size else run_in_order(())
