"""Definitions, ``op(*inputs, **attributes)``, that take parts of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.values.tensor import Array, TensorSpec
from .registry import at, definition, table


@definition("Slice")
def slice_(
    data: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    taken = [list(range(length)) for length in data.shape]
    for i in range(starts.size):
        axis = i if axes is None else int(axes[i]) % data.ndim
        step = 1 if steps is None else int(steps[i])
        taken[axis] = _list_taken(data.shape[axis], int(starts[i]), int(ends[i]), step)

    def element(*index: int) -> Any:
        return at(data, *(places[i] for places, i in zip(taken, index, strict=True)))

    return table([len(places) for places in taken], element)


def _list_taken(length: int, start: int, end: int, step: int) -> list[int]:
    """Return the places from `start`, each `step` from the last, before `end`.

    Both ends are clamped to `length`.
    """
    start = start + length if start < 0 else start
    end = end + length if end < 0 else end
    if step > 0:
        place, end = min(max(start, 0), length), min(max(end, 0), length)
    else:
        place, end = min(max(start, 0), length - 1), min(max(end, -1), length - 1)
    places = []
    while place < end if step > 0 else place > end:
        places.append(place)
        place += step
    return places


@definition("Split")
def split(
    x: Array,
    sizes: Array | None = None,
    *,
    axis: int,
    num_outputs: int | None,
    outputs: Sequence[TensorSpec],
) -> tuple[Array, ...]:
    axis, n = axis % x.ndim, num_outputs or len(outputs)
    length = x.shape[axis]
    size = -(-length // n)
    ends = [min((i + 1) * size, length) for i in range(n)]
    if sizes is not None:
        ends = [sum(int(s) for s in sizes[: i + 1]) for i in range(n)]
    return tuple(_take_part(x, axis, *bounds) for bounds in zip([0, *ends[:-1]], ends, strict=True))


def _take_part(x: Array, axis: int, start: int, end: int) -> Array:
    def element(*index: int) -> Any:
        return at(x, *index[:axis], start + index[axis], *index[axis + 1 :])

    return table((*x.shape[:axis], end - start, *x.shape[axis + 1 :]), element)


@definition("Gather")
def gather(data: Array, indices: Array, *, axis: int) -> Array:
    # y[a…, i…, b…] = data[a…, indices[i…], b…].
    axis %= data.ndim
    end = axis + indices.ndim

    def element(*index: int) -> Any:
        return at(data, *index[:axis], at(indices, *index[axis:end]), *index[end:])

    return table((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]), element)


@definition("GatherElements")
def gather_elements(data: Array, indices: Array, *, axis: int) -> Array:
    # y[a…, i, b…] = data[a…, indices[a…, i, b…], b…].
    axis %= data.ndim

    def element(*index: int) -> Any:
        return at(data, *index[:axis], at(indices, *index), *index[axis + 1 :])

    return table(indices.shape, element)
