"""The gradient of MaxPool, an operator of plait's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..attribute import Attribute, Kind
from ..dims import UNKNOWN
from ..errors import ShapeError
from ..operator import Call, Specs, define
from ..tensor import Shape, TensorSpec
from ..traits import IN_GRADIENTS, PRIMITIVE
from ..windows import WINDOW_ATTRIBUTES
from .inputs import FLOATS, check_dtype, check_form, integers, listed_rank, may_equal
from .pooling import pooling_window

_SHAPE = 2


def _additions(call: Call, outputs: Specs) -> int:
    return call.spec(0).size


@define(
    "MaxPoolGradient",
    inputs="dy indices shape",
    attributes={
        **WINDOW_ATTRIBUTES,
        "ceil_mode": Attribute(Kind.BOOL, False),
        "kernel_shape": Attribute(Kind.INTS, minimum=1),
    },
    cost=_additions,
    float16=IN_GRADIENTS,
    lacks=PRIMITIVE,
)
def infer_max_pool_gradient(call: Call) -> Sequence[TensorSpec]:
    """Infer: the shape given, that of the pooled tensor, which makes windows of dy's shape."""
    dy, indices = call.spec(0), call.spec(1)
    check_dtype(dy, FLOATS)
    if indices.dtype != np.int64:
        raise ShapeError(f"the indices must be int64, got {indices}", fix="insert a Cast")
    if dy.shape is not None:
        check_form(indices, dy.shape, "the indices")
    shape = integers(call, _SHAPE, "the shape")
    if shape is None:
        rank = dy.rank or listed_rank(call, _SHAPE)
        return (TensorSpec(dy.dtype, None if rank is None else (UNKNOWN,) * rank),)
    _check_windows(call, shape)
    return (TensorSpec(dy.dtype, shape),)


def _check_windows(call: Call, shape: Shape) -> None:
    """Raise ShapeError unless a tensor of the shape has as many windows as dy has numbers."""
    dy = call.spec(0)
    if len(shape) != len(call.attributes["kernel_shape"]) + 2 or dy.rank not in (None, len(shape)):
        raise ShapeError(
            f"{list(shape)} is not the shape of what was pooled to {dy}",
            fix="pass the shape of MaxPool's input",
        )
    _, outputs = pooling_window(shape, call.attributes)
    made = (*shape[:2], *outputs)
    if dy.shape is not None and not all(map(may_equal, made, dy.shape)):
        raise ShapeError(
            f"a tensor of shape {list(shape)} has windows of shape {list(made)}, dy is {dy}",
            fix="pass MaxPool's attributes, and the gradient of what it returned",
        )
