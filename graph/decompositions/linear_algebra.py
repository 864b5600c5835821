"""Matrix products as other products; Einsum as sums, transposes and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..operators.linear_algebra import parse_equation
from .rules import DecompositionBuilder, decomposition


@decomposition("Gemm", wide=False)
def gemm(builder: DecompositionBuilder, a: str, b: str, c: str = "") -> str | None:
    attributes = builder.attributes
    factors = {name: float(attributes[name]) for name in ("alpha", "beta")}
    if builder.spec(a).dtype.kind != "f" and set(factors.values()) != {1.0}:
        return None
    left = builder("Transpose", a, perm=(1, 0)) if attributes["transA"] else a
    right = builder("Transpose", b, perm=(1, 0)) if attributes["transB"] else b
    product = builder("MatMul", left, right)
    if factors["alpha"] != 1:
        product = builder("Mul", product, factors["alpha"])
    if not c or factors["beta"] == 0:
        return product
    return builder(
        "Add", product, c if factors["beta"] == 1 else builder("Mul", c, factors["beta"])
    )


@decomposition("MatMulInteger")
def matmul_integer(
    builder: DecompositionBuilder, a: str, b: str, a_zero: str = "", b_zero: str = ""
) -> str | None:
    factors = []
    for factor, zero, axis in ((a, a_zero, -1), (b, b_zero, 0)):
        wide = builder.cast(factor, "int32")
        if zero:
            aligned = builder.cast(zero, "int32")
            if axis and builder.spec(zero).rank == 1 and builder.shape(zero) != (1,):
                aligned = builder("Unsqueeze", aligned, (axis,))  # one for each row
            wide = builder("Sub", wide, aligned)
        factors.append(wide)
    return builder("MatMul", *factors)


class _Term(NamedTuple):
    """A tensor, and a number for each of its axes."""

    tensor: str
    axes: tuple[int, ...]


@decomposition("Einsum")
def einsum(builder: DecompositionBuilder, *operands: str) -> str | None:
    # Terms that name an axis twice, or broadcast it, stay.
    shapes = [builder.shape(name) for name in operands]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    equation = parse_equation(builder.attributes["equation"], [len(shape) for shape in known])
    lengths: dict[int, int] = {}
    for axes, shape in zip(equation.inputs, known, strict=True):
        alike = all(lengths.setdefault(a, n) == n for a, n in zip(axes, shape, strict=True))
        if not alike or len(set(axes)) < len(axes) or 0 in shape:
            return None
    left, *others = map(_Term, operands, equation.inputs)
    for place, right in enumerate(others, 1):
        # An axis is summed as soon as neither the output nor a later operand has it, since sums are
        # linear.
        later = {axis for axes in equation.inputs[place + 1 :] for axis in axes}
        left = _multiply(builder, left, right, {*equation.output, *later}, lengths)
    left = _sum_unneeded(builder, left, set(equation.output))
    return _reorder(builder, left, equation.output).tensor


def _multiply(
    builder: DecompositionBuilder,
    left: _Term,
    right: _Term,
    kept: set[int],
    lengths: dict[int, int],
) -> _Term:
    """Write `left` times `right`, summed over all axes that are not `kept`; axes have `lengths`."""
    # Before the product: summing axes that only one factor has makes it smaller.
    left = _sum_unneeded(builder, left, kept | {*right.axes})
    right = _sum_unneeded(builder, right, kept | {*left.axes})
    both = [axis for axis in left.axes if axis in right.axes]
    # Every axis is one of four: in both and kept, in both and summed, or in one of the two alone.
    # So this is a stack of products of matrices.
    batch = [axis for axis in both if axis in kept]
    summed = [axis for axis in both if axis not in kept]
    rows = [axis for axis in left.axes if axis not in both]
    columns = [axis for axis in right.axes if axis not in both]

    def count(axes: Sequence[int]) -> int:
        return math.prod(lengths[axis] for axis in axes)

    factors = []
    for term, groups in ((left, (batch, rows, summed)), (right, (batch, summed, columns))):
        turned = _reorder(builder, term, [axis for group in groups for axis in group])
        factors.append(builder("Reshape", turned.tensor, [count(group) for group in groups]))
    product = builder("MatMul", *factors)
    axes = (*batch, *rows, *columns)
    return _Term(builder("Reshape", product, [lengths[axis] for axis in axes]), axes)


def _sum_unneeded(builder: DecompositionBuilder, term: _Term, kept: set[int]) -> _Term:
    gone = [place for place, axis in enumerate(term.axes) if axis not in kept]
    if not gone:
        return term
    axes = tuple(axis for axis in term.axes if axis in kept)
    return _Term(builder("ReduceSum", term.tensor, gone, keepdims=False), axes)


def _reorder(builder: DecompositionBuilder, term: _Term, axes: Sequence[int]) -> _Term:
    if tuple(axes) == term.axes:
        return term
    order = [term.axes.index(axis) for axis in axes]
    return _Term(builder("Transpose", term.tensor, perm=order), tuple(axes))
