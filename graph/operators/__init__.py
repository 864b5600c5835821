"""Operator definitions, one file per family; importing this package registers them.

Names, attributes and meanings are those of the newest version of ONNX. What rules ask of inputs is
in `inputs`, rules that several families follow are in `rules`.
"""

from . import (
    activation,
    convolution,
    creation,
    einsum,
    elementwise,
    indexing,
    logic,
    matmul,
    movement,
    normalization,
    pooling,
    rearranging,
    recurrent,
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
    "indexing",
    "logic",
    "matmul",
    "movement",
    "normalization",
    "pooling",
    "rearranging",
    "recurrent",
    "reduction",
    "reshaping",
    "resize",
    "slicing",
    "softmax",
]
