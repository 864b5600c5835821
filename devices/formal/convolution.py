"""Definitions of Conv and ConvTranspose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...graph.attribute import Attributes
from ...graph.tensor import Array, TensorSpec
from .ieee import exact_sum
from .indices import at, indices, table
from .registry import definition
from .windows import WindowPositions, explicit_pads, halves, is_inside, places, steps, windows


@definition("Conv")
def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    group: int,
    outputs: Sequence[TensorSpec],
    **attributes: Any,
) -> Array:
    """y[n, f, o…] = Σ w[f, c, k…]·x[n, first(f) + c, o·stride - begin + k·dilation, …] + b[f].

    The sum is over the channels c of f's group and the cells k of the kernel; x is 0 outside.
    Source: ONNX Conv.
    """
    shape = outputs[0].static_shape
    sliding = windows(x.shape[2:], shape[2:], w.shape[2:], attributes)
    features_per_group = w.shape[0] // group

    def terms(n: int, f: int, window: Sequence[int]) -> Iterator[float]:
        first = f // features_per_group * w.shape[1]
        for cell, place in places(sliding, window):
            if is_inside(place, x.shape[2:]):
                for c in range(w.shape[1]):
                    yield at(w, f, c, *cell) * at(x, n, first + c, *place)

    def element(n: int, f: int, *window: int) -> float:
        bias = [] if b is None else [at(b, f)]
        return float(exact_sum([*terms(n, f, window), *bias]))

    return table(shape, element)


@definition("ConvTranspose")
def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    group: int,
    outputs: Sequence[TensorSpec],
    **attributes: Any,
) -> Array:
    """y[n, f, i·stride - begin + k·dilation, …] gathers w[c, f', k…]·x[n, c, i…] from all c, i, k.

    f' counts f within its group, c runs over that group; what falls outside of y is dropped.
    Source: ONNX ConvTranspose.
    """
    shape = outputs[0].static_shape
    sliding = _transposed(x.shape[2:], shape[2:], w.shape[2:], attributes)
    gathered = np.empty(shape, dtype=object)
    for index in indices(shape):
        gathered[index] = [] if b is None else [at(b, index[1])]
    for n, c, *cell in indices(x.shape):
        first = c // (x.shape[1] // group) * w.shape[1]
        for k, place in places(sliding, cell):
            if is_inside(place, shape[2:]):
                for f in range(w.shape[1]):
                    product = at(w, c, f, *k) * at(x, n, c, *cell)
                    gathered[(n, first + f, *place)].append(product)
    return table(shape, lambda *index: float(exact_sum(gathered[index])))


def _transposed(
    lengths: Sequence[int], outputs: Sequence[int], kernel: Sequence[int], attributes: Attributes
) -> list[WindowPositions]:
    """Return the windows that lie over the output, one for each input cell.

    Where the output's shape is given, directly or by SAME_*, the padding is what must be cut off:
    all = stride·(in - 1) + output_padding + (k - 1)·dilation + 1 - out.
    """
    fixed = attributes["output_shape"] is not None or attributes["auto_pad"].startswith("SAME")
    more_at_end = attributes["auto_pad"] == "SAME_UPPER"
    sliding = []
    for axis, (length, count, size) in enumerate(zip(lengths, outputs, kernel, strict=True)):
        stride, dilation = steps(attributes, axis)
        begin, end = explicit_pads(attributes, axis, len(lengths))
        if fixed:
            extra = (attributes["output_padding"] or (0,) * len(lengths))[axis]
            full = stride * (length - 1) + extra + (size - 1) * dilation + 1
            begin, end = halves(max(full - count, 0), more_at_end=more_at_end)
        sliding.append(WindowPositions(count, size, stride, dilation, begin, end))
    return sliding
