"""Definitions of cvm's operators on detected boxes.

A box is a row of integers: class, score, then left, top, right and bottom. A row with a class below
0 is empty.
"""

from __future__ import annotations

from typing import Any

from ....devices.formal.registry import at, definition, table
from ....graph.values.tensor import Array

CLASS, SCORE, CORNERS = 0, 1, 2
LARGEST_EXACT = (2**63 - 1) // 100
"""Larger areas are not multiplied by 100, since the definition is in integers of 64 bits."""

Box = list[int]


@definition("cvm.get_valid_counts")
def get_valid_counts(x: Array, *, score_threshold: int, **_: Any) -> tuple[Array, Array]:
    """Return how many boxes of each batch of `x` score above `score_threshold`, and these boxes.

    The remaining rows of the second array are -1.
    """
    batches, rows, width = x.shape
    kept = [
        [one for one in _get_rows(x, n, rows) if one[SCORE] > score_threshold]
        for n in range(batches)
    ]
    return table((batches,), lambda n: len(kept[n])), _fill_rows(kept, rows, width)


@definition("cvm.non_max_suppression")
def non_max_suppression(
    x: Array,
    valid_count: Array,
    *,
    iou_threshold: int,
    max_output_size: int,
    top_k: int,
    force_suppress: bool,
    **_: Any,
) -> Array:
    """Return the boxes of `x` by score, without those that overlap a better one too much.

    Too much is `iou_threshold` percent of their union. Only the first `valid_count` boxes of a
    batch count; the remaining rows are -1. Only boxes of one class are compared, unless
    `force_suppress`. Unless negative, `top_k` limits the candidates, and `max_output_size` the
    boxes that are kept.
    """
    batches, rows, width = x.shape
    kept: list[list[Box]] = []
    for n in range(batches):
        count = min(max(at(valid_count, n), 0), rows)
        ranked = sorted(_get_rows(x, n, count), key=lambda box: -box[SCORE])
        looked_at = ranked if top_k < 0 else ranked[:top_k]
        limit = count if max_output_size < 0 else max_output_size
        kept.append(_suppress(looked_at, limit, iou_threshold, force_suppress))
    return _fill_rows(kept, rows, width)


def _suppress(ranked: list[Box], limit: int, threshold: int, force: bool) -> list[Box]:
    kept: list[Box] = []
    for box in ranked:
        rivals = [one for one in kept if force or one[CLASS] == box[CLASS]]
        overlaps = any(compute_overlap_percent(one, box) >= threshold for one in rivals)
        if len(kept) < limit and box[CLASS] >= 0 and not overlaps:
            kept.append(box)
    return kept


def compute_overlap_percent(a: Box, b: Box) -> int:
    """Return the intersection of boxes `a` and `b` in percent of their union, rounded down."""
    both = _compute_area(a) + _compute_area(b)
    width = max(0, min(a[4], b[4]) - max(a[2], b[2]))
    height = max(0, min(a[5], b[5]) - max(a[3], b[3]))
    intersection = width * height
    union = both - intersection
    if both <= 0 or union <= 0:
        return 0
    if intersection > LARGEST_EXACT:
        return intersection // (union // 100)
    return 100 * intersection // union


def _compute_area(box: Box) -> int:
    left, top, right, bottom = box[CORNERS:]
    return (right - left) * (bottom - top)


def _get_rows(x: Array, batch: int, count: int) -> list[Box]:
    width = x.shape[2]
    return [[at(x, batch, row, column) for column in range(width)] for row in range(count)]


def _fill_rows(boxes: list[list[Box]], rows: int, width: int) -> Array:
    def element(n: int, row: int, column: int) -> int:
        return boxes[n][row][column] if row < len(boxes[n]) else -1

    return table((len(boxes), rows, width), element)
