"""Gradients as nodes of the graph: a rule for each operator, one file per family.

Importing this package registers the rules. A rule writes the gradients of a node's inputs, given
those of its outputs, with operators that have rules themselves: gradients have gradients.
"""

from . import (
    activation,
    attention,
    control,
    convolution,
    elementwise,
    indexing,
    movement,
    normalization,
    pooling,
    products,
    reduction,
    resize,
    softmax,
)
from .adjoint import Adjoint
from .build import gradients
from .clipping import clip_by_global_norm
from .formula import Formula, Term
from .registry import differentiable, gradient

__all__ = [
    "Adjoint",
    "Formula",
    "Term",
    "activation",
    "attention",
    "clip_by_global_norm",
    "control",
    "convolution",
    "differentiable",
    "elementwise",
    "gradient",
    "gradients",
    "indexing",
    "movement",
    "normalization",
    "pooling",
    "products",
    "reduction",
    "resize",
    "softmax",
]
