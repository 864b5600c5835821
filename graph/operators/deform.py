"""DeformConv: a convolution whose taps read where an input tells them to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..attribute import Attribute, Attributes, Kind
from ..dims import mul, product
from ..errors import ShapeError
from ..operator import Call, Specs, define
from ..tensor import Dim, Shape, TensorSpec
from ..traits import ARRAY_KERNEL, IN_COORDINATES, PRIMITIVE, PRODUCT
from ..windows import WINDOW_ATTRIBUTES, Window, resolve_window
from .inputs import FLOATS, check_form, common_dtype, present

OFFSET, BIAS, MASK = 2, 3, 4
"""Inputs, beside the image and the weights."""

_AXES = 2


def resolve_deformed_window(
    spatial: Sequence[Dim], attributes: Attributes, kernel: Sequence[Dim]
) -> tuple[Window | None, Shape]:
    """Return the window, where all offsets are 0, and the spatial output dims."""
    return resolve_window(spatial, {**attributes, "auto_pad": "NOTSET"}, kernel)


def _cost(call: Call, outputs: Specs) -> int:
    """Cost: four cells for each tap, and the convolution."""
    features, depth, *kernel = call.spec(1).static_shape
    batch, _, *sizes = outputs[0].static_shape
    taps: Any = product((batch, *kernel, *sizes))
    return int(taps) * (8 * call.spec(0).static_shape[1] + 2 * features * depth)


@define(
    "DeformConv",
    inputs="x w offset b? mask?",
    attributes={
        **{name: of for name, of in WINDOW_ATTRIBUTES.items() if name != "auto_pad"},
        "group": Attribute(Kind.INT, 1, minimum=1),
        "offset_group": Attribute(Kind.INT, 1, minimum=1),
    },
    cost=_cost,
    traits=PRODUCT,
    float16=IN_COORDINATES,
    lacks=PRIMITIVE | ARRAY_KERNEL,
)
def infer_deform_conv(call: Call) -> Sequence[TensorSpec]:
    """Infer: (batch, channels, h, w), (features, channels/group, *kernel) → windows."""
    dtype = common_dtype(present(call), FLOATS)
    for index in range(3):
        _check_rank(call.spec(index))
    x, w = call.spec(0).shape, call.spec(1).shape
    if x is None or w is None:
        return (TensorSpec(dtype, None),)
    group, offset_group = call.attributes["group"], call.attributes["offset_group"]
    check_form(call.spec(0), (None, mul(w[1], group), None, None), "the input")
    for count, parts in ((x[1], group), (w[0], group), (x[1], offset_group)):
        _check_divides(count, parts)
    kernel = call.attributes["kernel_shape"] or w[2:]
    check_form(call.spec(1), (None, None, *kernel), "the weights")
    _, outputs = resolve_deformed_window(x[2:], call.attributes, kernel)
    taps = product((offset_group, *kernel))
    check_form(call.spec(OFFSET), (x[0], mul(taps, _AXES), *outputs), "the offset")
    if call.has(BIAS):
        check_form(call.spec(BIAS), (w[0],), "the bias")
    if call.has(MASK):
        check_form(call.spec(MASK), (x[0], taps, *outputs), "the mask")
    return (TensorSpec(dtype, (x[0], w[0], *outputs)),)


def _check_rank(spec: TensorSpec) -> None:
    if spec.rank is not None and spec.rank != _AXES + 2:
        raise ShapeError(
            f"a deformable convolution over {spec.rank - 2} spatial dimensions is not supported",
            fix="give images of shape (batch, channels, h, w)",
        )


def _check_divides(count: Dim, parts: int) -> None:
    if isinstance(count, int) and count % parts:
        raise ShapeError(
            f"{count} channels do not divide into {parts} groups",
            fix="choose a group and an offset_group that divide the numbers of channels",
        )
