"""The definition of the determinant."""

from __future__ import annotations

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
        rows = [[at(x, *stack, i, j) for j in range(order)] for i in range(order)]
        return _expanded(rows)

    return table(x.shape[:-2], element)


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
