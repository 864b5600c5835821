"""Clipping of gradients, one by one or together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..building.builder import GraphBuilder
from ..building.named_tensor import Tensor
from ..gradients.formula import Formula
from ..values.errors import GraphError
from .parameters import check_above


def clip_by_value(builder: GraphBuilder, gradients: Sequence[str], limit: float) -> list[Tensor]:
    """Add nodes to `builder` that clip elements of `gradients` to ±`limit`; return the results.

    Raises
    ------
    GraphError
        If `limit` is not above 0.
    """
    check_above("the limit of gradients", limit)
    formula = Formula(builder, "clip/")
    made = []
    for gradient in map(formula.term, gradients):
        low, high = (formula.constant(bound, gradient.dtype) for bound in (-limit, limit))
        made.append(gradient.op("Clip", low, high).tensor)
    return made


def clip_by_norm(builder: GraphBuilder, gradients: Sequence[str], longest: float) -> list[Tensor]:
    """Add nodes to `builder` that shorten each of `gradients` above `longest`; return the results.

    Each is multiplied by ``longest / max(norm, longest)``, with the norm over all its elements.

    Raises
    ------
    GraphError
        If `longest` is not above 0.
    """
    check_above("the longest norm", longest)
    formula = Formula(builder, "clip/")
    made = []
    for gradient in map(formula.term, gradients):
        wide = np.result_type(np.float32, gradient.dtype)
        bound = formula.constant(longest, wide)
        norm = gradient.cast(wide).op("ReduceSumSquare", keepdims=False).op("Sqrt")
        made.append((gradient * (bound / norm.op("Max", bound)).cast(gradient.dtype)).tensor)
    return made


def clip_by_global_norm(
    builder: GraphBuilder, gradients: Sequence[str], longest: float
) -> list[Tensor]:
    """Add nodes to `builder` that scale `gradients` down together, and return the scaled ones.

    All are multiplied by ``longest / max(norm, longest)``, the norm being that of all elements of
    all gradients. Source: Pascanu, Mikolov and Bengio (2013), algorithm 1.

    Raises
    ------
    GraphError
        If `gradients` is empty, or `longest` is not above 0.
    """
    if not gradients or not longest > 0:
        raise GraphError(
            f"{len(gradients)} gradients cannot be clipped to the norm {longest}",
            at=builder.name,
            fix="pass gradients, and a norm above 0",
        )
    formula = Formula(builder, "clip/")
    terms = [formula.term(name) for name in gradients]
    wide = np.result_type(np.float32, *(term.dtype for term in terms))
    squares = [term.cast(wide).op("ReduceSumSquare", keepdims=False) for term in terms]
    total = squares[0].op("Sum", *squares[1:]) if len(squares) > 1 else squares[0]
    bound = formula.constant(longest, wide)
    scale = bound / total.op("Sqrt").op("Max", bound)
    return [(term * scale.cast(term.dtype)).tensor for term in terms]
