"""All families of decompositions; importing this module registers them."""

from . import (
    activation,
    arithmetic,
    attention,
    convolution,
    each,
    einsum,
    normalization,
    pooling,
    products,
    quantization,
    rearranging,
    recurrent,
    reduction,
)

__all__ = [
    "activation",
    "arithmetic",
    "attention",
    "convolution",
    "each",
    "einsum",
    "normalization",
    "pooling",
    "products",
    "quantization",
    "rearranging",
    "recurrent",
    "reduction",
]
