"""The formal device: each operator as it is defined, element by element.

One file per family; importing this package registers their definitions. Families share `indices`,
`ieee` and `windows`. No kernel is used here: what judges them must not know them.
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
from .registry import Definition, definition, definitions, find_definition

__all__ = [
    "Definition",
    "definition",
    "definitions",
    "find_definition",
]
