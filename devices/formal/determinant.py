"""Definitions of the determinant and of cofactors."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph.tensor import Array
from .ieee import exact_sum
from .indices import at, table
from .registry import definition


@definition("Det")
def determinant(x: Array) -> Array:
    """Y = the determinant of each matrix, by Laplace's expansion along the first row.

    Source: ONNX Det.
    """
    order = x.shape[-1]

    def element(*stack: int) -> float:
        return _expanded(_rows(x, range(order), range(order), *stack))

    return table(x.shape[:-2], element)


@definition("Cofactors")
def cofactors(x: Array) -> Array:
    """y[…, i, j] = (-1)^(i + j) · the determinant without row i and column j."""
    order = x.shape[-1]

    def element(*index: int) -> float:
        *stack, row, column = index
        rows, columns = ([k for k in range(order) if k != left] for left in (row, column))
        return float((-1) ** (row + column) * _expanded(_rows(x, rows, columns, *stack)))

    return table(x.shape, element)


def _rows(x: Array, rows: Sequence[int], columns: Sequence[int], *stack: int) -> list[list[float]]:
    """Return some rows and columns of one of the matrices."""
    return [[at(x, *stack, i, j) for j in columns] for i in rows]


def _expanded(rows: list[list[float]]) -> float:
    if not rows:
        return 1.0
    first, *others = rows
    return float(
        exact_sum(
            (-1) ** j * value * _expanded([row[:j] + row[j + 1 :] for row in others])
            for j, value in enumerate(first)
        )
    )
