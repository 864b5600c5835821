"""Operator definitions, one file per family; importing this package registers them."""

from . import (
    convolution,
    elementwise,
    matmul,
    movement,
    normalization,
    pooling,
    reduction,
    resize,
)

__all__ = [
    "convolution",
    "elementwise",
    "matmul",
    "movement",
    "normalization",
    "pooling",
    "reduction",
    "resize",
]
