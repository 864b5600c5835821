"""Kernels written per node, in a C that both CUDA and OpenCL compile.

Shapes, strides and attributes are literals in the source, so a kernel has buffers for parameters
and nothing else.
"""

from . import (  # noqa: F401 - each registers its own
    activation,
    arithmetic,
    conversion,
    convolution,
    creation,
    dot_attention,
    gathering,
    integer_products,
    matmul,
    movement,
    normalization,
    pooling,
    quantization,
    randomness,
    reduction,
    resize,
    scattering,
    softmax,
    top_k,
)
