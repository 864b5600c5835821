"""Kernels for any array module, one file per family; importing this package registers them."""

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
from .registry import ANY, Kernel, find_kernel, kernel, kernels

__all__ = [
    "ANY",
    "Kernel",
    "convolution",
    "elementwise",
    "find_kernel",
    "kernel",
    "kernels",
    "matmul",
    "movement",
    "normalization",
    "pooling",
    "reduction",
    "resize",
]
