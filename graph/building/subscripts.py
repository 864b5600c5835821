"""Indices and slices of tensors, as numpy has them, written in operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..values.dtypes import kind_of
from ..values.errors import OperatorError, PlaitError, ShapeError
from ..values.tensor import Dim

if TYPE_CHECKING:
    from .named_tensor import Tensor

_FIRST, _LAST = -(2**63), 2**63 - 1
"""Bounds of slices that leave nothing out, backward and forward."""


def index_tensor(x: Tensor, key: Any) -> Tensor:
    """Return ``x[key]``: a Slice, a Gather for each index, and an Unsqueeze.

    Raises ShapeError if there are more indices than dimensions, or one is out of range;
    OperatorError if an index is not an integer, slice, ellipsis, None or tensor of integers, or
    there are several arrays.
    """
    entries = _expand_ellipsis(x, list(key) if isinstance(key, tuple) else [key])
    kept = [one for one in entries if one is not None]
    known = x.spec.shape
    lengths: list[Dim | None] = [None] * len(kept) if known is None else [*known[: len(kept)]]
    _check_places(x, entries)
    made = _slice(x, {axis: one for axis, one in enumerate(kept) if isinstance(one, slice)})
    # From the last axis on: an index takes its axis away, or puts several in its place.
    for axis in reversed(range(len(kept))):
        if not isinstance(kept[axis], slice):
            made = _gather(made, kept[axis], axis, lengths[axis])
    added, place = [], 0
    for one in entries:
        if one is None:
            added.append(place)
        place += 1 if one is None or isinstance(one, slice) else _rank(x, one)
    return made.builder.op("Unsqueeze", made, added) if added else made


def _expand_ellipsis(x: Tensor, entries: list[Any]) -> list[Any]:
    """Return `entries` with the ellipsis replaced by whole axes of `x`; None adds an axis."""
    dots = [place for place, one in enumerate(entries) if one is Ellipsis]
    if len(dots) > 1:
        raise _index_error(x, "there are two ellipses", "leave one")
    rank, used = x.spec.rank, sum(one is not None and one is not Ellipsis for one in entries)
    if rank is not None and used > rank:
        raise ShapeError(
            f"{x!r}, {x.spec}, has {used} indices", at=x.builder.name, fix=f"give {rank} at most"
        )
    if not dots:
        return entries
    if rank is None and dots[0] < len(entries) - 1:
        raise _index_error(
            x, "how many axes an ellipsis stands for is not known", "leave it out, or put it last"
        )
    filled = [slice(None)] * ((rank or used) - used)
    return entries[: dots[0]] + filled + entries[dots[0] + 1 :]


def _check_places(x: Tensor, entries: Sequence[Any]) -> None:
    """Refuse arrays in `entries` that numpy would place differently: several, or separated ones."""
    places = [p for p, one in enumerate(entries) if not (one is None or isinstance(one, slice))]
    arrays = [p for p in places if _rank(x, entries[p])]
    if len(arrays) > 1:
        raise _index_error(
            x, "several arrays choose elements together", "use b.op('GatherND', x, indices)"
        )
    if arrays and places[-1] - places[0] >= len(places):
        raise _index_error(
            x, "between an array and an integer is a slice", "index twice: x[rows][:, :, 0]"
        )


def _rank(x: Tensor, index: Any) -> int:
    if _is_tensor(index):
        return len(index.shape)
    return int(np.ndim(index))


def _slice(x: Tensor, slices: dict[int, slice]) -> Tensor:
    rows = {axis: _to_bounds(x, axis, one) for axis, one in slices.items() if one != slice(None)}
    if not rows:
        return x
    starts, ends, steps = zip(*rows.values(), strict=True)
    paces = [] if steps == (1,) * len(steps) else [list(steps)]
    vectors = [_to_vector(x, bounds) for bounds in (starts, ends)]
    made: Tensor = x.builder.op("Slice", x, *vectors, list(rows), *paces)
    return made


def _to_bounds(x: Tensor, axis: int, given: slice) -> tuple[Any, Any, int]:
    """Return start, end and step of `given`, on `axis` of `x`, in the form of operator Slice."""
    step = 1 if given.step is None else _to_integer(x, given.step)
    if step == 0:
        raise _index_error(x, "a step is 0", "give a positive or negative step")
    bounds: list[Any] = [
        one if one is None or _is_tensor(one) else _to_integer(x, one)
        for one in (given.start, given.stop)
    ]
    shape = x.spec.shape
    length = None if shape is None else shape[axis]
    if isinstance(length, int) and not any(map(_is_tensor, bounds)):
        start, end, step = slice(bounds[0], bounds[1], step).indices(length)
        # Slice counts negative ends from the end, and clamps a start that Python accepts.
        if len(range(start, end, step)) == 0:
            return 0, 0, 1
        return start, end if end >= 0 else _FIRST, step
    defaults = (0, _LAST) if step > 0 else (_LAST, _FIRST)
    start, end = (d if b is None else b for b, d in zip(bounds, defaults, strict=True))
    return start, end, step


def _to_vector(x: Tensor, bounds: Sequence[Any]) -> Any:
    if not any(map(_is_tensor, bounds)):
        return np.asarray(bounds, np.int64)
    parts = [
        _check_index(x, one).astype("int64").reshape(1) if _is_tensor(one) else np.array([one])
        for one in bounds
    ]
    return parts[0] if len(parts) == 1 else x.builder.op("Concat", *parts, axis=0)


def _gather(x: Tensor, index: Any, axis: int, length: Dim | None) -> Tensor:
    if not _is_tensor(index):
        given = np.asarray(index)
        if given.size == 0 and given.dtype.kind == "f":
            given = given.astype(np.int64)  # an empty list
        _check_kind(x, given.dtype.kind)
        index = given.astype(np.int64)
        if isinstance(length, int) and not ((index >= -length) & (index < length)).all():
            raise ShapeError(
                f"{x!r}, {x.spec}, has no index {given} along axis {axis}",
                at=x.builder.name,
                fix=f"count from {-length} to {length - 1}",
            )
    else:
        _check_index(x, index)
    made: Tensor = x.builder.op("Gather", x, index, axis=axis)
    return made


def _check_index(x: Tensor, index: Tensor) -> Tensor:
    _check_kind(x, kind_of(index.dtype))
    return index if index.dtype in ("int32", "int64") else index.astype("int64")


def _check_kind(x: Tensor, kind: str) -> None:
    if kind == "b":
        raise _index_error(
            x,
            "a mask chooses as many elements as it has, which is known when it has run",
            "use x.compress(mask, axis=0) for rows, or Where to keep the shape",
        )
    if kind not in "iu":
        raise _index_error(x, "an index is not an integer", "use integers, slices, ..., or None")


def _to_integer(x: Tensor, bound: Any) -> int:
    try:
        return int(bound.__index__())
    except AttributeError:
        raise _index_error(
            x, f"{bound!r} is not a bound of a slice", "use integers, or tensors of one"
        ) from None


def _is_tensor(index: Any) -> bool:
    return isinstance(index, str) and hasattr(index, "builder")


def _index_error(x: Tensor, what: str, fix: str) -> PlaitError:
    return OperatorError(f"{what}, in an index of {x!r}", at=x.builder.name, fix=fix)
