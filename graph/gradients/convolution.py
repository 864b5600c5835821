"""Gradients of convolutions: transposed convolutions, and sums of products with the input.

Source: Dumoulin and Visin, *A guide to convolution arithmetic for deep learning* (2016), section 4.
DeformConv gathers its columns again and is then a product; in Col2Im each block of the image
becomes a column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..operators.convolution import BIAS, MASK, OFFSET
from ..operators.windows import resolve_transposed_window, resolve_window
from ..values.tensor import Dim
from .elementwise import Gradients
from .formula import Term
from .movement import make_range
from .registry import Adjoint, gradient
from .sampling import combine_axes, get_length, make_linear_taps, read_taps, widen
from .via_decomposition import Inputs, differentiate_through


def find_steps(at: Adjoint, rank: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the strides and dilations of the windows of `at`, which slide over `rank` axes."""
    return at["strides"] or (1,) * rank, at["dilations"] or (1,) * rank


def find_kernel(at: Adjoint, weights: Term) -> tuple[int, ...]:
    given: Sequence[Dim] = at["kernel_shape"] or (weights.spec.shape or ())[2:]
    sizes = tuple(size for size in given if isinstance(size, int))
    if not sizes or len(sizes) != len(given):
        raise at.refused_error("the lengths of its windows are not known", "set its kernel_shape")
    return sizes


def transpose_windows(
    at: Adjoint, dy: Term, weights: Term, kernel: Sequence[int], group: int, *, ceil: bool = False
) -> Term:
    """Return `dy` · `weights`, added at each window of `kernel` that `at` slides over its input.

    `group` is the number of groups; `ceil` is True if the number of windows is rounded up.
    """
    x, formula, rank = at.input(0), at.formula, len(kernel)
    strides, dilations = find_steps(at, rank)
    shared = {"strides": strides, "dilations": dilations, "group": group}
    spatial = (x.spec.shape or ("?",) * (rank + 2))[2:]
    window, counts = resolve_window(spatial, at.node.attributes, kernel, ceil_mode=ceil)
    lengths = [dim for dim in spatial if isinstance(dim, int)]
    outputs = [dim for dim in counts if isinstance(dim, int)]
    # With known lengths, pads and output_padding are exact; otherwise the result is larger, and
    # cropped.
    if window is not None and len(lengths) == len(outputs) == rank:
        surplus = [
            reach - begin - length
            for reach, begin, length in zip(
                window.span(outputs), window.pads_begin, lengths, strict=True
            )
        ]
        pads = [*window.pads_begin, *(max(more, 0) for more in surplus)]
        extra = [max(-more, 0) for more in surplus]
        return dy.op("ConvTranspose", weights, pads=pads, output_padding=extra, **shared)
    extra = [stride - 1 for stride in strides]  # as many cells as windows may have left over
    whole = dy.op("ConvTranspose", weights, output_padding=extra, **shared)
    starts, length = _find_begins(at, kernel), formula.shape_of(x, 2)
    axes = formula.constant(range(2, rank + 2))
    return whole.op("Slice", starts, starts.op("Add", length), axes)


def _find_begins(at: Adjoint, kernel: Sequence[int]) -> Term:
    """Return the padding of `at` before each axis of `kernel`; for SAME_* the length decides."""
    formula, rank, auto_pad = at.formula, len(kernel), at["auto_pad"]
    if not auto_pad.startswith("SAME"):
        pads = at["pads"] if auto_pad == "NOTSET" else None
        return formula.constant((pads or (0,) * rank)[:rank])
    strides, dilations = find_steps(at, rank)
    stride = formula.constant(strides)
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    length = formula.shape_of(at.input(0), 2)
    # SAME_* has a window for each started stride.
    windows = (length + formula.constant([s - 1 for s in strides])) / stride
    total = (windows - 1) * stride + formula.constant(reach) - length
    total = total.op("Max", formula.constant(0))
    # Of odd padding the larger half comes after the cells, except for SAME_LOWER.
    half = total / formula.constant(2)
    return half if auto_pad == "SAME_UPPER" else total - half


