"""Kernels that reorder elements: ``(xp, inputs, outputs, attributes[, scratch]) -> Step``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import TensorSpec
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order


@kernel("DepthToSpace", binds=True)
def depth_to_space(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    (x,), (y,), size = inputs, outputs, attributes["blocksize"]
    batch, channels, height, width = y.shape
    target = y.reshape(batch, channels, height // size, size, width // size, size)
    if attributes["mode"] == "DCR":
        cells = x.reshape(batch, size, size, channels, height // size, width // size)
        return partial(xp.copyto, target, cells.transpose(0, 3, 4, 1, 5, 2))
    cells = x.reshape(batch, channels, size, size, height // size, width // size)
    return partial(xp.copyto, target, cells.transpose(0, 1, 4, 2, 5, 3))


@kernel("SpaceToDepth", binds=True)
def space_to_depth(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    (x,), (y,), size = inputs, outputs, attributes["blocksize"]
    batch, channels, height, width = x.shape
    cells = x.reshape(batch, channels, height // size, size, width // size, size)
    if attributes["mode"] == "DCR":
        target = y.reshape(batch, size, size, channels, height // size, width // size)
        return partial(xp.copyto, target, cells.transpose(0, 3, 5, 1, 2, 4))
    target = y.reshape(batch, channels, size, size, height // size, width // size)
    return partial(xp.copyto, target, cells.transpose(0, 1, 3, 5, 2, 4))


@kernel("EyeLike", binds=True)
def eye_like(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    y, k = outputs[0], attributes["k"]
    rows, columns = y.shape
    count = max(min(rows + min(k, 0), columns - max(k, 0)), 0)
    start = k if k >= 0 else -k * columns
    diagonal = y.reshape(-1)[start :: columns + 1][:count]
    return run_in_order((partial(y.fill, 0), partial(diagonal.fill, 1)))


def _declare_places(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    shape = outputs[0].static_shape[:2]
    return [TensorSpec("int64", shape), TensorSpec("bool", shape)]


@kernel("ReverseSequence", scratch=_declare_places, binds=True)
def reverse_sequence(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y[t] = x[length - 1 - t] while t < length, x[t] from there on, for each of the batch. Raises
    # IndexError for a length outside x, on arrays that the host can read.
    (x, lengths), (y,), (places, beyond) = inputs, outputs, scratch
    if y.size == 0:
        return run_in_order(())
    first, second = x.shape[:2]
    rows = x.reshape(first * second, -1)
    time_first = attributes["time_axis"] == 0
    longest = first if time_first else second
    times = xp.arange(longest).reshape((-1, 1) if time_first else (1, -1))
    ends = lengths.reshape((1, -1) if time_first else (-1, 1))
    others = xp.arange(second if time_first else first).reshape(ends.shape)
    time_stride, batch_stride = (second, 1) if time_first else (1, second)
    offsets = others * batch_stride

    def step() -> None:
        if isinstance(lengths, np.ndarray) and not 0 <= lengths.min() <= lengths.max() <= longest:
            raise IndexError(f"sequence_lens {lengths.tolist()} are not in [0, {longest}]")
        xp.subtract(ends, times + 1, out=places, casting="same_kind")
        xp.less(places, 0, out=beyond)
        xp.copyto(places, times, where=beyond)
        xp.multiply(places, time_stride, out=places)
        xp.add(places, offsets, out=places)
        if isinstance(rows, np.ndarray):
            rows.take(places.reshape(-1), 0, y.reshape(rows.shape), "wrap")
        else:
            xp.take(rows, places.reshape(-1), 0, y.reshape(rows.shape))

    return step
