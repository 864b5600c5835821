"""Kernels written per node, in a C that both CUDA and OpenCL compile.

Shapes, strides and attributes are literals in the source, so a kernel has buffers for parameters
and nothing else.
"""

from . import (
    activation,
    arithmetic,
    batch_normalization,
    blocks,
    conversion,
    convolution,
    creation,
    cvm,
    gathering,
    integer_products,
    matmul,
    movement,
    norms,
    padding,
    pooling,
    quantization,
    reduction,
    resize,
    scan,
    scattering,
    softmax,
    top_k,
    unpooling,
)

__all__ = [
    "activation",
    "arithmetic",
    "batch_normalization",
    "blocks",
    "conversion",
    "convolution",
    "creation",
    "cvm",
    "gathering",
    "integer_products",
    "matmul",
    "movement",
    "norms",
    "padding",
    "pooling",
    "quantization",
    "reduction",
    "resize",
    "scan",
    "scattering",
    "softmax",
    "top_k",
    "unpooling",
]
