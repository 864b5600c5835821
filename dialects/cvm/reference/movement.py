"""Definitions of cvm's operators that move, repeat or choose elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....devices.formal.registry import at, definition, indices, table
from ....graph.values.tensor import Array


def _rearrange(x: Array, shape: Sequence[int]) -> Array:
    elements = iter([at(x, *index) for index in indices(x.shape)])
    return table(shape, lambda *_: next(elements))


@definition("cvm.repeat")
def repeat(x: Array, *, repeats: int, axis: int) -> Array:
    """Return y[…, i, …] = `x`[…, i ÷ `repeats`, …] on `axis`."""
    d = axis % x.ndim
    shape = [length * repeats if e == d else length for e, length in enumerate(x.shape)]
    return table(shape, lambda *i: at(x, *(j // repeats if e == d else j for e, j in enumerate(i))))


@definition("cvm.tile")
def tile(x: Array, *, reps: Sequence[int]) -> Array:
    """Return y[i, …] = `x`[i mod its length, …]; the shape and `reps` are aligned at their ends."""
    rank = max(x.ndim, len(reps))
    lengths = [1] * (rank - x.ndim) + list(x.shape)
    times = [1] * (rank - len(reps)) + list(reps)

    def element(*index: int) -> int:
        own = [i % length for i, length in zip(index, lengths, strict=True)]
        return int(at(x, *own[rank - x.ndim :]))

    return table([n * t for n, t in zip(lengths, times, strict=True)], element)


@definition("cvm.flatten")
def flatten(x: Array) -> Array:
    return _rearrange(x, (x.shape[0], math.prod(x.shape[1:])))


@definition("cvm.concatenate")
def concatenate(*inputs: Array, axis: int) -> Array:
    d = axis % inputs[0].ndim
    source = [(x, i) for x in inputs for i in range(x.shape[d])]
    shape = list(inputs[0].shape)
    shape[d] = len(source)

    def element(*index: int) -> int:
        x, i = source[index[d]]
        return int(at(x, *index[:d], i, *index[d + 1 :]))

    return table(shape, element)


@definition("cvm.expand_dims")
def expand_dims(x: Array, *, axis: int, num_newaxis: int) -> Array:
    """Return `x` with `num_newaxis` axes of length 1 before `axis`, or at the end for -1."""
    d = axis + x.ndim + 1 if axis < 0 else axis
    return _rearrange(x, (*x.shape[:d], *[1] * num_newaxis, *x.shape[d:]))


@definition("cvm.reshape")
def reshape(x: Array, *, shape: Sequence[int]) -> Array:
    """Return `x` in row-major order under another `shape`.

    0 copies a length, -1 infers it, -2 copies all remaining lengths, -3 merges two, -4 splits one
    into the two following numbers.
    """
    lengths = list(x.shape)
    made: list[int] = []
    wanted = list(shape)
    while wanted:
        code = wanted.pop(0)
        if code == -2:
            made += lengths
            lengths = []
        elif code == -3:
            made.append(lengths.pop(0) * lengths.pop(0))
        elif code == -4:
            whole, first, second = lengths.pop(0), wanted.pop(0), wanted.pop(0)
            made += [whole // second if first == -1 else first]
            made += [whole // first if second == -1 else second]
        else:
            length = lengths.pop(0) if lengths else 1
            made.append(length if code == 0 else code)
    known = math.prod(length for length in made if length != -1)
    return _rearrange(x, [x.size // known if length == -1 else length for length in made])


@definition("cvm.squeeze")
def squeeze(x: Array, *, axis: Sequence[int] | None) -> Array:
    """Return `x` without the axes in `axis`, of length 1; by default without all such axes."""
    named = {d % x.ndim for d in axis or ()} or {d for d in range(x.ndim) if x.shape[d] == 1}
    return _rearrange(x, [n for d, n in enumerate(x.shape) if d not in named] or [1])


@definition("cvm.transpose")
def transpose(x: Array, *, axes: Sequence[int] | None) -> Array:
    order = [d % x.ndim for d in axes or ()] or list(range(x.ndim))[::-1]
    return table(
        [x.shape[d] for d in order], lambda *i: at(x, *(i[order.index(d)] for d in range(x.ndim)))
    )


@definition("cvm.strided_slice")
def strided_slice(
    x: Array, *, begin: Sequence[int], end: Sequence[int], stride: Sequence[int]
) -> Array:
    """Return y[i, …] = `x`[`begin` + i · `stride`, …], as long as that is before `end`.

    A negative begin or end counts from the back, once; then both are clamped to the axis.
    """
    chosen = []
    for d, length in enumerate(x.shape):
        step = stride[d] if d < len(stride) else 1
        low, high = (0, length) if step > 0 else (-1, length - 1)
        ends = (begin[d] if d < len(begin) else 0, end[d] if d < len(end) else length)
        first, last = (min(max(e + length if e < 0 else e, low), high) for e in ends)
        chosen.append(list(range(first, last, step)))
    return table(
        [len(places) for places in chosen],
        lambda *i: at(x, *(chosen[d][j] for d, j in enumerate(i))),
    )


@definition("cvm.slice_like")
def slice_like(x: Array, like: Array, *, axis: Sequence[int] | None, **_: Any) -> Array:
    """Return the beginning of `x`, with the lengths of `like` along `axis`, by default all axes."""
    named = {d % x.ndim for d in axis or ()} or set(range(x.ndim))
    shape = [like.shape[d] if d in named else n for d, n in enumerate(x.shape)]
    return table(shape, lambda *i: at(x, *i))


def _clamp(index: int, length: int) -> int:
    return min(max(index, 0), length - 1)


@definition("cvm.take")
def take(x: Array, places: Array, *, axis: int | None, **_: Any) -> Array:
    if axis is None:
        elements = [at(x, *index) for index in indices(x.shape)]
        return table(places.shape, lambda *i: elements[_clamp(at(places, *i), x.size)])
    d = axis % x.ndim
    after = d + places.ndim

    def element(*index: int) -> int:
        place = _clamp(at(places, *index[d:after]), x.shape[d])
        return int(at(x, *index[:d], place, *index[after:]))

    return table((*x.shape[:d], *places.shape, *x.shape[d + 1 :]), element)


@definition("cvm.lut")
def lut(places: Array, values: Array, **_: Any) -> Array:
    """Return y[i] = `values`[`places`[i]]; places are clamped to the table."""
    elements = [at(values, *index) for index in indices(values.shape)]
    return table(places.shape, lambda *i: elements[_clamp(at(places, *i), len(elements))])


@definition("cvm.where")
def where(condition: Array, x: Array, y: Array) -> Array:
    """Return z[i] = `x`[i] where `condition` is not 0, else `y`[i].

    A condition of one axis, unless x has only one itself, is about whole rows.
    """

    def element(*index: int) -> int:
        chosen = at(condition, *index[: condition.ndim]) != 0
        return int(at(x, *index) if chosen else at(y, *index))

    return table(x.shape, element)
