"""Exact layers of neural networks: products with weights, pooling, upsampling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....graph.core.attribute import Attribute, Attributes, Kind
from ....graph.core.operator import Call, free
from ....graph.core.traits import FULLY_CONNECTED
from ....graph.operators.windows import Window
from ....graph.values.errors import OperatorError, ShapeError
from ....graph.values.tensor import Shape
from .rules import (
    MAX_ATTRIBUTE,
    MAX_DIM,
    check_bias,
    check_like,
    declare,
    get_fixed_shape,
    make_fixed,
    make_int,
    make_ints,
    read_pair,
)

_USE_BIAS = Attribute(Kind.BOOL, True)


@declare(
    "dense",
    inputs="x w bias?",
    attributes={"units": make_int(1, MAX_DIM), "use_bias": _USE_BIAS},
    cost=lambda call, outputs: 2 * outputs[0].size * call.spec(1).static_shape[1],
    batched=True,
    traits=FULLY_CONNECTED,
)
def infer_dense(call: Call) -> Sequence[Shape | None]:
    rows, length = get_fixed_shape(call, 0, 2, "the input")
    units = call.attributes["units"]
    check_like(call, 1, (units, length), "the weights")
    if check_bias(call):
        check_like(call, 2, (units,), "the bias")
    return ((rows, units),)


def make_window(attributes: Attributes) -> Window:
    """Return the window that a conv2d with `attributes` slides over its input."""
    padding = attributes["padding"]
    return Window(
        attributes["kernel_size"], attributes["strides"], attributes["dilation"], padding, padding
    )


@declare(
    "conv2d",
    inputs="x w bias?",
    attributes={
        "channels": make_int(1, MAX_DIM),
        "kernel_size": make_ints(None, 1, MAX_DIM),
        "strides": make_ints((1, 1), 1),
        "padding": make_ints((0, 0)),
        "dilation": make_ints((1, 1), 1),
        "groups": Attribute(Kind.INT, 1, minimum=1),
        "layout": make_fixed("NCHW"),
        "kernel_layout": make_fixed("OIHW"),
        "out_layout": make_fixed("NCHW", "__undef__"),
        "out_dtype": make_fixed("same", "int32"),
        "use_bias": _USE_BIAS,
    },
    cost=lambda call, outputs: 2 * outputs[0].size * math.prod(call.spec(1).static_shape[1:]),
    batched=True,
)
def infer_conv2d(call: Call) -> Sequence[Shape | None]:
    batch, channels, *spatial = get_fixed_shape(call, 0, 4, "the input")
    features, groups = call.attributes["channels"], call.attributes["groups"]
    kernel = read_pair(call, "kernel_size")
    for name in ("strides", "padding", "dilation"):
        read_pair(call, name)
    if channels % groups or features % groups:
        raise ShapeError(
            f"{channels} channels to {features} cannot be split into {groups} groups",
            fix="make both multiples of groups",
        )
    check_like(call, 1, (features, channels // groups, *kernel), "the weights")
    if check_bias(call):
        check_like(call, 2, (features,), "the bias")
    window = make_window(call.attributes)
    steps = zip(spatial, window.extents, window.strides, window.pads_begin, strict=True)
    return ((batch, features, *(_count_windows(*step) for step in steps)),)


def _count_windows(length: int, extent: int, stride: int, pad: int) -> int:
    if extent > length + 2 * pad:
        raise ShapeError(
            f"a window over {extent} cells does not fit in {length} cells padded by {pad}",
            fix="use a smaller kernel or dilation, more padding, or a larger input",
        )
    return (length + 2 * pad - extent) // stride + 1


def list_pooling_steps(
    spatial: Sequence[int], attributes: Attributes
) -> list[tuple[int, int, int, int, int]]:
    """Return (length, outputs, pool, stride, pad) for each length of `spatial`.

    `attributes` are those of the pooling. Raises ShapeError if a window does not fit, covers only
    padding, or would start after the input.
    """
    padding = attributes["padding"]
    pads = padding * 2 if len(padding) == 1 else padding
    axes = zip(spatial, attributes["pool_size"], attributes["strides"], pads, strict=True)
    return [_compute_pooling(*axis, attributes["ceil_mode"]) for axis in axes]


def _compute_pooling(
    length: int, pool: int, stride: int, pad: int, ceil_mode: bool
) -> tuple[int, int, int, int, int]:
    room = length + 2 * pad - pool
    if room < 0 or pad >= pool:
        raise ShapeError(
            f"a pool of {pool} cells does not go with {length} cells padded by {pad}",
            fix="use a pool larger than the padding, and no larger than the padded input",
        )
    outputs = (-(-room // stride) if ceil_mode else room // stride) + 1
    if (outputs - 1) * stride - pad >= length:
        raise ShapeError(
            f"the last of {outputs} pools starts behind the {length} cells of the input",
            fix="set ceil_mode to False, or use a smaller stride",
        )
    return length, outputs, pool, stride, pad


@declare(
    "max_pool2d",
    attributes={
        "pool_size": make_ints(None, 0, MAX_DIM + 2 * MAX_ATTRIBUTE),
        "strides": make_ints((1, 1), 1),
        "padding": make_ints((0, 0)),
        "layout": make_fixed("NCHW"),
        "ceil_mode": Attribute(Kind.BOOL, False),
    },
    cost=lambda call, outputs: math.prod(call.attributes["pool_size"]) * outputs[0].size,
    batched=True,
)
def infer_max_pool2d(call: Call) -> Sequence[Shape | None]:
    batch, channels, *spatial = get_fixed_shape(call, 0, 4, "the input")
    read_pair(call, "pool_size")
    read_pair(call, "strides")
    if len(call.attributes["padding"]) not in (1, 2):
        raise OperatorError(
            f"padding {list(call.attributes['padding'])} has neither 1 nor 2 numbers",
            fix="give one for both axes, or one for each",
        )
    steps = list_pooling_steps(spatial, call.attributes)
    return ((batch, channels, *(outputs for _, outputs, *_ in steps)),)


@declare(
    "upsampling",
    attributes={
        "scale": make_int(1),
        "method": make_fixed("NEAREST_NEIGHBOR"),
        "layout": make_fixed("NCHW"),
    },
    cost=free,
    batched=True,
)
def infer_upsampling(call: Call) -> Sequence[Shape | None]:
    *outer, height, width = get_fixed_shape(call, 0, 4, "the input")
    scale = call.attributes["scale"]
    return ((*outer, height * scale, width * scale),)
