"""Gradients of determinants: the cofactors."""

from __future__ import annotations

from .adjoint import Adjoint
from .elementwise import Gradients
from .formula import Term
from .registry import gradient


def _spread(numbers: Term) -> Term:
    """Return numbers, one for each matrix, as matrices of one element."""
    return numbers.op("Unsqueeze", numbers.formula.constant([-2, -1]))


@gradient("Det")
def det(at: Adjoint) -> Gradients:
    """DX = dy · C, of matrices without an inverse too."""
    yield 0, _spread(at.dy) * at.input(0).op("Cofactors")


@gradient("Cofactors")
def cofactors(at: Adjoint) -> Gradients:
    """DX = (Σ dY·C · C - C·dYᵀ·C) / det X, since C is det X · X⁻ᵀ; there must be an inverse."""
    x, made, dy = at.input(0), at.output(), at.dy
    turned = dy.transposed([*range(x.rank - 2), x.rank - 1, x.rank - 2])
    both = made.op("MatMul", turned).op("MatMul", made)
    yield 0, (made * (dy * made).sum([-2, -1]) - both) / _spread(x.op("Det"))
