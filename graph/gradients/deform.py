"""The gradient of DeformConv: its columns are read again, then it is a product."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..operators.deform import BIAS, MASK, OFFSET
from .adjoint import Adjoint
from .convolution import kernel_of, steps
from .elementwise import Gradients
from .formula import Term
from .movement import numbered
from .registry import gradient
from .sampling import length_of, linear_taps, over_axes, read, widened
from .via_decomposition import Inputs, through

_AXES = 2


@gradient("DeformConv")
def deform_conv(at: Adjoint) -> Gradients:
    """Cells get what they gave to taps, offsets how what their tap reads changes."""
    yield from through(at, partial(_columns_times_weights, at))


def _columns_times_weights(at: Adjoint, inputs: Inputs) -> list[Term]:
    given = [None if one is None else widened(one) for one in (*inputs, None, None)]
    x, w, offset, b, mask = given[:2] + [given[i] for i in (OFFSET, BIAS, MASK)]
    assert x is not None
    assert w is not None
    assert offset is not None
    formula, group = at.formula, at["group"]
    columns = _columns(at, x, offset, mask, kernel_of(at, w))
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


def _columns(
    at: Adjoint, x: Term, offset: Term, mask: Term | None, kernel: tuple[int, ...]
) -> Term:
    """Return (batch · offset groups, channels of a group, taps · places)."""
    formula, parts = at.formula, at.formula.constant([at["offset_group"]])
    batch, cells = formula.shape_of(x, 0, 1), formula.shape_of(at.output(), 2)
    taps = formula.constant([int(np.prod(kernel))])
    groups = batch * parts
    split = offset.reshaped(formula.joined(groups, taps, formula.constant([_AXES]), cells))
    ones = formula.constant([1] * _AXES)
    asked = formula.split("Split", split, ones, outputs=_AXES, axis=2)
    points = formula.joined(groups, taps * formula.size_of(at.output(), 2), formula.constant([1]))
    found = []
    for axis, moved in enumerate(asked):
        origin = _origin(at, axis, kernel)
        place = moved.op("Squeeze", formula.constant([2])) + origin.cast(x.dtype)
        found.append(linear_taps(place.reshaped(points), length_of(x, axis)))
    channels = formula.shape_of(x, 1, 2) / parts
    images = x.reshaped(formula.joined(groups, channels, formula.shape_of(x, 2)))
    columns = read(images, over_axes(images, found))
    if mask is not None:
        columns = columns * mask.reshaped(points)
    return columns.transposed((0, 2, 1))


def _origin(at: Adjoint, axis: int, kernel: tuple[int, ...]) -> Term:
    """Return where taps read without an offset along an axis: (taps, h or 1, w or 1)."""
    formula = at.formula
    strides, dilations = steps(at, _AXES)
    pads = at["pads"] or (0,) * (2 * _AXES)
    numbers = numbered(formula.shape_of(at.output(), axis + 2, axis + 3))
    starts = numbers * formula.constant(strides[axis]) - formula.constant(pads[axis])
    behind = [1] * (_AXES - 1 - axis)
    row = starts.reshaped(formula.constant([-1, *behind]))
    tap = np.indices(kernel)[axis].reshape(-1, *[1] * _AXES) * dilations[axis]
    return row + formula.constant(tap)
