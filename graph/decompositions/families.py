"""All families of decompositions; importing this module registers them."""

from . import (  # noqa: F401 - each registers its own
    activation,
    attention,
    convolution,
    each,
    elementwise,
    linear_algebra,
    normalization,
    pooling,
    quantization,
    rearranging,
    recurrent,
    reduction,
)
