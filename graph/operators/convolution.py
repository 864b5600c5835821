"""Convolutions: over windows, transposed, deformed; the gradient of weights; and Col2Im.

ConvWeightsGradient is an operator of plait's own. DeformConv reads at the offsets in an input;
Col2Im sums the columns of a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.attribute import Attribute, Attributes, Kind
from ..core.operator import Call, Specs, define
from ..core.traits import ARRAY_KERNEL, FOLLOWS, IN_COORDINATES, IN_SUMS, PRIMITIVE, PRODUCT
from ..values.dims import UNKNOWN, floordiv, mul, multiply_all
from ..values.errors import ShapeError
from ..values.tensor import Dim, Shape, TensorSpec
from .inputs import (
    ANY,
    FLOATS,
    check_dtype,
    check_form,
    check_per_channel,
    find_common_dtype,
    list_present,
    may_equal,
    read_integers,
    read_rank,
)
from .rules import per_input_element
from .windows import WINDOW_ATTRIBUTES, Window, resolve_transposed_window, resolve_window

_ATTRIBUTES = {**WINDOW_ATTRIBUTES, "group": Attribute(Kind.INT, 1, minimum=1)}


def _estimate_conv(call: Call, outputs: Specs) -> int:
    """Estimate `call` with `outputs`: two operations per weight and output cell, one per bias."""
    weights = math.prod(call.spec(1).static_shape[1:])
    return outputs[0].size * (2 * weights + call.has(2))


def _estimate_conv_transpose(call: Call, outputs: Specs) -> int:
    """Estimate `call` with `outputs`: two operations per weight and input cell, one per bias."""
    weights = math.prod(call.spec(1).static_shape[1:])
    return 2 * call.spec(0).size * weights + outputs[0].size * call.has(2)


@define(
    "Conv",
    inputs="x w b?",
    attributes=_ATTRIBUTES,
    cost=_estimate_conv,
    traits=PRODUCT,
    float16=FOLLOWS,
)
def infer_conv(call: Call) -> Sequence[TensorSpec]:
    """Infer (batch, channels, *spatial), (features, channels/group, *kernel) → windows."""
    dtype = find_common_dtype(list_present(call), FLOATS)
    shape = infer_conv_shape(call.spec(0), call.spec(1), call.attributes)
    if shape is not None and call.has(2):
        check_per_channel(call, 2, shape[1], "the bias")
    return (TensorSpec(dtype, shape),)


def infer_conv_shape(x: TensorSpec, w: TensorSpec, attributes: Attributes) -> Shape | None:
    """Return the shape of a convolution of `x` with weights `w`, or None if its rank is unknown."""
    _check_ranks(x, w)
    if x.shape is None or w.shape is None:
        return None
    # Weights have the channels of one group, and the features of all.
    group, features = attributes["group"], w.shape[0]
    _check_channels(x.shape[1], mul(w.shape[1], group), group)
    _check_divides(features, group, "the weights' features")
    _, outputs = resolve_window(x.shape[2:], attributes, _get_kernel(attributes, w.shape))
    return (x.shape[0], features, *outputs)


@define(
    "ConvTranspose",
    inputs="x w b?",
    attributes={
        **_ATTRIBUTES,
        "output_padding": Attribute(Kind.INTS, None, minimum=0),
        "output_shape": Attribute(Kind.INTS, None, minimum=1),
    },
    cost=_estimate_conv_transpose,
    traits=PRODUCT,
    float16=FOLLOWS,
)
def infer_conv_transpose(call: Call) -> Sequence[TensorSpec]:
    """Infer (batch, channels, *spatial), (channels, features/group, *kernel) → windows."""
    dtype = find_common_dtype(list_present(call), FLOATS)
    _check_ranks(call.spec(0), call.spec(1))
    x, w = call.spec(0).shape, call.spec(1).shape
    if x is None or w is None:
        return (TensorSpec(dtype, None),)
    group = call.attributes["group"]
    # Transposed weights have all channels, and the features of one group.
    _check_channels(x[1], w[0], 1)
    _check_divides(x[1], group, "the input's channels")
    features = mul(w[1], group)
    if call.has(2):
        check_per_channel(call, 2, features, "the bias")
    _, outputs = resolve_transposed_window(x[2:], call.attributes, _get_kernel(call.attributes, w))
    return (TensorSpec(dtype, (x[0], features, *outputs)),)


def _check_ranks(x: TensorSpec, w: TensorSpec) -> None:
    ranks = [spec.rank for spec in (x, w) if spec.rank is not None]
    if min(ranks, default=3) < 3 or len(set(ranks)) > 1:
        raise ShapeError(
            f"input {x} and weights {w} are not of one rank ≥ 3",
            fix="give both as (…, channels, *spatial) with the same number of spatial dimensions",
        )


def _get_kernel(attributes: Attributes, w: Shape) -> Shape:
    given = attributes["kernel_shape"]
    if given is None:
        return w[2:]
    if len(given) != len(w) - 2 or not all(map(may_equal, given, w[2:])):
        raise ShapeError(
            f"kernel_shape {list(given)} is not that of the weights, {list(w[2:])}",
            fix="leave kernel_shape out, or make it the weights'",
        )
    return tuple(given)


def _check_channels(channels: Dim, wanted: Dim, group: int) -> None:
    if isinstance(channels, int) and isinstance(wanted, int) and channels != wanted:
        of = f" ({wanted // group} in each of {group} groups)" if group > 1 else ""
        raise ShapeError(
            f"the input has {channels} channels, the weights are for {wanted}{of}",
            fix="make the input's channels equal the weights', times `group`",
        )


def _check_divides(count: Dim, group: int, label: str) -> None:
    if isinstance(count, int) and count % group:
        raise ShapeError(
            f"{label}, {count}, do not divide into {group} groups",
            fix="choose a group that divides the number of channels",
        )


def _estimate_gradient(call: Call, outputs: Specs) -> int:
    """Estimate `call` with `outputs`: two operations per weight, sample and place of the window."""
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
    cost=_estimate_gradient,
    traits=PRODUCT,
    float16=IN_SUMS,
    lacks=PRIMITIVE,
)
def infer_conv_weights_gradient(call: Call) -> Sequence[TensorSpec]:
    """Infer (batch, channels, *spatial), (batch, features, *windows) → the weights' shape."""
    x, dy = call.spec(0), call.spec(1)
    dtype = find_common_dtype((x, dy), FLOATS)
    kernel, group = call.attributes["kernel_shape"], call.attributes["group"]
    for spec in (x, dy):
        if spec.rank not in (None, len(kernel) + 2):
            raise ShapeError(
                f"{spec} does not have {len(kernel)} spatial dimensions, as kernel_shape has",
                fix="give x and dy as (batch, channels, *spatial)",
            )
    if x.shape is None or dy.shape is None:
        return (TensorSpec(dtype, None),)
    # Raises for windows that do not fit; their number follows from dy.
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


