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
from .rules import Draft, Expansion, Result, drafted, expands, expansions

__all__ = [
    "Draft",
    "Expansion",
    "Result",
    "activation",
    "arithmetic",
    "attention",
    "convolution",
    "drafted",
    "einsum",
    "expands",
    "expansions",
    "normalization",
    "pooling",
    "products",
    "quantization",
    "rearranging",
    "recurrent",
    "reduction",
]
