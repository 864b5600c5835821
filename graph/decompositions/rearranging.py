"""Decompositions of operators that only move elements."""

from __future__ import annotations

import numpy as np

from .rules import DecompositionBuilder, decomposition


@decomposition("DepthToSpace", wide=False)
def depth_to_space(builder: DecompositionBuilder, x: str) -> str | None:
    shape, size = builder.shape(x), builder.attributes["blocksize"]
    if shape is None or 0 in shape:
        return None
    n, c, h, w = shape
    if builder.attributes["mode"] == "DCR":
        split, order = (n, size, size, c // size**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, order = (n, c // size**2, size, size, h, w), (0, 1, 4, 2, 5, 3)
    turned = builder("Transpose", builder("Reshape", x, split), perm=order)
    return builder("Reshape", turned, (n, c // size**2, h * size, w * size))


@decomposition("SpaceToDepth", wide=False)
def space_to_depth(builder: DecompositionBuilder, x: str) -> str | None:
    shape, size = builder.shape(x), builder.attributes["blocksize"]
    if shape is None or 0 in shape:
        return None
    n, c, h, w = shape
    split = (n, c, h // size, size, w // size, size)
    order = (0, 3, 5, 1, 2, 4) if builder.attributes["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    turned = builder("Transpose", builder("Reshape", x, split), perm=order)
    return builder("Reshape", turned, (n, c * size**2, h // size, w // size))


@decomposition("Split", wide=False)
def split(builder: DecompositionBuilder, x: str, sizes: str = "") -> tuple[str, ...] | None:
    axis, end, found = builder.attributes["axis"], 0, []
    for output in builder.node.outputs:
        shape = builder.shape(output) if output else None
        if shape is None:
            return None
        begin, end = end, end + shape[axis]
        found.append(builder("Slice", x, (begin,), (end,), (axis,)))
    return tuple(found)


@decomposition("Pad", wide=False)
def pad(
    builder: DecompositionBuilder, x: str, pads: str, value: str = "", axes: str = ""
) -> str | None:
    shape, around = builder.shape(x), builder.value(pads)
    number = builder.value(value) if value else np.zeros((), builder.spec(x).dtype)
    if shape is None or around is None or number is None or axes or (around < 0).any():
        return None
    if builder.attributes["mode"] != "constant":
        return None
    lengths = list(shape)
    for axis in range(len(shape)):
        borders = []
        for count in (int(around[axis]), int(around[axis + len(shape)])):
            border = [*lengths[:axis], count, *lengths[axis + 1 :]]
            borders.append(np.full(border, number.reshape(()), number.dtype) if count else None)
        before, after = borders
        parts = [one for one in (before, x, after) if one is not None]
        if len(parts) > 1:
            x = builder("Concat", *parts, axis=axis)
            lengths[axis] += int(around[axis]) + int(around[axis + len(shape)])
    return x
