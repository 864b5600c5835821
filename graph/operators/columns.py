"""Images from the columns that convolutions multiply."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..attribute import Attributes
from ..dims import UNKNOWN, floordiv, product
from ..errors import ShapeError
from ..operator import Call, Specs, define
from ..tensor import TensorSpec
from ..traits import ARRAY_KERNEL, IN_SUMS, PRIMITIVE
from ..windows import WINDOW_ATTRIBUTES, resolve_window
from .inputs import ANY, check_dtype, integers, listed_rank, may_equal

_ATTRIBUTES = {name: WINDOW_ATTRIBUTES[name] for name in ("dilations", "pads", "strides")}


def _additions(call: Call, outputs: Specs) -> int:
    return call.spec(0).size


def as_window(attributes: Attributes) -> Mapping[str, Any]:
    """Return Col2Im's attributes as those of a convolution that reads such columns."""
    return {**attributes, "auto_pad": "NOTSET"}


@define(
    "Col2Im",
    inputs="x image_shape block_shape",
    attributes=_ATTRIBUTES,
    cost=_additions,
    float16=IN_SUMS,
    lacks=PRIMITIVE | ARRAY_KERNEL,
)
def infer_col2im(call: Call) -> Sequence[TensorSpec]:
    """Infer: (batch, channels · cells of a block, blocks) → (batch, channels, *image)."""
    x = call.spec(0)
    check_dtype(x, ANY)
    if x.rank not in (None, 3):
        raise ShapeError(f"{x} is not of rank 3", fix="reshape it to [batch, cells, blocks]")
    image, block = integers(call, 1, "image_shape"), integers(call, 2, "block_shape")
    if image is None or block is None:
        axes = listed_rank(call, 1)
        batch = UNKNOWN if x.shape is None else x.shape[0]
        shape = None if axes is None else (batch, *(UNKNOWN,) * (axes + 1))
        return (TensorSpec(x.dtype, shape),)
    _, counts = resolve_window(image, as_window(call.attributes), block)
    if x.shape is None:
        return (TensorSpec(x.dtype, (UNKNOWN, UNKNOWN, *image)),)
    batch, cells, blocks = x.shape
    size = math.prod(block)
    if (isinstance(cells, int) and cells % size) or not may_equal(blocks, product(counts)):
        raise ShapeError(
            f"{x} is not made of columns of {size} cells, one for each of {product(counts)} blocks",
            fix="make image_shape, block_shape and the attributes those that it was made with",
        )
    return (TensorSpec(x.dtype, (batch, floordiv(cells, size), *image)),)
