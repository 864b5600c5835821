"""Definitions of linear algebra: ``op(*inputs, **attributes)``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from ...graph.values.tensor import Array
from .ieee import sum_exactly
from .registry import at, broadcast_at, definition, indices, table


@definition("MatMul")
def matmul(a: Array, b: Array) -> Array:
    # y[…, i, j] = Σₖ a[…, i, k]·b[…, k, j]; a vector is a row on the left, a column on the right.
    # Source: ONNX MatMul, which is numpy's.
    left = a.reshape(1, -1) if a.ndim == 1 else a
    right = b.reshape(-1, 1) if b.ndim == 1 else b
    batch = _broadcast(left.shape[:-2], right.shape[:-2])

    def element(*index: int) -> Any:
        *stack, i, j = index
        return sum_exactly(
            broadcast_at(left, (*stack, i, k)) * broadcast_at(right, (*stack, k, j))
            for k in range(left.shape[-1])
        )

    y = table((*batch, left.shape[-2], right.shape[-1]), element)
    rows = () if a.ndim == 1 else left.shape[-2:-1]
    columns = () if b.ndim == 1 else right.shape[-1:]
    return y.reshape((*batch, *rows, *columns))


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    long, other = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (a, b))
    return tuple(n if m == 1 else m for m, n in zip(long, other, strict=True))


@definition("Gemm")
def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float,
    beta: float,
    transA: bool,  # noqa: N803 - ONNX's names
    transB: bool,  # noqa: N803
) -> Array:
    # y = alpha·A'·B' + beta·C, of integers rounded toward zero. As in ONNX's reference
    # implementation, a beta of 0 leaves C out, with its NaN and infinities.
    rows, inner = a.shape[::-1] if transA else a.shape
    columns = b.shape[0] if transB else b.shape[1]

    def element(i: int, j: int) -> Any:
        product = sum_exactly(
            (at(a, k, i) if transA else at(a, i, k)) * (at(b, j, k) if transB else at(b, k, j))
            for k in range(inner)
        )
        added = 0 if c is None or beta == 0 else broadcast_at(c, (i, j))
        if a.dtype.kind in "iu":
            return math.trunc(Fraction(alpha) * product + Fraction(beta) * added)
        return alpha * product + beta * added

    return table((rows, columns), element)


@definition("Einsum")
def einsum(*arrays: Array, equation: str) -> Array:
    """Return the sum, over letters that the output of `equation` lacks, of products of `arrays`.

    A letter's axis of length 1 is repeated.
    """
    left, _, _ = equation.replace(" ", "").partition("->")
    terms = [_name_axes(term, x.ndim) for term, x in zip(left.split(","), arrays, strict=True)]
    lengths: dict[str, int] = {}
    for term, x in zip(terms, arrays, strict=True):
        for name, length in zip(term, x.shape, strict=True):
            lengths[name] = length if lengths.get(name, 1) == 1 else lengths[name]
    output = _name_output(equation.replace(" ", ""), terms)
    summed = [name for name in lengths if name not in output]

    def element(*index: int) -> Any:
        return sum_exactly(
            _multiply_at(arrays, terms, dict(zip((*output, *summed), (*index, *rest), strict=True)))
            for rest in indices([lengths[name] for name in summed])
        )

    return table([lengths[name] for name in output], element)


def _multiply_at(arrays: Sequence[Array], terms: Sequence[list[str]], where: dict[str, int]) -> Any:
    return math.prod(
        broadcast_at(x, [where[name] for name in term])
        for x, term in zip(arrays, terms, strict=True)
    )


def _name_axes(term: str, rank: int) -> list[str]:
    """Return names of `rank` axes in `term`: letters, and numbers from the dots' last axis."""
    before, _, after = term.partition("...")
    width = rank - len(before) - len(after)
    return [*before, *(str(width - i) for i in range(width)), *after]


def _name_output(equation: str, terms: Sequence[list[str]]) -> list[str]:
    """Return the names of the output's axes in `equation`.

    Without an arrow, they are the names that occur once in `terms`.
    """
    dots = max((n for term in terms for n in term if n.isdigit()), key=int, default="0")
    width = int(dots)
    _, arrow, right = equation.partition("->")
    if arrow:
        letters = len(right.replace("...", ""))
        return _name_axes(right, letters + (width if "..." in right else 0))
    counts = Counter(name for term in terms for name in term if name.isalpha())
    numbers = [str(width - i) for i in range(width)]
    return [*numbers, *sorted(name for name, count in counts.items() if count == 1)]


@definition("Det")
def determinant(x: Array) -> Array:
    """Return the determinant of each matrix of `x`, by Laplace's expansion along the first row."""
    order = x.shape[-1]

    def element(*stack: int) -> float:
        return _expand(_read_rows(x, range(order), range(order), *stack))

    return table(x.shape[:-2], element)


@definition("Cofactors")
def cofactors(x: Array) -> Array:
    # y[…, i, j] = (-1)^(i + j) · the determinant without row i and column j.
    order = x.shape[-1]

    def element(*index: int) -> float:
        *stack, row, column = index
        rows, columns = ([k for k in range(order) if k != left] for left in (row, column))
        return float((-1) ** (row + column) * _expand(_read_rows(x, rows, columns, *stack)))

    return table(x.shape, element)


def _read_rows(
    x: Array, rows: Sequence[int], columns: Sequence[int], *stack: int
) -> list[list[float]]:
    return [[at(x, *stack, i, j) for j in columns] for i in rows]


def _expand(rows: list[list[float]]) -> float:
    if not rows:
        return 1.0
    first, *others = rows
    return float(
        sum_exactly(
            (-1) ** j * value * _expand([row[:j] + row[j + 1 :] for row in others])
            for j, value in enumerate(first)
        )
    )