OFFSET, BIAS, MASK = 2, 3, 4
"""Inputs after the image and the weights."""

_AXES = 2


def resolve_deformed_window(
    spatial: Sequence[Dim], attributes: Attributes, kernel: Sequence[Dim]
) -> tuple[Window | None, Shape]:
    return resolve_window(spatial, {**attributes, "auto_pad": "NOTSET"}, kernel)


def _estimate_deform(call: Call, outputs: Specs) -> int:
    """Estimate `call` with `outputs`: the convolution, and four cells interpolated for each tap."""
    features, depth, *kernel = call.spec(1).static_shape
    batch, _, *sizes = outputs[0].static_shape
    taps: Any = multiply_all((batch, *kernel, *sizes))
    return int(taps) * (8 * call.spec(0).static_shape[1] + 2 * features * depth)


@define(
    "DeformConv",
    inputs="x w offset b? mask?",
    attributes={
        **{name: of for name, of in WINDOW_ATTRIBUTES.items() if name != "auto_pad"},
        "group": Attribute(Kind.INT, 1, minimum=1),
        "offset_group": Attribute(Kind.INT, 1, minimum=1),
    },
    cost=_estimate_deform,
    traits=PRODUCT,
    float16=IN_COORDINATES,
    lacks=PRIMITIVE | ARRAY_KERNEL,
)
def infer_deform_conv(call: Call) -> Sequence[TensorSpec]:
    """Infer (batch, channels, h, w), (features, channels/group, *kernel) → windows."""
    dtype = find_common_dtype(list_present(call), FLOATS)
    for index in range(3):
        _check_rank(call.spec(index))
    x, w = call.spec(0).shape, call.spec(1).shape
    if x is None or w is None:
        return (TensorSpec(dtype, None),)
    group, offset_group = call.attributes["group"], call.attributes["offset_group"]
    check_form(call.spec(0), (None, mul(w[1], group), None, None), "the input")
    for count, parts in ((x[1], group), (w[0], group), (x[1], offset_group)):
        _check_divides(count, parts, "channels")
    kernel = call.attributes["kernel_shape"] or w[2:]
    check_form(call.spec(1), (None, None, *kernel), "the weights")
    _, outputs = resolve_deformed_window(x[2:], call.attributes, kernel)
    taps = multiply_all((offset_group, *kernel))
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


_BLOCK = {name: WINDOW_ATTRIBUTES[name] for name in ("dilations", "pads", "strides")}


def to_window(attributes: Attributes) -> Mapping[str, Any]:
    """Return Col2Im's `attributes` as those of a convolution that reads such columns."""
    return {**attributes, "auto_pad": "NOTSET"}


@define(
    "Col2Im",
    inputs="x image_shape block_shape",
    attributes=_BLOCK,
    cost=per_input_element(1),
    float16=IN_SUMS,
    lacks=PRIMITIVE | ARRAY_KERNEL,
)
def infer_col2im(call: Call) -> Sequence[TensorSpec]:
    """Infer (batch, channels · cells of a block, blocks) → (batch, channels, *image)."""
    x = call.spec(0)
    check_dtype(x, ANY)
    if x.rank not in (None, 3):
        raise ShapeError(f"{x} is not of rank 3", fix="reshape it to [batch, cells, blocks]")
    image, block = read_integers(call, 1, "image_shape"), read_integers(call, 2, "block_shape")
    if image is None or block is None:
        axes = read_rank(call, 1)
        batch = UNKNOWN if x.shape is None else x.shape[0]
        shape = None if axes is None else (batch, *(UNKNOWN,) * (axes + 1))
        return (TensorSpec(x.dtype, shape),)
    # Columns are the reads of a convolution over the image.
    _, counts = resolve_window(image, to_window(call.attributes), block)
    if x.shape is None:
        return (TensorSpec(x.dtype, (UNKNOWN, UNKNOWN, *image)),)
    batch, cells, blocks = x.shape
    size = math.prod(block)
    if (isinstance(cells, int) and cells % size) or not may_equal(blocks, multiply_all(counts)):
        raise ShapeError(
            f"{x} is not made of columns of {size} cells, one for each of "
            f"{multiply_all(counts)} blocks",
            fix="make image_shape, block_shape and the attributes those that it was made with",
        )
    return (TensorSpec(x.dtype, (batch, floordiv(cells, size), *image)),)
