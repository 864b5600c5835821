"""Gradients clipped one by one; `clip_by_global_norm` clips them together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..building.builder import GraphBuilder
from ..building.named_tensor import Tensor
from ..gradients.formula import Formula
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
