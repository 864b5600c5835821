"""The gradient of RoiAlign.

An average is a product with a matrix along each axis; RoiAlign itself makes them of images that
hold a 1 in one row, or column. Where it is also asked how places change what is read, or for the
largest sample, samples are read again one by one.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from .adjoint import Adjoint
from .elementwise import Gradients
from .formula import Term
from .movement import numbered
from .registry import gradient
from .sampling import LINEAR, SamplingTaps, gathered, inside, length_of, weighed, widened
from .via_decomposition import Inputs, through

_REGION = 4
"""Numbers that a region is given by: x1, y1, x2, y2."""


@gradient("RoiAlign")
def roi_align(at: Adjoint) -> Gradients:
    """Cells get their share of what was read."""
    if at["mode"] == "avg" and not at.wants(1):
        yield 0, _spread(at)
        return
    if not at["sampling_ratio"]:
        what = "its regions" if at.wants(1) else "the largest samples"
        raise at.refused_error(
            f"how many samples it takes depends on its regions, so no gradient flows to {what}",
            "set its sampling_ratio",
        )
    yield from through(at, partial(_read, at))


def _spread(at: Adjoint) -> Term:
    """Return the gradient of averages: of each region, added where its image is."""
    x, rois, owners, formula = at.input(0), widened(at.input(1)), at.input(2), at.formula
    down, across = (_matrix(at, rois, axis) for axis in range(2))  # (regions, cells, outputs)
    lines = widened(at.dy).op("MatMul", across.transposed((0, 2, 1)).op("Unsqueeze", _one(at)))
    batch, channels = formula.shape_of(x, 0, 1), formula.shape_of(x, 1, 2)
    height, width = length_of(x, 0), length_of(x, 1)
    rows = formula.size_of(down, 0, 1) * formula.shape_of(down, 2, 3)
    own = numbered(batch).op("Unsqueeze", _one(at)).equals(owners.cast("int64")).cast(down.dtype)
    own = own.op("Unsqueeze", formula.constant([1, 3]))  # (batch, 1, regions, 1)
    left = (down.transposed((1, 0, 2)) * own).reshaped(formula.joined(batch, height, rows))
    right = lines.transposed((0, 2, 1, 3)).reshaped(formula.joined(rows, channels * width))
    made = left.op("MatMul", right).reshaped(formula.joined(batch, height, channels, width))
    return made.transposed((0, 2, 1, 3))


def _one(at: Adjoint) -> Term:
    return at.formula.constant([1])


def _matrix(at: Adjoint, rois: Term, axis: int) -> Term:
    """Return how much each cell along an axis weighs in each output: (regions, cells, outputs).

    Along the other axis the images have one cell, and regions lie on it.
    """
    formula, length = at.formula, length_of(at.input(0), axis)
    unit = formula.filled(formula.joined(length, length), 0, rois.dtype).op("EyeLike")
    other = [3 - axis]  # of (batch, channels, h, w)
    images = unit.op("Unsqueeze", formula.constant(sorted([0, *other])))
    place = np.eye(_REGION)[[1 - axis, 3 - axis]].sum(0)
    end = np.eye(_REGION)[2 + axis] / (at["spatial_scale"] or 1.0)
    held = rois * formula.constant(place, rois.dtype) + formula.constant(end, rois.dtype)
    owners = formula.op("ConstantOfShape", formula.shape_of(rois, 0, 1), value=0, dtype="int64")
    names = ("coordinate_transformation_mode", "sampling_ratio", "spatial_scale")
    sizes = {"output_height": 1, "output_width": 1}
    sizes["output_width" if axis else "output_height"] = _size(at, axis)
    made = images.op("RoiAlign", held, owners, **{name: at[name] for name in names}, **sizes)
    return made.op("Squeeze", formula.constant(other))


def _size(at: Adjoint, axis: int) -> int:
    size: int = at["output_width" if axis else "output_height"]
    return size


def _read(at: Adjoint, inputs: Inputs) -> list[Term]:
    """Return the average, or the largest, of all samples."""
    x, rois, owners = inputs
    assert x is not None
    assert rois is not None
    assert owners is not None
    formula, images, ratio = at.formula, widened(x), at["sampling_ratio"]
    down, across = (_taps(at, widened(rois), axis, length_of(x, axis)) for axis in range(2))
    rows, columns = formula.constant([2, 4]), formula.constant([1, 3])
    cells = (down.cells * length_of(x, 1)).op("Unsqueeze", rows)
    cells = cells + across.cells.op("Unsqueeze", columns)
    weights = down.weights.op("Unsqueeze", rows) * across.weights.op("Unsqueeze", columns)
    count = formula.shape_of(rois, 0, 1)
    flat = formula.joined(count, formula.constant([-1, 1]))
    got = gathered(images, cells.reshaped(flat), owners.cast("int64"))
    got = got * weights.reshaped(flat).op("Unsqueeze", formula.constant([-1]))
    sizes = [_size(at, 0), ratio, _size(at, 1), ratio, 4]
    got = got.reshaped(formula.joined(count, formula.constant(sizes), formula.shape_of(x, 1, 2)))
    if at["mode"] == "avg":
        y = got.sum([2, 4, 5], keepdims=False) / ratio**2
    else:
        y = got.reduced("Max", [2, 4, 5], keepdims=False)
    return [y.transposed((0, 3, 1, 2)).cast(x.dtype)]


def _taps(at: Adjoint, rois: Term, axis: int, length: Term) -> SamplingTaps:
    """Return the cells of each sample along an axis: (regions, outputs · samples, 2)."""
    formula, half = at.formula, at["coordinate_transformation_mode"] == "half_pixel"
    ratio, size = at["sampling_ratio"], _size(at, axis)
    corners = rois * at["spatial_scale"] - half / 2
    x1, y1, x2, y2 = formula.split("Split", corners, formula.constant([1] * 4), outputs=4, axis=1)
    begin, end = (x1, x2) if axis else (y1, y2)
    extent = end - begin
    if not half:
        extent = extent.op("Max", formula.constant(1, extent.dtype))
    samples = np.arange(size)[:, None] + (np.arange(ratio) + 0.5) / ratio
    place = begin + extent / size * formula.constant(samples.reshape(-1), begin.dtype)
    near = (place < -1).op("Or", place > length.cast(place.dtype)).op("Not")
    held = place.op("Max", formula.constant(0, place.dtype)).op("Min", length.cast(place.dtype) - 1)
    column = formula.constant([-1])
    held, near = held.op("Unsqueeze", column), near.op("Unsqueeze", column)
    before = held.op("Floor")
    chosen, _ = inside(before + formula.constant([0, 1], held.dtype), length)
    return SamplingTaps(chosen, weighed(held - before, LINEAR).where(near))
