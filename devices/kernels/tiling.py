"""Broadcast operands, traversed together in blocks that fit into cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeAlias

from ...graph.values.tensor import Array

Dims: TypeAlias = tuple[int, ...]
Index: TypeAlias = tuple[int | slice, ...]


class Tiling:
    """Blocks of a tensor, each a run of its elements, and of the operands broadcast to it.

    Axes along which all operands are broadcast alike are merged. The innermost axes that fit into
    a block are whole in each, and one is divided, into parts of nearly equal length: no block is
    shorter than a quarter of `size`, unless all of the tensor is.

    Parameters
    ----------
    operands : sequence of sequence of int
        Shapes that broadcast to it.
    size : int
        Most elements of a block.

    Attributes
    ----------
    dims : tuple of int
        The merged axes.
    operands : list of tuple of int
        Those of each operand: 1 where it is broadcast.
    """

    def __init__(self, shape: Sequence[int], operands: Sequence[Sequence[int]], size: int) -> None:
        self.dims, self.operands = _merge(shape, operands)
        self._axis, inner = len(self.dims) - 1, 1
        while self._axis > 0 and inner * self.dims[self._axis] <= size:
            inner *= self.dims[self._axis]
            self._axis -= 1
        self._count = -(-self.dims[self._axis] // max(size // max(inner, 1), 1))

    def __iter__(self) -> Iterator[Index]:
        """Yield the blocks, in the order of the tensor's elements."""
        for outer in product(*map(range, self.dims[: self._axis])):
            for index in range(self._count):
                yield (*outer, self._part(index))

    @property
    def longest(self) -> Index:
        """The longest block, or one of them; of a tensor without elements an empty one."""
        # Ends are rounded down, so that no part is longer than the last.
        part = self._part(self._count - 1) if self._count else slice(0, 0)
        return (*(0,) * self._axis, part)

    def _part(self, index: int) -> slice:
        length = self.dims[self._axis]
        return slice(length * index // self._count, length * (index + 1) // self._count)

    def shape_at(self, index: Index, dims: Dims) -> Dims:
        if _is_scalar(dims):
            return ()
        part = index[self._axis]
        assert isinstance(part, slice)
        length = part.stop - part.start if dims[self._axis] != 1 else 1
        return length, *dims[self._axis + 1 :]

    def part(self, array: Array, index: Index, dims: Dims) -> Array:
        if _is_scalar(dims):
            return array.reshape(())
        whole = slice(None)
        place = tuple(
            one if length != 1 else whole if isinstance(one, slice) else 0
            for one, length in zip(index, dims, strict=False)
        )
        return array.reshape(dims)[place]


def _merge(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> tuple[Dims, list[Dims]]:
    padded = [(*(1,) * (len(shape) - len(one)), *one) for one in operands]
    dims: list[int] = []
    found: list[list[int]] = [[] for _ in operands]
    last: list[bool] = []
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        here = [one[axis] != 1 for one in padded]
        if not dims or here != last:
            dims.append(1)
            for one in found:
                one.append(1)
        dims[-1] *= length
        for one, is_full in zip(found, here, strict=True):
            one[-1] *= length if is_full else 1
        last = here
    if not dims:
        return (1,), [(1,) for _ in operands]
    return tuple(dims), [tuple(one) for one in found]


def _is_scalar(dims: Dims) -> bool:
    return all(length == 1 for length in dims)
