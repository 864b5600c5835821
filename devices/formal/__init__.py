"""The formal device: each operator by its definition, element by element.

One file per family; importing this package registers their definitions. Families share `indices`,
`ieee` and `windows`. It uses no kernels, so that it can serve as their oracle.
"""

from . import (  # noqa: F401 - each registers its own
    activation,
    attention,
    convolution,
    creation,
    elementwise,
    fused,
    indexing,
    integer_products,
    linear_algebra,
    logic,
    movement,
    normalization,
    pooling,
    quantization,
    randomness,
    rearranging,
    recurrent,
    reduction,
    reshaping,
    resize,
    sampling,
    selecting,
    signal,
    slicing,
    softmax,
    state,
)
