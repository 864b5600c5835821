"""The gradient of a convolution's weights, an operator of plait's own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..attribute import Attribute, Kind
from ..dims import floordiv
from ..errors import ShapeError
from ..operator import Call, Specs, define
from ..tensor import TensorSpec
from ..traits import IN_SUMS, PRIMITIVE, PRODUCT
from ..windows import WINDOW_ATTRIBUTES, resolve_window
from .inputs import FLOATS, common_dtype, may_equal


def _cost(call: Call, outputs: Specs) -> int:
    """Cost: a multiply and an add per weight, sample and place of the window."""
    samples, _, *places = call.spec(1).static_shape
    return 2 * outputs[0].size * samples * math.prod(places)


@define(
    "ConvWeightsGradient",
    inputs="x dy",
    attributes={
        **WINDOW_ATTRIBUTES,
        "kernel_shape": Attribute(Kind.INTS, minimum=1),
        "group": Attribute(Kind.INT, 1, minimum=1),
    },
    cost=_cost,
    traits=PRODUCT,
    float16=IN_SUMS,
    lacks=PRIMITIVE,
)
def infer_conv_weights_gradient(call: Call) -> Sequence[TensorSpec]:
    """Infer: (batch, channels, *spatial), (batch, features, *windows) → the weights' shape."""
    x, dy = call.spec(0), call.spec(1)
    dtype = common_dtype((x, dy), FLOATS)
    kernel, group = call.attributes["kernel_shape"], call.attributes["group"]
    for spec in (x, dy):
        if spec.rank not in (None, len(kernel) + 2):
            raise ShapeError(
                f"{spec} does not have {len(kernel)} spatial dimensions, as kernel_shape has",
                fix="give x and dy as (batch, channels, *spatial)",
            )
    if x.shape is None or dy.shape is None:
        return (TensorSpec(dtype, None),)
    resolve_window(x.shape[2:], call.attributes, kernel)
    if not may_equal(x.shape[0], dy.shape[0]):
        raise ShapeError(f"{x} and {dy} are not of one batch", fix="pass what Conv was given")
    for channels in (x.shape[1], dy.shape[1]):
        if isinstance(channels, int) and channels % group:
            raise ShapeError(
                f"{channels} channels do not divide into {group} groups",
                fix="use the group that Conv has",
            )
    return (TensorSpec(dtype, (dy.shape[1], floordiv(x.shape[1], group), *kernel)),)
