"""Definitions, ``op(*inputs, **attributes)``, that move, repeat and join elements."""

from __future__ import annotations

from typing import Any

from ...graph.values.tensor import Array
from .registry import at, broadcast_at, definition, table


@definition("Concat")
def concat(*parts: Array, axis: int) -> Array:
    # y[…, o + i, …] = part[…, i, …], where o is the length of the parts before.
    axis %= parts[0].ndim
    places = [(part, i) for part in parts for i in range(part.shape[axis])]
    shape = (*parts[0].shape[:axis], len(places), *parts[0].shape[axis + 1 :])

    def element(*index: int) -> Any:
        part, i = places[index[axis]]
        return at(part, *index[:axis], i, *index[axis + 1 :])

    return table(shape, element)


@definition("Expand")
def expand(x: Array, shape: Array) -> Array:
    # Axes of length 1 are repeated; those that the shape lacks are put in front.
    wanted = [int(length) for length in shape.flat]
    rank = max(len(wanted), x.ndim)
    pairs = zip(_prepend_ones(x.shape, rank), _prepend_ones(wanted, rank), strict=True)
    lengths = [b if a == 1 else a for a, b in pairs]
    return table(lengths, lambda *index: broadcast_at(x, index))


def _prepend_ones(shape: Any, rank: int) -> tuple[int, ...]:
    return (*(1 for _ in range(rank - len(shape))), *shape)


@definition("Transpose")
def transpose(x: Array, *, perm: tuple[int, ...] | None) -> Array:
    # Axis a of y is axis perm[a] of x.
    order = tuple(reversed(range(x.ndim))) if perm is None else perm

    def element(*index: int) -> Any:
        return at(x, *(index[order.index(axis)] for axis in range(x.ndim)))

    return table([x.shape[axis] for axis in order], element)


@definition("Tile")
def tile(x: Array, repeats: Array) -> Array:
    # y[i, …] = x[i mod length, …].
    shape = [length * int(n) for length, n in zip(x.shape, repeats.flat, strict=True)]

    def element(*index: int) -> Any:
        return at(x, *(i % length for i, length in zip(index, x.shape, strict=True)))

    return table(shape, element)


@definition("Pad")
def pad(
    data: Array,
    pads: Array,
    constant_value: Array | None = None,
    axes: Array | None = None,
    *,
    mode: str,
) -> Array:
    # Negative pads crop first; then the rest is continued to both sides. Source: ONNX Pad. The
    # order is plait's: ONNX does not say whether cropped cells count.
    listed = range(data.ndim) if axes is None else [int(axis) % data.ndim for axis in axes.flat]
    pairs = dict.fromkeys(range(data.ndim), (0, 0))
    for i, axis in enumerate(listed):
        pairs[axis] = (int(pads[i]), int(pads[i + len(listed)]))
    border = 0 if constant_value is None else constant_value.reshape(()).item()

    def element(*index: int) -> Any:
        place = []
        for axis, length in enumerate(data.shape):
            before, after = pairs[axis]
            first, end = max(-before, 0), length + min(after, 0)
            offset = _continue(index[axis] - max(before, 0), end - first, mode)
            if offset is None:
                return border
            place.append(first + offset)
        return at(data, *place)

    return table([data.shape[axis] + sum(pair) for axis, pair in pairs.items()], element)


def _continue(i: int, length: int, mode: str) -> int | None:
    if 0 <= i < length:
        return i
    if mode == "edge":
        return 0 if i < 0 else length - 1
    if mode == "wrap":
        return i % length
    if mode == "reflect":
        # There and back again, without repeating the first and the last cell.
        there_and_back: list[int] = [*range(length), *range(length - 2, 0, -1)]
        return there_and_back[i % len(there_and_back)]
    return None


@definition("Trilu")
def trilu(x: Array, k: Array | None = None, *, upper: bool) -> Array:
    diagonal = 0 if k is None else int(k.reshape(()))

    def element(*index: int) -> Any:
        above = index[-1] - index[-2] - diagonal
        return at(x, *index) if (above >= 0 if upper else above <= 0) else 0

    return table(x.shape, element)
