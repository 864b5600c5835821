"""Definitions, ``op(*inputs, **attributes)``, that read or write at indices in a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...graph.values.errors import ShapeError
from ...graph.values.tensor import Array
from .ieee import rank
from .registry import at, definition, indices, table

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": lambda old, new: max(old, new, key=rank),
    "min": lambda old, new: old if old != old else new if new != new else min(old, new),
}


@definition("GatherND")
def gather_nd(data: Array, places: Array, *, batch_dims: int) -> Array:
    # y[b…, i…, d…] = data[b…, places[b…, i…, :]…, d…].
    rows, depth = places.ndim - 1, places.shape[-1]

    def element(*index: int) -> Any:
        row = _read_row(places, index[:rows], data.shape[batch_dims:])
        return at(data, *index[:batch_dims], *row, *index[rows:])

    return table((*places.shape[:-1], *data.shape[batch_dims + depth :]), element)


@definition("ScatterND")
def scatter_nd(data: Array, places: Array, updates: Array, *, reduction: str) -> Array:
    # y = data, after y[places[i…, :]…, d…] took in updates[i…, d…], in order of the index.
    y, rows = table(data.shape, lambda *index: at(data, *index)), places.ndim - 1
    for index in indices(updates.shape):
        place = (*_read_row(places, index[:rows], data.shape), *index[rows:])
        y[place] = _COMBINE[reduction](y[place], at(updates, *index))
    return y


def _read_row(rows: Array, index: tuple[int, ...], shape: Sequence[int]) -> list[int]:
    row = [at(rows, *index, i) for i in range(rows.shape[-1])]
    return [_count_from_front(i, length) for i, length in zip(row, shape, strict=False)]


def _count_from_front(index: int, length: int) -> int:
    if not -length <= index < length:
        raise ShapeError(
            f"index {index} is outside an axis of length {length}",
            fix=f"use values in [{-length}, {length - 1}]",
        )
    return index % length


@definition("ScatterElements")
def scatter_elements(
    data: Array, places: Array, updates: Array, *, axis: int, reduction: str
) -> Array:
    # y = data, after y[a…, places[a…, i, b…], b…] took in updates[a…, i, b…], in that order.
    axis %= data.ndim
    y = table(data.shape, lambda *index: at(data, *index))
    for index in indices(updates.shape):
        along = _count_from_front(at(places, *index), data.shape[axis])
        place = (*index[:axis], along, *index[axis + 1 :])
        y[place] = _COMBINE[reduction](y[place], at(updates, *index))
    return y


@definition("TensorScatter")
def tensor_scatter(
    past_cache: Array, update: Array, write_indices: Array | None = None, *, axis: int, mode: str
) -> Array:
    # y = the cache, but y[b, …, start[b] + i, …] = update[b, …, i, …].
    axis %= past_cache.ndim
    length = past_cache.shape[axis]
    y = table(past_cache.shape, lambda *index: at(past_cache, *index))
    for index in indices(update.shape):
        start = 0 if write_indices is None else at(write_indices, index[0])
        along = start + index[axis]
        along = along % length if mode == "circular" else _check_written(along, length)
        y[(*index[:axis], along, *index[axis + 1 :])] = at(update, *index)
    return y


def _check_written(index: int, length: int) -> int:
    if not 0 <= index < length:
        raise ShapeError(
            f"step {index} is outside a cache of {length}",
            fix="use smaller write_indices, a longer cache, or mode='circular'",
        )
    return index


@definition("OneHot")
def one_hot(places: Array, depth: Array, values: Array, *, axis: int) -> Array:
    # y[a…, i, b…] = values[1] where i is places[a…, b…] (or that plus depth), else values[0].
    axis %= places.ndim + 1
    length = int(depth.reshape(()))

    def element(*index: int) -> Any:
        hot = int(at(places, *index[:axis], *index[axis + 1 :]))
        return at(values, int(index[axis] in (hot, hot + length)))

    return table((*places.shape[:axis], length, *places.shape[axis:]), element)


@definition("TopK")
def top_k(x: Array, k: Array, *, axis: int, largest: bool, sorted: bool) -> tuple[Array, Array]:
    # The first k of each line in falling or rising order, the lower index first among equals: they
    # are sorted even if the attribute is false.
    axis %= x.ndim
    shape = (*x.shape[:axis], int(k.reshape(())), *x.shape[axis + 1 :])

    def place(*index: int) -> int:
        line = [at(x, *index[:axis], i, *index[axis + 1 :]) for i in range(x.shape[axis])]
        order = sort_places(line, largest)
        return order[index[axis]]

    places = table(shape, place)
    values = table(shape, lambda *index: at(x, *index[:axis], places[index], *index[axis + 1 :]))
    return values, places


def sort_places(line: Sequence[Any], falling: bool) -> list[int]:
    return sorted(range(len(line)), key=lambda i: rank(line[i]), reverse=falling)
