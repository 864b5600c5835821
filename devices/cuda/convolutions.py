"""Convolutions in the form of cuDNN.

Images are channel-first, as in ONNX; cuDNN converts them in its workspace for tensor cores.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ...graph.core.ir import Node
from ...graph.core.operator import Call, Specs
from ...graph.operators.windows import resolve_window
from ...graph.values.dtypes import dtype_of
from ..codegen.indexing import INDEX_LIMIT

FLOATS = ("float16", "bfloat16", "float32")
"""Dtypes that cuDNN convolves faster than other kernels, mostly on tensor cores."""
AXES = (2, 3)
"""Counts of spatial axes in cuDNN; lines are passed as images of one row."""
QUANTUM = 8
"""Channels are padded to a multiple of this by conversions."""
SPARE_NBYTES = 1 << 20
"""Additional workspace, such as for partial sums."""


class StaticConvolution(NamedTuple):
    """A convolution of static shapes: images by weights, without a bias."""

    dtype: str
    """Dtype of all tensors."""
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    """Shapes: images, channels and cells; features, channels of a group and cells; the result."""
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    """Those of the window, one number per spatial axis; `begins` and `ends` are padding."""
    on_tensor_cores: bool
    """Whether tensor cores may multiply; they round float32 to 10 bits."""

    @property
    def is_by_channel(self) -> bool:
        """Whether each group is a single channel, which needs products of vectors only."""
        return self.w[1] == 1

    @property
    def operations(self) -> int:
        return 2 * math.prod(self.y) * math.prod(self.w[1:])

    @property
    def workspace_nbytes(self) -> int:
        """Size of cuDNN's workspace, with room to convert all tensors."""
        if not self.on_tensor_cores:
            return SPARE_NBYTES
        cells = sum(map(_count_padded, (self.x, self.w, self.y)))
        return dtype_of(self.dtype).itemsize * cells + SPARE_NBYTES


def match_convolution(
    node: Node, call: Call, outputs: Specs, *, tf32: bool
) -> StaticConvolution | None:
    """Match `node`, given static `call` and `outputs`, as a convolution for cuDNN, or return None.

    `tf32` allows tensor cores to multiply float32.
    """
    if node.op != "Conv" or call.spec(0).dtype.name not in FLOATS:
        return None
    x, w = call.spec(0).static_shape, call.spec(1).static_shape
    y = outputs[0].static_shape
    window, _ = resolve_window(x[2:], call.attributes, w[2:])
    assert window is not None, "static shapes"
    moves = window.pads_begin, window.pads_end, window.strides, window.dilations
    if len(x) == 3:
        x, w, y = ((*shape[:-1], 1, shape[-1]) for shape in (x, w, y))
        moves = (0, *moves[0]), (0, *moves[1]), (1, *moves[2]), (1, *moves[3])
    sizes = tuple(map(math.prod, (x, w, y)))
    if len(x) - 2 not in AXES or min(sizes) < 1 or max(sizes) >= INDEX_LIMIT:
        return None
    dtype = call.spec(0).dtype.name
    return StaticConvolution(dtype, x, w, y, *moves, tf32 or dtype != "float32")


def _count_padded(shape: tuple[int, ...]) -> int:
    first, channels, *cells = shape
    return first * -(-channels // QUANTUM) * QUANTUM * math.prod(cells)
