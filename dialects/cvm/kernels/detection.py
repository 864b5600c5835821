"""Exact kernels on boxes: filtering by score, and suppression of overlapping boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ....devices.kernels.registry import ArrayModule, Arrays, Step, kernel
from ....graph.core.attribute import Attributes
from ....graph.core.operator import Call, Specs
from ....graph.values.tensor import TensorSpec
from ..operators.detection import FIRST_TOO_LARGE

Integers: TypeAlias = NDArray[np.int64] | NDArray[np.object_]

_SAFE = 1 << 30
"""For coordinates below this, sums of areas fit in int64."""


def _list_counts_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    shape = call.spec(0).static_shape[:2]
    return [TensorSpec("bool", shape)] * 2


@kernel("cvm.get_valid_counts", scratch=_list_counts_scratch, binds=True)
def get_valid_counts(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (x,), (counts, y), (left_out, beyond) = inputs, outputs, scratch
    boxes, places = x.shape[1], xp.arange(x.shape[1])

    def step() -> None:
        xp.less_equal(x[:, :, 1], attributes["score_threshold"], out=left_out)
        order = xp.argsort(left_out, axis=1, kind="stable")
        total = boxes - left_out.sum(axis=1)
        xp.copyto(y, xp.take_along_axis(x, order[:, :, None], 1))
        xp.greater_equal(places, total[:, None], out=beyond)
        xp.copyto(y, -1, where=beyond[:, :, None])
        if counts is not None:
            xp.copyto(counts, total, casting="same_kind")

    return step


@kernel("cvm.non_max_suppression", binds=True, host="the host decides box by box")
def non_max_suppression(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    # The host decides box by box, so it must be able to read the arrays.
    (boxes, counts), (y,) = inputs, outputs

    def step() -> None:
        for sample, count, kept in zip(boxes, counts.tolist(), y, strict=True):
            chosen = _suppress(sample, min(max(count, 0), len(sample)), attributes)
            kept[: len(chosen)] = sample[chosen]
            kept[len(chosen) :] = -1

    return step


def _suppress(boxes: NDArray[np.int32], count: int, attributes: Attributes) -> list[int]:
    """Return which of the first `count` `boxes` the operator's `attributes` keep, best first."""
    top_k, most = attributes["top_k"], attributes["max_output_size"]
    order = np.argsort(-boxes[:count, 1].astype(np.int64), kind="stable")
    order = order[: top_k if top_k >= 0 else count]
    order = order[boxes[order, 0] >= 0]
    most = min(count, most) if most >= 0 else count
    corners = _extract_corners(boxes[order])
    left, kept = np.ones(len(order), bool), list[int]()
    for place, box in enumerate(order.tolist()):
        if len(kept) == most:
            break
        if not left[place]:
            continue
        kept.append(box)
        rivals = np.flatnonzero(left[place + 1 :]) + place + 1
        if not attributes["force_suppress"]:
            rivals = rivals[boxes[order[rivals], 0] == boxes[box, 0]]
        overlaps = _overlaps(corners[:, place], corners[:, rivals])
        left[rivals[overlaps >= attributes["iou_threshold"]]] = False
    return kept


def _extract_corners(boxes: NDArray[np.int32]) -> Integers:
    """Return (x1, y1, x2, y2) of `boxes`, as Python integers if areas may not fit in int64."""
    corners = boxes[:, 2:6].T.astype(np.int64)
    fits = not corners.size or max(corners.max(), -corners.min()) < _SAFE
    return corners if fits else corners.astype(object)


def _overlaps(box: Integers, others: Integers) -> Integers:
    """Return the overlap of `box` with each of `others` in percent of their union, rounded down."""
    sides = np.minimum(box[2:, None], others[2:]) - np.maximum(box[:2, None], others[:2])
    intersection = np.maximum(sides[0], 0) * np.maximum(sides[1], 0)
    areas = _compute_area(box) + _compute_area(others)
    union = areas - intersection
    large = intersection >= FIRST_TOO_LARGE
    part = np.where(large, intersection, intersection * 100)
    whole = np.where(large, union // 100, union)
    none = (areas <= 0) | (union <= 0)
    found: Integers = np.where(none, 0, part // np.where(none, 1, whole))
    return found


def _compute_area(corners: Integers) -> Integers:
    area: Integers = (corners[2] - corners[0]) * (corners[3] - corners[1])
    return area
