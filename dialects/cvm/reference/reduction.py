"""Definitions of cvm's reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....devices.formal.registry import at, definition, indices, table
from ....graph.values.tensor import Array


@definition("cvm.sum")
def total(x: Array, *, axis: Sequence[int] | None, keepdims: bool, exclude: bool) -> Array:
    """Return Σ `x` over `axis`, or over the others with `exclude`; `keepdims` keeps these axes."""
    return _reduce(sum, x, axis, keepdims, exclude)


@definition("cvm.max")
def maximum(x: Array, *, axis: Sequence[int] | None, keepdims: bool, exclude: bool) -> Array:
    """Return the largest `x` over `axis`, or over others with `exclude`; `keepdims` keeps axes."""
    return _reduce(max, x, axis, keepdims, exclude)


def _reduce(
    function: Callable[[list[int]], int],
    x: Array,
    axis: Sequence[int] | None,
    keepdims: bool,
    exclude: bool,
) -> Array:
    reduced = _list_reduced_axes(x.ndim, axis, exclude)
    kept = [d for d in range(x.ndim) if d not in reduced]
    groups: dict[tuple[int, ...], list[int]] = {}
    for index in indices(x.shape):
        groups.setdefault(tuple(index[d] for d in kept), []).append(at(x, *index))
    if keepdims:
        shape = [1 if d in reduced else x.shape[d] for d in range(x.ndim)]
        return table(shape, lambda *i: function(groups[tuple(i[d] for d in kept)]))
    if not kept:  # a tensor has at least one axis here
        return table((1,), lambda _: function(groups[()]))
    return table([x.shape[d] for d in kept], lambda *i: function(groups[i]))


def _list_reduced_axes(rank: int, axis: Sequence[int] | None, exclude: bool) -> set[int]:
    if not axis:
        return set(range(rank))
    named = {d + rank if d < 0 else d for d in axis}
    return set(range(rank)) - named if exclude else named
