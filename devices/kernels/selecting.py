"""Kernels of ``(xp, inputs, outputs, attributes)`` that select elements by value, and count.

Each writes its results to the beginnings of its outputs, without gaps, then zeros; to
the last output the true shapes of the others, concatenated. That reads values back from a
device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.operators.selecting import check_overlap
from ...graph.values.tensor import Array, shorten_array
from .arguments import get_optional, index_at
from .registry import ArrayModule, Arrays, kernel


def _put(xp: ArrayModule, results: Sequence[Array], outputs: Arrays) -> None:
    *buffers, shapes = outputs
    for buffer, result in zip(buffers, results, strict=True):
        if result.shape != buffer.shape:
            buffer.fill(0)
        shorten_array(buffer, result.shape)[...] = result
    lengths = [length for result in results for length in result.shape]
    xp.copyto(shapes, xp.asarray(lengths, dtype=shapes.dtype))


_COUNTED = "the host has to know how much is kept"


@kernel("Bounded.NonZero", host=_COUNTED)
def non_zero(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    (x,) = inputs
    places = xp.flatnonzero(x)
    rows = xp.unravel_index(places, x.shape) if x.ndim else ()
    _put(xp, [xp.stack(rows) if rows else places[None][:0]], outputs)


@kernel("Bounded.Compress", host=_COUNTED)
def compress(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    # y = the slices of x along an axis with a true condition. Raises IndexError for a true
    # condition beyond x.
    x, condition = inputs
    axis = attributes["axis"]
    source, along = (x.reshape(-1), 0) if axis is None else (x, axis % x.ndim)
    places = xp.flatnonzero(condition)
    if places.size and int(places[-1]) >= source.shape[along]:
        length = source.shape[along]
        raise IndexError(f"condition {int(places[-1])} is true beyond the length {length}")
    _put(xp, [source[index_at(along, places)]], outputs)


@kernel("Bounded.Unique", host=_COUNTED)
def unique(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    # Write x's different values or slices, their first places, inverse, counts and true shapes.
    # They are ascending or in the order of appearance. Slices are compared element by element.
    (x,), axis = inputs, attributes["axis"]
    found = xp.unique(x, True, True, True, axis=axis)
    kept, first, inverse, counts = found
    inverse = inverse.reshape(-1)
    if not attributes["sorted"]:
        order = xp.argsort(first)
        place = xp.empty_like(order)
        place[order] = xp.arange(order.size)
        kept = xp.take(kept, order, 0 if axis is None else axis)
        first, inverse, counts = first[order], place[inverse], counts[order]
    _put(xp, [kept, first, inverse, counts], outputs)


@kernel("Bounded.NonMaxSuppression", host=_COUNTED)
def suppress(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    # y = (image, class, box) of the best boxes, without those that overlap a better one too much.
    # Of equal scores the lower box is the better; NaN is the worst score, and under any threshold.
    # Raises ShapeError for an invalid overlap.
    boxes, scores = inputs[:2]
    limit, overlap, least = _number(inputs, 2, 0), _number(inputs, 3, 0), get_optional(inputs, 4)
    check_overlap(overlap)
    rows = []
    for image in range(len(boxes)):
        corners = _find_corners(xp, boxes[image], attributes["center_point_box"])
        for label, found in enumerate(scores[image]):
            ranked = xp.argsort(-found, kind="stable")
            if least is not None:
                ranked = ranked[found[ranked] > least.reshape(())]
            rows += [
                (image, label, box) for box in _select_boxes(xp, corners, ranked, limit, overlap)
            ]
    _put(xp, [xp.asarray(rows, dtype="int64").reshape(-1, 3)], outputs)


def _number(inputs: Arrays, index: int, default: float) -> float:
    scalar = get_optional(inputs, index)
    return default if scalar is None else float(scalar.reshape(()))


def _find_corners(xp: ArrayModule, boxes: Array, by_centre: bool) -> Array:
    """Return (low, low, high, high) of `boxes` in rows of `xp`; x comes first `by_centre`."""
    first, second, third, fourth = boxes.T
    if by_centre:
        width, height = third / 2, fourth / 2
        edges = (first - width, second - height, first + width, second + height)
    else:
        low, high = xp.minimum(boxes[:, :2], boxes[:, 2:]), xp.maximum(boxes[:, :2], boxes[:, 2:])
        edges = (low[:, 0], low[:, 1], high[:, 0], high[:, 1])
    return xp.stack(edges)


def _select_boxes(
    xp: ArrayModule, corners: Array, ranked: Array, limit: float, overlap: float
) -> list[int]:
    """Return at most `limit` boxes of `ranked`, best first, by their `corners` in rows of `xp`.

    A box is left out if it shares more than `overlap` with a better one.
    """
    kept: list[int] = []
    while ranked.size and len(kept) < limit:
        best, ranked = ranked[:1], ranked[1:]
        kept.append(int(best[0]))
        far = ~(_compute_overlap(xp, corners[:, best], corners[:, ranked]) > overlap)
        ranked = ranked[far]
    return kept


def _compute_overlap(xp: ArrayModule, one: Array, others: Array) -> Array:
    """Return in `xp` the area that box `one` shares with `others`, relative to their union.

    It is -∞ if they share nothing.
    """
    low, high = xp.maximum(one[:2], others[:2]), xp.minimum(one[2:], others[2:])
    shared = (high[0] - low[0]) * (high[1] - low[1])
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, others)]
    union = areas[0] + areas[1] - shared
    meet = (low < high).all(0) & (shared > 0) & (areas[0] > 0) & (areas[1] > 0) & (union > 0)
    return xp.where(meet, shared / xp.where(meet, union, 1), -np.inf)
