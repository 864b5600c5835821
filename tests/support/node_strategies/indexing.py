"""Nodes that read or write at the places that indices name, or choose what to keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from single_node import AnyArray

from .drawing import (
    ANY,
    FINITE,
    NUMBERS,
    REALS,
    Draw,
    NodeCase,
    Strategy,
    an_axis,
    choose,
    few,
    flag,
    i64,
    index_dtype,
    integer,
    masked,
    ordinary,
    rng_of,
    shape,
    tensor,
)


def places(draw: Draw, length: int, of: Sequence[int]) -> AnyArray:
    """Draw indices into an axis, counted from either end."""
    found = rng_of(draw).integers(-length, max(length, 1), tuple(of))
    return np.asarray(found).astype(index_dtype(draw))


def gather(draw: Draw) -> NodeCase:
    of = list(shape(draw, 1))
    axis = an_axis(draw, len(of))
    indices_shape = shape(draw, high=2, most=3)
    if 0 not in indices_shape:
        of[axis] = max(of[axis], 1)
    x = tensor(draw, choose(draw, ANY), of)
    return NodeCase([x, places(draw, of[axis], indices_shape)], {"axis": axis})


def part_of(draw: Draw, whole: Sequence[int], axis: int) -> list[int]:
    """Draw a shape no longer than the whole beside an axis."""
    part = [integer(draw, 0, length) for length in whole]
    part[axis] = integer(draw, 0, 4)
    return part


def gather_elements(draw: Draw) -> NodeCase:
    of = shape(draw, 1, least=1)
    axis = an_axis(draw, len(of))
    x = tensor(draw, choose(draw, ANY), of)
    return NodeCase([x, places(draw, of[axis], part_of(draw, of, axis))], {"axis": axis})


def rows(draw: Draw, lengths: Sequence[int], outer: Sequence[int]) -> AnyArray:
    """Draw rows of indices, one into each axis of those lengths."""
    columns = [rng_of(draw).integers(-n, n, tuple(outer)) for n in lengths]
    return np.stack(columns, axis=-1).astype(np.int64)


def gather_nd(draw: Draw) -> NodeCase:
    of = shape(draw, 1, least=1)
    batch = integer(draw, 0, len(of) - 1)
    depth = integer(draw, 1, len(of) - batch)
    outer = (*of[:batch], *shape(draw, high=2, most=3))
    indices = rows(draw, of[batch : batch + depth], outer)
    return NodeCase([tensor(draw, choose(draw, ANY), of), indices], {"batch_dims": batch})


REDUCTIONS = ("none", "add", "mul", "max", "min")


def _scattered(draw: Draw, data_shape: Sequence[int], shape_of_updates: Sequence[int]) -> Any:
    reduction = choose(draw, REDUCTIONS)
    dtype = choose(draw, REALS if reduction in ("max", "min") else ANY)
    palettes = (few,) if reduction == "mul" else FINITE
    data = tensor(draw, dtype, data_shape, palettes)
    updates = tensor(draw, dtype, shape_of_updates, palettes)
    terms = float(np.abs(data.astype(complex)).sum() + np.abs(updates.astype(complex)).sum())
    summed = reduction in ("add", "mul")
    return data, updates, reduction, {"ulps": 8 * summed, "terms": terms}


def _unique_rows(draw: Draw, of: Sequence[int], depth: int) -> AnyArray:
    total = int(np.prod(of[:depth]))
    chosen = rng_of(draw).permutation(total)[: integer(draw, 0, min(total, 5))]
    return np.stack(np.unravel_index(chosen, tuple(of[:depth])), -1).astype(np.int64)


def scatter_nd(draw: Draw) -> NodeCase:
    """Where the last to write would win, no place is named twice."""
    of = shape(draw, 1, high=3, least=1)
    depth = integer(draw, 1, len(of))
    outer = shape(draw, high=2, most=3)
    repeated, unique = rows(draw, of[:depth], outer), _unique_rows(draw, of, depth)
    indices = repeated if flag(draw) else unique
    data, updates, reduction, near = _scattered(draw, of, (*indices.shape[:-1], *of[depth:]))
    if reduction == "none" and indices is repeated:
        indices = unique
        updates = tensor(draw, data.dtype, (*indices.shape[:-1], *of[depth:]))
    return NodeCase([data, indices, updates], {"reduction": reduction}, **near)


def scatter_elements(draw: Draw) -> NodeCase:
    of = shape(draw, 1, high=3, least=1)
    axis = an_axis(draw, len(of))
    part = part_of(draw, of, axis)
    part[axis] = min(part[axis], of[axis])
    rng = rng_of(draw)
    order = rng.random(_with(part, axis, of[axis])).argsort(axis)
    unique = np.take(order, np.arange(part[axis]), axis)
    indices = np.where(rng.random(unique.shape) < 0.5, unique, unique - of[axis])
    data, updates, reduction, near = _scattered(draw, of, part)
    if reduction != "none" and flag(draw):
        indices = places(draw, of[axis], part)
    attributes = {"reduction": reduction, "axis": axis}
    return NodeCase([data, indices, updates], attributes, **near)


def _with(part: Sequence[int], axis: int, length: int) -> tuple[int, ...]:
    changed = list(part)
    changed[axis] = length
    return tuple(changed)


def tensor_scatter(draw: Draw) -> NodeCase:
    of = list(shape(draw, 2, least=1))
    axis = choose(draw, range(1, len(of)))
    dtype, mode = choose(draw, ANY), choose(draw, ("linear", "circular"))
    cache = tensor(draw, dtype, of)
    length = integer(draw, 1, of[axis])
    last = of[axis] - length if mode == "linear" else 2 * of[axis]
    starts = rng_of(draw).integers(0, last + 1, of[0]).astype(np.int64)
    update = tensor(draw, dtype, _with(of, axis, length))
    counted = axis - len(of) * flag(draw)
    return NodeCase(
        [cache, update, starts if flag(draw) else None], {"axis": counted, "mode": mode}
    )


def one_hot(draw: Draw) -> NodeCase:
    of, dtype = shape(draw, high=3), choose(draw, ("int32", "int64", "uint8", "float32"))
    indices = rng_of(draw).integers(0 if dtype == "uint8" else -7, 8, of)
    depth = np.array(integer(draw, 0, 5), choose(draw, ("int64", "int32", "float32")))
    values = tensor(draw, choose(draw, ANY), (2,))
    axis = an_axis(draw, len(of) + 1)
    depth = depth.reshape(1) if flag(draw) else depth
    return NodeCase([np.asarray(indices, dtype), depth, values], {"axis": axis}, constant={1})


def top_k(draw: Draw) -> NodeCase:
    x = tensor(draw, choose(draw, NUMBERS), shape(draw, 1), (*FINITE, masked))
    axis = an_axis(draw, x.ndim)
    k = i64([integer(draw, 0, x.shape[axis])])
    attributes = {"axis": axis, "largest": flag(draw), "sorted": flag(draw)}
    return NodeCase([x, k], attributes, n_outputs=2, constant={1})


def non_zero(draw: Draw) -> NodeCase:
    return NodeCase([tensor(draw, choose(draw, ANY), shape(draw))])


def compress(draw: Draw) -> NodeCase:
    x = tensor(draw, choose(draw, ANY), shape(draw, 1))
    axis = an_axis(draw, x.ndim) if flag(draw) else None
    length = integer(draw, 0, x.size if axis is None else x.shape[axis])
    return NodeCase([x, tensor(draw, "bool", (length,))], {"axis": axis})


def unique(draw: Draw) -> NodeCase:
    x = tensor(draw, choose(draw, REALS), shape(draw, 1), (few, ordinary))
    axis = an_axis(draw, x.ndim) if flag(draw) and x.size else None
    return NodeCase([x], {"axis": axis, "sorted": flag(draw)}, n_outputs=4)


def suppression(draw: Draw) -> NodeCase:
    """Boxes on a grid of halves, scores that are often equal."""
    rng = rng_of(draw)
    images, classes, boxes = draw(st.tuples(*[st.integers(0, 3)] * 2, st.integers(0, 6)))
    corners = rng.integers(-2, 5, (images, boxes, 4)) / 2
    by_centre = flag(draw)
    if by_centre:
        corners[..., 2:] = np.abs(corners[..., 2:])
    scores = rng.integers(0, 5, (images, classes, boxes)) / 4
    limit = i64([integer(draw, 0, 4)]) if integer(draw, 0, 4) else None
    bounds = [
        np.array([choose(draw, of)], np.float32) if flag(draw) else None
        for of in ((0.0, 0.25, 0.5, 1.0), (-1.0, 0.0, 0.5))
    ]
    return NodeCase(
        [corners.astype(np.float32), scores.astype(np.float32), limit, *bounds],
        {"center_point_box": by_centre},
        constant={2} if flag(draw) else (),
    )


STRATEGIES: dict[str, Strategy] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ScatterND": scatter_nd,
    "ScatterElements": scatter_elements,
    "TensorScatter": tensor_scatter,
    "OneHot": one_hot,
    "TopK": top_k,
    "NonZero": non_zero,
    "Compress": compress,
    "Unique": unique,
    "NonMaxSuppression": suppression,
}
