"""What only moves elements, in others that do."""

from __future__ import annotations

import numpy as np

from .rules import Draft, expands


@expands("DepthToSpace", wide=False)
def depth_to_space(draft: Draft, x: str) -> str | None:
    """Reshape, Transpose, Reshape."""
    shape, size = draft.shape(x), draft.attributes["blocksize"]
    if shape is None or 0 in shape:
        return None
    n, c, h, w = shape
    if draft.attributes["mode"] == "DCR":
        split, order = (n, size, size, c // size**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, order = (n, c // size**2, size, size, h, w), (0, 1, 4, 2, 5, 3)
    turned = draft("Transpose", draft("Reshape", x, split), perm=order)
    return draft("Reshape", turned, (n, c // size**2, h * size, w * size))


@expands("SpaceToDepth", wide=False)
def space_to_depth(draft: Draft, x: str) -> str | None:
    """Reshape, Transpose, Reshape."""
    shape, size = draft.shape(x), draft.attributes["blocksize"]
    if shape is None or 0 in shape:
        return None
    n, c, h, w = shape
    split = (n, c, h // size, size, w // size, size)
    order = (0, 3, 5, 1, 2, 4) if draft.attributes["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    turned = draft("Transpose", draft("Reshape", x, split), perm=order)
    return draft("Reshape", turned, (n, c * size**2, h // size, w // size))


@expands("Split", wide=False)
def split(draft: Draft, x: str, sizes: str = "") -> tuple[str, ...] | None:
    """A Slice for each part."""
    axis, end, found = draft.attributes["axis"], 0, []
    for output in draft.node.outputs:
        shape = draft.shape(output) if output else None
        if shape is None:
            return None
        begin, end = end, end + shape[axis]
        found.append(draft("Slice", x, (begin,), (end,), (axis,)))
    return tuple(found)


@expands("Pad", wide=False)
def pad(draft: Draft, x: str, pads: str, value: str = "", axes: str = "") -> str | None:
    """Concat with constant borders, axis by axis."""
    shape, around = draft.shape(x), draft.value(pads)
    number = draft.value(value) if value else np.zeros((), draft.spec(x).dtype)
    if shape is None or around is None or number is None or axes or (around < 0).any():
        return None
    if draft.attributes["mode"] != "constant":
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
            x = draft("Concat", *parts, axis=axis)
            lengths[axis] += int(around[axis]) + int(around[axis + len(shape)])
    return x
