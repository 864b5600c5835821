"""Kernels that use indices: ``(xp, inputs, outputs, attributes[, scratch]) -> Step``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import Array, TensorSpec
from ..memory import ArenaPair, UndoLog
from .arguments import check_indices, get_optional, index_at
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order

Part: TypeAlias = tuple[Array, ...]
"""Indices of elements."""


@dataclass(slots=True, eq=False)
class PartialWrite:
    """A step that copies x to y, and then writes some elements of y.

    Where both are values of a variable, which alternates between two arenas, the arenas differ only
    in the elements that were written last, so that the rest need not be copied: the cost of a step
    does not depend on the length of a cache.

    Parameters
    ----------
    find : callable
        Returns the indices of these elements, on every call.
    write : callable
        Writes them, given their indices.

    Attributes
    ----------
    pair : ArenaPair or None
        That of the arenas of x and y, where these alternate.
    undo : UndoLog or None
        Where x is y.
    """

    _xp: ArrayModule
    _x: Array
    _y: Array
    _find: Callable[[], Part]
    _write: Callable[[Part], object]
    pair: ArenaPair | None = None
    undo: UndoLog | None = None

    def __call__(self) -> None:
        part, pair = self._find(), self.pair
        if self.undo is not None:
            # Copies, as below.
            part = tuple(index.copy() for index in part)
            self.undo.append((self._y, part, self._y[part]))
            self._write(part)
            return
        before = pair.part if pair and pair.is_followed else None
        if pair:
            pair.part = None  # in case of an error
        if before is None:
            self._xp.copyto(self._y, self._x)
        else:
            self._y[before] = self._x[before]
        self._write(part)
        if pair:
            # Copies: the memory of indices serves others after this step.
            pair.part = tuple(index.copy() for index in part)


def _declare_rows(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    shape = call.spec(1).static_shape[:-1]
    return [TensorSpec("int64", shape), TensorSpec("int64", shape)]


@kernel("GatherND", scratch=_declare_rows, binds=True)
def gather_nd(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y = x's elements or slices at rows of indices, each counted as one flat index. Raises
    # IndexError for an index outside x, on arrays that the host can read.
    (x, indices), (y,), (flat, part) = inputs, outputs, scratch
    if y.size == 0:
        return run_in_order(())
    batch, depth = attributes["batch_dims"], indices.shape[-1]
    lengths = x.shape[batch : batch + depth]
    # In numbers: for an x without elements, -1 has no definite length.
    source = x.reshape(math.prod(x.shape[: batch + depth]), math.prod(x.shape[batch + depth :]))
    target = y.reshape(flat.size, source.shape[1])
    starts = xp.arange(math.prod(x.shape[:batch])) * math.prod(lengths)
    by_batch = flat.reshape(starts.size, flat.size // starts.size)

    def step() -> None:
        flat.fill(0)
        for column, length in enumerate(lengths):
            check_indices(indices[..., column], length, batch + column)
            xp.remainder(indices[..., column], length, out=part)
            xp.multiply(flat, length, out=flat)
            xp.add(flat, part, out=flat)
        xp.add(by_batch, starts.reshape(-1, 1), out=by_batch)
        if isinstance(source, np.ndarray):
            source.take(flat.reshape(-1), 0, target, "wrap")
        else:
            xp.take(source, flat.reshape(-1), 0, target)

    return step


_UFUNCS = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def _scatter(xp: ArrayModule, data: Array, y: Array, key: Part, updates: Array, how: str) -> Step:
    """Return the step in `xp` that copies `data` to `y`, and puts `updates` at `key`.

    `how` is the reduction that combines them, or "none" to replace elements.
    """

    def write(key: Part) -> None:
        if how == "none":
            y[key] = updates
        else:
            # It counts an index again each time that it is there, unlike y[key] += updates.
            getattr(xp, _UFUNCS[how]).at(y, key, updates)

    return PartialWrite(xp, data, y, lambda: key, write)


@kernel("ScatterND", binds=True)
def scatter_nd(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    (data, indices, updates), (y,) = inputs, outputs
    key = tuple(indices[..., column] for column in range(indices.shape[-1]))
    return _scatter(xp, data, y, key, updates, attributes["reduction"])


@kernel("ScatterElements", binds=True)
def scatter_elements(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    (data, indices, updates), (y,) = inputs, outputs
    axis = attributes["axis"] % y.ndim
    key: Part = tuple(
        # Places along the other axes are those of the indices themselves.
        indices if i == axis else xp.arange(length).reshape((-1,) + (1,) * (y.ndim - 1 - i))
        for i, length in enumerate(indices.shape)
    )
    return _scatter(xp, data, y, key, updates, attributes["reduction"])


def _declare_cells(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    update = call.spec(1).static_shape
    axis = call.attributes["axis"] % len(update)
    return [TensorSpec("int64", (update[0], update[axis]))]


@kernel("TensorScatter", scratch=_declare_cells, binds=True)
def tensor_scatter(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y = the cache with an update written from each sample's index on. Raises IndexError for an
    # update that ends outside the cache, on arrays that the host can read.
    (cache, update), (y,), (places,) = inputs[:2], outputs, scratch
    axis = attributes["axis"] % y.ndim
    starts = get_optional(inputs, 2)
    length, steps = y.shape[axis], xp.arange(update.shape[axis])
    samples = xp.arange(y.shape[0]).reshape(-1, 1)
    before, target, source = (xp.moveaxis(x, axis, 1) for x in (cache, y, update))
    circular = attributes["mode"] == "circular"

    def find() -> Part:
        xp.copyto(places, steps)
        if starts is not None:
            xp.add(places, starts.reshape(-1, 1), out=places)
        if circular and length:
            xp.remainder(places, length, out=places)
        # numpy would count from the end; beyond the end it raises by itself.
        if isinstance(places, np.ndarray) and places.size and places.min() < 0:
            raise IndexError(f"write index {places.min()} is before the cache")
        return samples, places

    def write(part: Part) -> None:
        target[part] = source

    return PartialWrite(xp, before, target, find, write)


def _declare_one_hot_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return [TensorSpec("int64", call.spec(0).shape), TensorSpec("bool", outputs[0].shape)]


@kernel("OneHot", scratch=_declare_one_hot_scratch, binds=True)
def one_hot(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (indices, _, values), (y,), (places, hot) = inputs, outputs, scratch
    axis = attributes["axis"] % y.ndim
    depth = y.shape[axis]
    wide = places.reshape(*y.shape[:axis], 1, *y.shape[axis + 1 :])
    along = xp.arange(depth).reshape((-1,) + (1,) * (y.ndim - 1 - axis))
    set_hot = partial(xp.copyto, y, values[1:], where=hot)
    return run_in_order(
        (
            partial(xp.copyto, places, indices, casting="unsafe"),
            partial(xp.copyto, y, values[:1]),
            partial(xp.equal, wide, along, out=hot),
            set_hot,
            partial(xp.add, places, depth, out=places),  # now for indices that count from the end
            partial(xp.equal, wide, along, out=hot),
            set_hot,
        )
    )


_FEW = 8
"""TopK selects before it sorts where k is smaller than the axis by this factor."""


@kernel("TopK", binds=True)
def top_k(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    # Write the k first of a stable sort along an axis, and their places; NaN counts as largest.
    x, (values, indices) = inputs[0], outputs
    axis, largest = attributes["axis"] % x.ndim, attributes["largest"]
    k = next(y.shape[axis] for y in outputs if y is not None)
    # Selection takes linear time, but pays only where little of the axis is left to sort.
    few = isinstance(x, np.ndarray) and 0 < k * _FEW <= x.shape[axis]

    def step() -> None:
        places = _select(x, k, axis, largest) if few else None
        if places is None:
            order = _sort_places(xp, x, k, axis, largest)
        else:
            chosen = np.take_along_axis(x, places, axis)
            order = np.take_along_axis(places, _sort_places(np, chosen, k, axis, largest), axis)
        if values is not None:
            xp.copyto(values, xp.take_along_axis(x, order, axis))
        if indices is not None:
            xp.copyto(indices, order)

    return step


def _sort_places(xp: ArrayModule, x: Array, k: int, axis: int, largest: bool) -> Array:
    """Return the places of the `k` first of `x` along `axis`, in order; of equals, the lower first.

    Descending, with `largest`, is the ascending sort by `xp` of the mirrored axis, mirrored again.
    """
    mirror = index_at(axis, slice(None, None, -1))
    order = xp.argsort(x[mirror] if largest else x, axis=axis, kind="stable")
    if largest:
        order = x.shape[axis] - 1 - order[mirror]
    found: Array = order[index_at(axis, slice(k))]
    return found


def _select(x: Array, k: int, axis: int, largest: bool) -> Array | None:
    """Return the places of the `k` least elements of `x` along `axis`, or `largest`, ascending.

    None if these are not unique.
    """
    first = x.shape[axis] - k if largest else 0
    parted = np.argpartition(x, first if largest else k - 1, axis)
    places = parted[index_at(axis, slice(first, first + k))]
    places.sort(axis)
    chosen = np.take_along_axis(x, places, axis)
    if largest:
        beyond = x >= chosen.min(axis, keepdims=True)
    else:
        beyond = x <= chosen.max(axis, keepdims=True)
    # Exactly k elements are at least as good as the worst of the chosen: the choice was unique.
    return places if (np.count_nonzero(beyond, axis) == k).all() else None
