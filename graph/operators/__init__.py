"""Operator definitions, one file per family; importing this package registers them."""

from . import (
    activation,
    convolution,
    creation,
    einsum,
    elementwise,
    logic,
    matmul,
    movement,
    normalization,
    pooling,
    reduction,
    reshaping,
    resize,
    slicing,
    softmax,
)

__all__ = [
    "activation",
    "convolution",
    "creation",
    "einsum",
    "elementwise",
    "logic",
    "matmul",
    "movement",
    "normalization",
    "pooling",
    "reduction",
    "reshaping",
    "resize",
    "slicing",
    "softmax",
]
