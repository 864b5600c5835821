"""Definitions of convolutions, weights' gradient and Col2Im: ``op(*inputs, **attributes)``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Specs
from ...graph.values.tensor import Array, TensorSpec
from .ieee import sum_exactly
from .registry import at, definition, indices, table
from .windows import (
    WindowPositions,
    get_explicit_pads,
    get_steps,
    is_inside,
    iterate_places,
    make_windows,
    split_halves,
)


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
    # y[n, f, o…] = Σ w[f, c, k…]·x[n, first(f) + c, o·stride - begin + k·dilation, …] + b[f],
    # over the channels c of f's group and the cells k of the kernel; x is 0 outside.
    shape = outputs[0].static_shape
    sliding = make_windows(x.shape[2:], shape[2:], w.shape[2:], attributes)
    features_per_group = w.shape[0] // group

    def terms(n: int, f: int, window: Sequence[int]) -> Iterator[float]:
        first = f // features_per_group * w.shape[1]
        for cell, place in iterate_places(sliding, window):
            inside = is_inside(place, x.shape[2:])
            for c in range(w.shape[1]):
                yield at(w, f, c, *cell) * (at(x, n, first + c, *place) if inside else 0.0)

    def element(n: int, f: int, *window: int) -> float:
        bias = [] if b is None else [at(b, f)]
        return float(sum_exactly([*terms(n, f, window), *bias]))

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
    # y[n, f, i·stride - begin + k·dilation, …] gathers w[c, f', k…]·x[n, c, i…] from all c, i, k.
    # f' counts f within its group, c runs over that group; places outside of y are dropped.
    shape = outputs[0].static_shape
    sliding = _transpose_windows(x.shape[2:], shape[2:], w.shape[2:], attributes)
    gathered = np.empty(shape, dtype=object)
    for index in indices(shape):
        gathered[index] = [] if b is None else [at(b, index[1])]
    for n, c, *cell in indices(x.shape):
        first = c // (x.shape[1] // group) * w.shape[1]
        for k, place in iterate_places(sliding, cell):
            if is_inside(place, shape[2:]):
                for f in range(w.shape[1]):
                    product = at(w, c, f, *k) * at(x, n, c, *cell)
                    gathered[(n, first + f, *place)].append(product)
    return table(shape, lambda *index: float(sum_exactly(gathered[index])))


def _transpose_windows(
    lengths: Sequence[int], outputs: Sequence[int], kernel: Sequence[int], attributes: Attributes
) -> list[WindowPositions]:
    """Return the windows over an output of lengths `outputs`, one for each cell of the input.

    If `attributes` fix the output's shape, directly or by SAME_*, the padding crops the rest: all =
    stride·(in - 1) + output_padding + (k - 1)·dilation + 1 - out, with `lengths` in and `kernel` k.
    """
    fixed = attributes["output_shape"] is not None or attributes["auto_pad"].startswith("SAME")
    more_at_end = attributes["auto_pad"] == "SAME_UPPER"
    sliding = []
    for axis, (length, count, size) in enumerate(zip(lengths, outputs, kernel, strict=True)):
        stride, dilation = get_steps(attributes, axis)
        begin, end = get_explicit_pads(attributes, axis, len(lengths))
        if fixed:
            extra = (attributes["output_padding"] or (0,) * len(lengths))[axis]
            full = stride * (length - 1) + extra + (size - 1) * dilation + 1
            begin, end = split_halves(max(full - count, 0), more_at_end=more_at_end)
        sliding.append(WindowPositions(count, size, stride, dilation, begin, end))
    return sliding


@definition("ConvWeightsGradient")
def conv_weights_gradient(
    x: Array,
    dy: Array,
    *,
    group: int,
    kernel_shape: Sequence[int],
    outputs: Sequence[TensorSpec],
    **attributes: Any,
) -> Array:
    # dw[f, c, k…] = Σ dy[n, f, o…]·x[n, first(f) + c, o·stride - begin + k·dilation, …], over the
    # samples n and the places o of the window; x is 0 outside. It is the derivative of Σ dy·y by
    # w[f, c, k…], with y by Conv's definition.
    shape, lengths = outputs[0].static_shape, x.shape[2:]
    counts = dy.shape[2:]
    sliding = make_windows(lengths, counts, kernel_shape, attributes)
    features_per_group = shape[0] // group

    def terms(f: int, c: int, cell: Sequence[int]) -> Iterator[float]:
        channel = f // features_per_group * shape[1] + c
        for window in indices(counts):
            steps = zip(sliding, window, cell, strict=True)
            place = [axis.place(o, k) for axis, o, k in steps]
            inside = is_inside(place, lengths)
            for n in range(x.shape[0]):
                yield at(dy, n, f, *window) * (at(x, n, channel, *place) if inside else 0.0)

    def element(f: int, c: int, *cell: int) -> float:
        return float(sum_exactly(list(terms(f, c, cell))))

    return table(shape, element)


@definition("Col2Im")
def col2im(
    x: Array, image_shape: Array, block_shape: Array, *, outputs: Specs, **attributes: Any
) -> Array:
    # Y[i] = the sum of all cells of blocks that lie at place i of the image.
    # x[n, c·cells + k, o] is cell k of block o; blocks lie as a convolution's windows do.
    shape = outputs[0].static_shape
    lengths, block = shape[2:], [int(size) for size in block_shape.reshape(-1).tolist()]
    sliding = make_windows(lengths, block, block, {**attributes, "auto_pad": "NOTSET"})
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
            for k, (_, place) in enumerate(iterate_places(sliding, window)):
                if is_inside(place, lengths):
                    gathered[(n, c, *place)].append(at(x, n, c * math.prod(block) + k, o))
    return table(shape, lambda *index: _add(gathered[index]))


def _add(values: list[Any]) -> Any:
    if not any(isinstance(value, complex) for value in values):
        return sum_exactly(values)
    return complex(sum_exactly(v.real for v in values), sum_exactly(v.imag for v in values))