@gradient("Conv")
def conv(at: Adjoint) -> Gradients:
    x, w, dy = at.input(0), at.input(1), at.dy
    if at.wants(0):
        yield 0, transpose_windows(at, dy, w, find_kernel(at, w), at["group"])
    if at.wants(1):
        window = {name: at[name] for name in ("auto_pad", "dilations", "pads", "strides", "group")}
        yield 1, _differentiate_weights(x, dy, find_kernel(at, w), window)
    if at.wants(2):
        yield 2, _sum_per_channel(dy)


def _differentiate_weights(
    x: Term, dy: Term, kernel: Sequence[int], window: dict[str, Any]
) -> Term:
    return x.op("ConvWeightsGradient", dy, kernel_shape=kernel, **window)


def _sum_per_channel(dy: Term) -> Term:
    return dy.sum([0, *range(2, dy.rank)], keepdims=False)


@gradient("ConvTranspose")
def conv_transpose(at: Adjoint) -> Gradients:
    # The gradients of Conv with the roles of x and y exchanged.
    x, w, dy = at.input(0), at.input(1), at.dy
    if at.wants(0) or at.wants(1):
        window = _make_explicit(at, x, find_kernel(at, w))
    if at.wants(0):
        yield 0, _crop(dy.op("Conv", w, **window), x)
    if at.wants(1):
        # The roles are exchanged: windows lie on dy, and x is the other factor.
        yield 1, _differentiate_weights(dy, x, find_kernel(at, w), window)
    if at.wants(2):
        yield 2, _sum_per_channel(dy)


def _make_explicit(at: Adjoint, x: Term, kernel: Sequence[int]) -> dict[str, Any]:
    """Return attributes of the Conv that `at` transposes, for its input `x` and `kernel`."""
    spatial = (x.spec.shape or ("?",) * (len(kernel) + 2))[2:]
    window, _ = resolve_transposed_window(spatial, at.node.attributes, kernel)
    if window is None:
        raise at.refused_error(
            f"its padding depends on the lengths {list(spatial)}",
            "give its padding as pads, or its input a shape of numbers",
        )
    pads = (*window.pads_begin, *window.pads_end)
    strides, dilations = find_steps(at, len(kernel))
    return {"pads": pads, "strides": strides, "dilations": dilations, "group": at["group"]}


def _crop(made: Term, x: Term) -> Term:
    """Return `made` cropped to the shape of `x`: output padding has windows, too."""
    if made.spec.shape is not None and made.spec.shape == x.spec.shape:
        return made
    formula, axes = x.formula, list(range(2, x.rank))
    first = formula.constant([0] * len(axes))
    return made.op("Slice", first, formula.shape_of(x, 2), formula.constant(axes))


@gradient("ConvWeightsGradient")
def conv_weights_gradient(at: Adjoint) -> Gradients:
    # Two convolutions with the weights' gradient: the node is linear in x and in dy.
    kernel, weights = at["kernel_shape"], at.dy
    if at.wants(0):
        yield 0, transpose_windows(at, at.input(1), weights, kernel, at["group"])
    if at.wants(1):
        window = {name: at[name] for name in ("auto_pad", "dilations", "pads", "strides", "group")}
        yield 1, _crop(at.input(0).op("Conv", weights, **window), at.input(1))


_AXES = 2


@gradient("DeformConv")
def deform_conv(at: Adjoint) -> Gradients:
    yield from differentiate_through(at, partial(_multiply_columns, at))


