"""Nodes that read an image at computed places.

Where a step decides (the nearest cell, the edge of the image), places are drawn that floats hold
exactly, so that all devices must decide alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from single_node import AnyArray

from .drawing import (
    ANY,
    FINITE,
    FLOATS,
    INTEGERS,
    Draw,
    NodeCase,
    Strategy,
    choose,
    few,
    flag,
    i64,
    integer,
    ordinary,
    rng_of,
    shape,
    size_of,
    some_axes,
    tensor,
)

SUMS = (few, ordinary)
TRANSFORMATIONS = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners"),
    *("asymmetric", "tf_crop_and_resize"),
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
EXACT = {"coordinate_transformation_mode": "half_pixel", "antialias": False}
"""With scales of 1 and 2, weights are quarters: what integers are rounded from is exact."""

POLICIES = ("stretch", "not_larger", "not_smaller")
SCALES = (0.5, 1.0, 2.0, 1.5, 0.75, 0.3, 2.6)


def resize(draw: Draw) -> NodeCase:
    mode = choose(draw, ("nearest", "linear", "cubic"))
    of = shape(draw, 1, least=1)
    whole = mode == "linear" and integer(draw, 0, 3) == 0
    dtype = choose(draw, ANY if mode == "nearest" else INTEGERS if whole else FLOATS)
    attributes = _resizing(draw, mode)
    attributes.update(EXACT if whole else {})
    axes = some_axes(draw, len(of), least=1) if flag(draw) else None
    if axes is not None:
        attributes["axes"] = axes
    listed = [of[axis] for axis in (range(len(of)) if axes is None else axes)]
    crops = attributes["coordinate_transformation_mode"] == "tf_crop_and_resize"
    scales, sizes = _target(draw, listed, crops)
    if whole:
        scales, sizes = np.array([choose(draw, (1.0, 2.0)) for _ in listed], np.float32), None
    if sizes is not None:
        attributes["keep_aspect_ratio_policy"] = "stretch" if crops else choose(draw, POLICIES)
    x = tensor(draw, dtype, of, FINITE if mode == "nearest" else SUMS)
    terms = 0.0 if mode == "nearest" else 8 * size_of(x)
    ulps = 0 if mode == "nearest" else 16
    inputs = [x, _region(draw, len(listed)) if crops else None, scales, sizes]
    return NodeCase(inputs, attributes, constant={1, 2, 3}, ulps=ulps, terms=terms)


def _resizing(draw: Draw, mode: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {"mode": mode}
    attributes["coordinate_transformation_mode"] = choose(draw, TRANSFORMATIONS)
    if mode == "nearest":
        attributes["nearest_mode"] = choose(draw, NEAREST)
    else:
        attributes |= {"antialias": flag(draw), "exclude_outside": flag(draw)}
        attributes["cubic_coeff_a"] = choose(draw, (-0.75, -0.5))
    attributes["extrapolation_value"] = choose(draw, (0.0, 2.0))
    return attributes


def _target(
    draw: Draw, lengths: Sequence[int], crops: bool
) -> tuple[AnyArray | None, AnyArray | None]:
    """Draw scales or sizes that leave something."""
    if flag(draw):
        return None, i64([integer(draw, 1, 8) for _ in lengths])
    factors = [choose(draw, [s for s in SCALES if int(s * n) >= 1]) for n in lengths]
    return np.array(factors, np.float32), None


def _region(draw: Draw, rank: int) -> AnyArray:
    starts = rng_of(draw).integers(-1, 3, rank) / 4
    ends = rng_of(draw).integers(3, 6, rank) / 4
    return np.concatenate([starts, ends]).astype(np.float32)


def grid_sample(draw: Draw) -> NodeCase:
    rank, mode = integer(draw, 1, 3), choose(draw, ("nearest", "linear", "cubic"))
    whole = mode == "linear" and integer(draw, 0, 3) == 0
    exact = mode == "nearest" or whole
    spatial = [integer(draw, 1, 4) for _ in range(rank)]
    batch = integer(draw, 0, 2)
    dtype = choose(draw, INTEGERS if whole else ANY if exact else FLOATS)
    x = tensor(draw, dtype, (batch, integer(draw, 0, 2), *spatial), SUMS)
    outputs = [integer(draw, 0, 3) for _ in range(rank)]
    precise = choose(draw, ("float32", "float64"))
    grid = _grid(draw, (batch, *outputs, rank), exact=exact).astype(precise)
    attributes = {
        "mode": mode,
        "align_corners": flag(draw),
        "padding_mode": choose(draw, ("zeros", "border", "reflection")),
    }
    terms = 0.0 if exact else 64 * size_of(x)
    return NodeCase([x, grid], attributes, ulps=0 if exact else 16, terms=terms)


def _grid(draw: Draw, of: Sequence[int], exact: bool) -> AnyArray:
    rng = rng_of(draw)
    if exact or flag(draw):
        return np.asarray(rng.integers(-12, 13, tuple(of)) / 8)
    return np.asarray(rng.standard_normal(tuple(of)))


def affine_grid(draw: Draw) -> NodeCase:
    rank, batch = integer(draw, 2, 3), integer(draw, 0, 2)
    theta = tensor(draw, choose(draw, FLOATS), (batch, rank, rank + 1), SUMS)
    size = i64([batch, integer(draw, 1, 3), *(integer(draw, 0, 4) for _ in range(rank))])
    terms = (rank + 1) * size_of(theta)
    attributes = {"align_corners": flag(draw)}
    return NodeCase([theta, size], attributes, constant={1}, ulps=8, terms=terms)


def roi_align(draw: Draw) -> NodeCase:
    dtype, count = choose(draw, FLOATS), integer(draw, 0, 3)
    of = (integer(draw, 1, 2), integer(draw, 0, 2), integer(draw, 1, 4), integer(draw, 1, 5))
    x = tensor(draw, dtype, of, SUMS)
    rng = rng_of(draw)
    regions = np.sort(rng.integers(-8, 25, (count, 2, 2)) / 4, axis=1).reshape(count, 4)
    owners = rng.integers(0, of[0], count)
    attributes = {
        "coordinate_transformation_mode": choose(draw, ("half_pixel", "output_half_pixel")),
        "mode": choose(draw, ("avg", "max")),
        "output_height": choose(draw, (1, 2, 4)),
        "output_width": choose(draw, (1, 2, 4)),
        "sampling_ratio": choose(draw, (0, 0, 1, 2)),
        "spatial_scale": choose(draw, (0.25, 0.5, 1.0)),
    }
    inputs = [x, regions.astype(dtype), owners]
    return NodeCase(inputs, attributes, ulps=16, terms=size_of(x))


STRATEGIES: dict[str, Strategy] = {
    "Resize": resize,
    "GridSample": grid_sample,
    "AffineGrid": affine_grid,
    "RoiAlign": roi_align,
}
