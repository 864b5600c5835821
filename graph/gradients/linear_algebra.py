"""Gradients of matrix products, of Einsum, which generalizes them, and of determinants."""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence

from ..operators.linear_algebra import Equation, parse_equation
from ..values.tensor import Shape
from .elementwise import Gradients
from .formula import Formula, Term
from .registry import Adjoint, gradient

LETTERS = string.ascii_letters


def multiply(a: Term, b: Term, *, flip_a: bool = False, flip_b: bool = False) -> Term:
    """Return the product of matrices `a` and `b`, or stacks; `flip_a` and `flip_b` transpose."""
    if a.rank == b.rank == 2 and (flip_a or flip_b):
        return a.op("Gemm", b, transA=flip_a, transB=flip_b)
    return (_flip(a) if flip_a else a).op("MatMul", _flip(b) if flip_b else b)


def _flip(x: Term) -> Term:
    return x.transposed([*range(x.rank - 2), x.rank - 1, x.rank - 2])


@gradient("MatMul")
def matmul(at: Adjoint) -> Gradients:
    # A vector is a row on the left, a column on the right.
    a, b, dy = at.input(0), at.input(1), at.dy
    whole = at.output().spec.shape
    batch = () if whole is None else whole[: len(whole) - (a.rank > 1) - (b.rank > 1)]
    rows, columns = _to_matrix(a, 0), _to_matrix(b, 1)
    if a.rank == 1:
        dy = dy.op("Unsqueeze", at.formula.constant([-1 if b.rank == 1 else -2]))
    if b.rank == 1:
        dy = dy.op("Unsqueeze", at.formula.constant([-1]))
    if b.rank <= 2 < a.rank:  # the stack is one tall matrix: no product is added up afterwards
        if at.wants(0):
            yield 0, multiply(dy, columns, flip_b=True)
        if at.wants(1):
            tall = multiply(_flatten_stack(rows), _flatten_stack(dy), flip_a=True)
            yield 1, tall.reshaped(at.formula.shape_of(b))
        return
    if at.wants(0):
        yield 0, _to_operand(at, multiply(dy, columns, flip_b=True), a, rows, batch)
    if at.wants(1):
        yield 1, _to_operand(at, multiply(rows, dy, flip_a=True), b, columns, batch)


def _to_matrix(x: Term, axis: int) -> Term:
    return x if x.rank > 1 else x.op("Unsqueeze", x.formula.constant([axis]))


def _flatten_stack(x: Term) -> Term:
    if x.rank == 2:
        return x
    rows, width = x.formula.size_of(x, 0, x.rank - 1), x.formula.shape_of(x, x.rank - 1)
    return x.reshaped(x.formula.joined(rows, width))


def _to_operand(at: Adjoint, term: Term, operand: Term, matrix: Term, batch: Shape) -> Term:
    """Return `term`, the gradient of `matrix` for each of `batch`, in the shape of `operand`."""
    sides = () if matrix.spec.shape is None else matrix.spec.shape[-2:]
    summed = at.summed(term, matrix, (*batch, *sides))
    return summed if matrix is operand else summed.reshaped(at.formula.shape_of(operand))


@gradient("Gemm")
def gemm(at: Adjoint) -> Gradients:
    a, b, dy = at.input(0), at.input(1), at.dy
    alpha, flip_a, flip_b = at["alpha"], at["transA"], at["transB"]
    if at.wants(0):
        if flip_a:
            yield 0, b.op("Gemm", dy, alpha=alpha, transA=flip_b, transB=True)
        else:
            yield 0, dy.op("Gemm", b, alpha=alpha, transB=not flip_b)
    if at.wants(1):
        if flip_b:
            yield 1, dy.op("Gemm", a, alpha=alpha, transA=True, transB=flip_a)
        else:
            yield 1, a.op("Gemm", dy, alpha=alpha, transA=not flip_a)
    if at.wants(2):
        yield 2, at.summed(dy * at["beta"], at.input(2))


@gradient("Einsum")
def einsum(at: Adjoint) -> Gradients:
    # The gradient of a factor is an Einsum of dY and the other factors.
    factors = [at.input(index) for index in range(len(at.inputs))]
    equation = parse_equation(at["equation"], [x.rank for x in factors])
    for index, x in enumerate(factors):
        if at.wants(index):
            others = [other for i, other in enumerate(factors) if i != index]
            yield index, _differentiate_factor(at, equation, index, x, others)


def _differentiate_factor(
    at: Adjoint, equation: Equation, index: int, x: Term, others: Sequence[Term]
) -> Term:
    """Return the gradient of `x`, factor `index` in the `equation` of `at`, from dy and `others`.

    It is repeated along axes that only the factor has, which were summed, and spread by a unit
    matrix along an axis named twice, which is a diagonal.
    """
    axes = equation.inputs[index]
    terms = [equation.output, *(of for i, of in enumerate(equation.inputs) if i != index)]
    factors = [at.dy, *others]
    fresh = itertools.count(1 + max((*itertools.chain(*terms, axes), 0)))
    target: list[int] = []
    for place, axis in enumerate(axes):
        if axis in target:
            twin = next(fresh)
            terms.append((axis, twin))
            factors.append(_make_unit_matrix(at.formula, x, place))
            axis = twin
        target.append(axis)
    reached = set(itertools.chain(*terms))
    kept = [axis for axis in target if axis in reached]
    text = ",".join(map(_write_letters, terms)) + "->" + _write_letters(kept)
    made = at.formula.op("Einsum", *factors, equation=text)
    lost = [place for place, axis in enumerate(target) if axis not in reached]
    if lost:
        made = made.op("Unsqueeze", at.formula.constant(lost))
    return _fit(made, x)


def _fit(made: Term, x: Term) -> Term:
    """Return `made` summed along axes where `x` has length 1, and repeated along those it lacks."""
    formula, wide, narrow = x.formula, made.spec.shape, x.spec.shape
    if wide is not None and wide == narrow:
        return made
    if wide is not None and narrow is not None:
        ones = [i for i, (a, b) in enumerate(zip(wide, narrow, strict=True)) if b == 1 != a]
        return made.sum(ones).expanded(formula.shape_of(x))
    return made.expanded(formula.shape_of(x))


def _write_letters(axes: Sequence[int]) -> str:
    return "".join(LETTERS[axis] for axis in axes)


def _make_unit_matrix(formula: Formula, x: Term, axis: int) -> Term:
    length = formula.shape_of(x, axis, axis + 1)
    square = formula.joined(length, length)
    return formula.filled(square, 0, x.dtype).op("EyeLike")


def _to_matrices(numbers: Term) -> Term:
    return numbers.op("Unsqueeze", numbers.formula.constant([-2, -1]))


@gradient("Det")
def det(at: Adjoint) -> Gradients:
    # dx = dy · C, also for singular matrices.
    yield 0, _to_matrices(at.dy) * at.input(0).op("Cofactors")


@gradient("Cofactors")
def cofactors(at: Adjoint) -> Gradients:
    # dx = (Σ dY·C · C - C·dYᵀ·C) / det X, since C is det X · X⁻ᵀ; X must be invertible.
    x, made, dy = at.input(0), at.output(), at.dy
    turned = dy.transposed([*range(x.rank - 2), x.rank - 1, x.rank - 2])
    both = made.op("MatMul", turned).op("MatMul", made)
    yield 0, (made * (dy * made).sum([-2, -1]) - both) / _to_matrices(x.op("Det"))