def _multiply_columns(at: Adjoint, inputs: Inputs) -> list[Term]:
    given = [None if one is None else widen(one) for one in (*inputs, None, None)]
    x, w, offset, b, mask = given[:2] + [given[i] for i in (OFFSET, BIAS, MASK)]
    assert x is not None
    assert w is not None
    assert offset is not None
    formula, group = at.formula, at["group"]
    columns = _gather_columns(at, x, offset, mask, find_kernel(at, w))
    features = formula.shape_of(w, 0, 1) / formula.constant([group])
    depth = formula.size_of(w, 1)
    parts, cells = formula.constant([group]), formula.shape_of(at.output(), 2)
    batch, places = formula.shape_of(x, 0, 1), formula.size_of(at.output(), 2)
    rows = columns.reshaped(formula.joined(batch, parts, depth, places))
    weights = w.reshaped(formula.joined(parts, features, depth))
    y = weights.op("MatMul", rows)
    y = y.reshaped(formula.joined(batch, formula.shape_of(w, 0, 1), cells))
    if b is not None:
        y = y + b.op("Unsqueeze", formula.constant([1, 2]))
    return [y.cast(at.output().dtype)]


def _gather_columns(
    at: Adjoint, x: Term, offset: Term, mask: Term | None, kernel: tuple[int, ...]
) -> Term:
    """Return the cells of `x` under the taps of `kernel` of `at`, moved by `offset`, times `mask`.

    Their shape is (batch · offset groups, channels, taps · places).
    """
    formula, parts = at.formula, at.formula.constant([at["offset_group"]])
    batch, cells = formula.shape_of(x, 0, 1), formula.shape_of(at.output(), 2)
    taps = formula.constant([int(np.prod(kernel))])
    groups = batch * parts
    split = offset.reshaped(formula.joined(groups, taps, formula.constant([_AXES]), cells))
    ones = formula.constant([1] * _AXES)
    # ONNX interleaves the offsets of a tap: down, then across.
    asked = formula.split("Split", split, ones, outputs=_AXES, axis=2)
    points = formula.joined(groups, taps * formula.size_of(at.output(), 2), formula.constant([1]))
    found = []
    for axis, moved in enumerate(asked):
        origin = _make_origin(at, axis, kernel)
        place = moved.op("Squeeze", formula.constant([2])) + origin.cast(x.dtype)
        found.append(make_linear_taps(place.reshaped(points), get_length(x, axis)))
    channels = formula.shape_of(x, 1, 2) / parts
    images = x.reshaped(formula.joined(groups, channels, formula.shape_of(x, 2)))
    columns = read_taps(images, combine_axes(images, found))
    if mask is not None:
        columns = columns * mask.reshaped(points)
    return columns.transposed((0, 2, 1))


def _make_origin(at: Adjoint, axis: int, kernel: tuple[int, ...]) -> Term:
    """Return where taps without offset lie on `axis` of the image, as (taps, h or 1, w or 1)."""
    formula = at.formula
    strides, dilations = find_steps(at, _AXES)
    pads = at["pads"] or (0,) * (2 * _AXES)
    numbers = make_range(formula.shape_of(at.output(), axis + 2, axis + 3))
    starts = numbers * formula.constant(strides[axis]) - formula.constant(pads[axis])
    behind = [1] * (_AXES - 1 - axis)
    row = starts.reshaped(formula.constant([-1, *behind]))
    tap = np.indices(kernel)[axis].reshape(-1, *[1] * _AXES) * dilations[axis]
    return row + formula.constant(tap)


@gradient("Col2Im")
def col2im(at: Adjoint) -> Gradients:
    # A convolution of each channel with one feature for each cell of a block.
    x, dy, formula = at.input(0), at.dy, at.formula
    block = at.input(2).value
    if block is None:
        raise at.refused_error("its block_shape is computed", "pass it as a constant")
    kernel = [int(size) for size in block]
    cells = formula.constant([math.prod(kernel)])
    # Each set of weights picks one cell of a block.
    unit = formula.filled(formula.joined(cells, cells), 0, dy.dtype).op("EyeLike")
    taps = unit.reshaped(formula.constant([math.prod(kernel), 1, *kernel]))
    one = formula.constant([1])
    planes = dy.reshaped(formula.joined(formula.size_of(dy, 0, 2), one, formula.shape_of(dy, 2)))
    window = {name: at[name] for name in ("dilations", "pads", "strides")}
    yield 0, planes.op("Conv", taps, **window).reshaped(formula.shape_of(x))
