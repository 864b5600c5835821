"""Kernels for any array module, one file per family; importing this package registers them.

Families share `steps`, `arguments`, `axes`, `sums`, `blocks`, `bounds`, `precision`, `sliding` and
`views`; the ways to compute a convolution share `geometry` and `frames`.
"""

from . import (
    activation,
    batch_normalization,
    conv_transpose,
    convolution,
    creation,
    einsum,
    elementwise,
    global_pooling,
    indexing,
    logic,
    matmul,
    movement,
    normalization,
    norms,
    pooling,
    rearranging,
    reduction,
    reshaping,
    resize,
    scan,
    slicing,
    softmax,
    transpose,
)
from .registry import ANY, Kernel, find_kernel, kernel, kernels

__all__ = [
    "ANY",
    "Kernel",
    "activation",
    "batch_normalization",
    "conv_transpose",
    "convolution",
    "creation",
    "einsum",
    "elementwise",
    "find_kernel",
    "global_pooling",
    "indexing",
    "kernel",
    "kernels",
    "logic",
    "matmul",
    "movement",
    "normalization",
    "norms",
    "pooling",
    "rearranging",
    "reduction",
    "reshaping",
    "resize",
    "scan",
    "slicing",
    "softmax",
    "transpose",
]
