"""LightNet's operators for detection, written out in simpler ones.

Sources: TensorLight's kernels transform_bbox_SQD and detect_yolov3, after SqueezeDet
(https://arxiv.org/abs/1612.01051) and YOLOv3 (https://arxiv.org/abs/1804.02767).
"""

from __future__ import annotations

import numpy as np

from ...graph.core.parameters import INT_MIN
from .entries import fail
from .statement import Statement, register_rule

E = np.float32(2.718281828)
LEAST, MOST = np.float32(1e-9), np.float32(50)
"""Bounds of the exponential that scales an anchor."""


@register_rule(
    "transform_bboxSQD", "src_delta src_anchor", "width height img_width img_height x_shift y_shift"
)
def transform_bbox(op: Statement) -> None:
    """Write `op`, box corners: anchors (cx, cy, w, h) moved by deltas, in cells of the image."""
    delta, anchor = op.input("src_delta"), op.input("src_anchor")
    spec = op.spec(delta, 5)
    if spec != op.spec(anchor) or spec.static_shape[-1] != 4 or spec.dtype != "float32":
        fail(f"{spec} and {op.spec(anchor)} are not float32 boxes of four, alike", op.at)
    width, height = op.integer("width", 1), op.integer("height", 1)
    image = np.array([op.integer("img_width", 1), op.integer("img_height", 1)], np.float32)
    scale = (image / np.array([width, height])).astype(np.float32)
    shift = np.array([op.integer("x_shift", INT_MIN), op.integer("y_shift", INT_MIN)], np.float32)
    moves, grows = _halve(op, delta, -1)
    centres, sizes = _halve(op, anchor, -1)
    centre = op.write("Add", centres, op.write("Mul", moves, sizes))
    centre = op.write("Add", op.write("Mul", centre, scale), shift)
    small = op.write("Less", grows, np.float32(1))
    # Where its tangent is used, the exponential gets a clamped argument, so it cannot overflow.
    bounded = op.write("Exp", op.write("Min", grows, np.float32(1)))
    grown = op.write("Where", small, bounded, op.write("Mul", grows, E))
    size = op.write("Mul", op.write("Mul", sizes, grown), scale)
    half = op.write("Mul", size, np.float32(0.5))
    corners = (op.write(kind, centre, half) for kind in ("Sub", "Add"))
    below = (op.write("Min", corner, image - 1) for corner in corners)
    op.last("Concat", *(op.write("Max", corner, np.float32(0)) for corner in below), axis=-1)


@register_rule(
    "detect_yolov3",
    "feature anchors",
    "img_width img_height",
    outputs="box_centers box_sizes boxes confs probs",
)
def detect_yolov3(op: Statement) -> None:
    """Write `op`, boxes around cells of a grid with their confidence and class."""
    feature, anchors = op.input("feature"), op.input("anchors")
    batch, channels, rows, columns = op.spec(feature, 4).static_shape
    count, pair = op.spec(anchors, 2).static_shape
    classes = channels // max(count, 1) - 5
    if batch != 1 or pair != 2 or classes < 1 or channels % count:
        fail(f"{op.spec(feature)} is not what {count} anchors see in one image", op.at)
    op.reading.allot(2 * rows * columns * E.itemsize, op.at, computed=True)
    image = np.array([op.integer("img_width", 1), op.integer("img_height", 1)], np.float32)
    cell = (image / np.array([columns, rows], np.float32)).reshape(2, 1, 1)
    grid = np.empty((2, rows, columns), np.float32)
    grid[0], grid[1] = np.arange(columns), np.arange(rows)[:, None]
    shaped = op.write("Reshape", feature, np.array([1, count, 5 + classes, rows, columns]))
    ends = np.array([2, 2, 1, classes])
    moves, grows, sure, chosen = op.several("Split", 4, shaped, ends, axis=2)
    centre = op.write("Mul", op.write("Add", op.write("Sigmoid", moves), grid), cell)
    factor = op.write("Clip", op.write("Exp", grows), LEAST, MOST)
    per_anchor = op.write("Reshape", anchors, np.array([1, count, 2, 1, 1]))
    size = op.write("Mul", per_anchor, factor)
    half = op.write("Mul", size, np.float32(0.5))
    op.last("Identity", centre, output="box_centers")
    op.last("Identity", size, output="box_sizes")
    corners = (op.write(kind, centre, half) for kind in ("Sub", "Add"))
    op.last("Concat", *corners, axis=2, output="boxes")
    op.last("Sigmoid", sure, output="confs")
    op.last("Sigmoid", chosen, output="probs")


def _halve(op: Statement, tensor: str, axis: int) -> list[str]:
    return op.several("Split", 2, tensor, axis=axis, num_outputs=2)
