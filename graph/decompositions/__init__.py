"""Operators written out in simpler ones, for devices that lack them: see `rules`."""

from __future__ import annotations

from . import (
    activation,
    arithmetic,
    attention,
    convolution,
    einsum,
    normalization,
    pooling,
    products,
    quantization,
    rearranging,
    recurrent,
    reduction,
)
from .rules import (
    Decomposition,
    DecompositionBuilder,
    Result,
    decomposed,
    decomposition,
    decompositions,
)

__all__ = [
    "Decomposition",
    "DecompositionBuilder",
    "Result",
    "activation",
    "arithmetic",
    "attention",
    "convolution",
    "decomposed",
    "decomposition",
    "decompositions",
    "einsum",
    "normalization",
    "pooling",
    "products",
    "quantization",
    "rearranging",
    "recurrent",
    "reduction",
]
