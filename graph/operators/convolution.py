"""Conv and ConvTranspose: weighted sums over windows, and their transpose."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..attribute import Attribute, Attributes, Kind
from ..dims import mul
from ..errors import ShapeError
from ..operator import Call, Specs, define
from ..tensor import Dim, Shape, TensorSpec
from ..traits import FOLLOWS, PRODUCT
from ..windows import WINDOW_ATTRIBUTES, resolve_transposed_window, resolve_window
from .inputs import FLOATS, check_per_channel, common_dtype, may_equal, present

_ATTRIBUTES = {**WINDOW_ATTRIBUTES, "group": Attribute(Kind.INT, 1, minimum=1)}


def _conv_cost(call: Call, outputs: Specs) -> int:
    """Cost: a multiply and an add per weight and output cell, an add per biased cell."""
    weights = math.prod(call.spec(1).static_shape[1:])
    return outputs[0].size * (2 * weights + call.has(2))


def _conv_transpose_cost(call: Call, outputs: Specs) -> int:
    """Cost: a multiply and an add per weight and input cell, an add per biased cell."""
    weights = math.prod(call.spec(1).static_shape[1:])
    return 2 * call.spec(0).size * weights + outputs[0].size * call.has(2)


@define(
    "Conv",
    inputs="x w b?",
    attributes=_ATTRIBUTES,
    cost=_conv_cost,
    traits=PRODUCT,
    float16=FOLLOWS,
)
def infer_conv(call: Call) -> Sequence[TensorSpec]:
    """Infer: (batch, channels, *spatial), (features, channels/group, *kernel) → windows."""
    dtype = common_dtype(present(call), FLOATS)
    shape = conv_shape(call.spec(0), call.spec(1), call.attributes)
    if shape is not None and call.has(2):
        check_per_channel(call, 2, shape[1], "the bias")
    return (TensorSpec(dtype, shape),)


def conv_shape(x: TensorSpec, w: TensorSpec, attributes: Attributes) -> Shape | None:
    """Return the shape of a convolution, None where it is not known how many dimensions it has.

    Raises
    ------
    ShapeError
        If the input, the weights and the attributes do not fit together.
    """
    _check_ranks(x, w)
    if x.shape is None or w.shape is None:
        return None
    group, features = attributes["group"], w.shape[0]
    _check_channels(x.shape[1], mul(w.shape[1], group), group)
    _check_divides(features, group, "the weights' features")
    _, outputs = resolve_window(x.shape[2:], attributes, _kernel(attributes, w.shape))
    return (x.shape[0], features, *outputs)


@define(
    "ConvTranspose",
    inputs="x w b?",
    attributes={
        **_ATTRIBUTES,
        "output_padding": Attribute(Kind.INTS, None, minimum=0),
        "output_shape": Attribute(Kind.INTS, None, minimum=1),
    },
    cost=_conv_transpose_cost,
    traits=PRODUCT,
    float16=FOLLOWS,
)
def infer_conv_transpose(call: Call) -> Sequence[TensorSpec]:
    """Infer: (batch, channels, *spatial), (channels, features/group, *kernel) → windows."""
    dtype = common_dtype(present(call), FLOATS)
    _check_ranks(call.spec(0), call.spec(1))
    x, w = call.spec(0).shape, call.spec(1).shape
    if x is None or w is None:
        return (TensorSpec(dtype, None),)
    group = call.attributes["group"]
    _check_channels(x[1], w[0], 1)
    _check_divides(x[1], group, "the input's channels")
    features = mul(w[1], group)
    if call.has(2):
        check_per_channel(call, 2, features, "the bias")
    _, outputs = resolve_transposed_window(x[2:], call.attributes, _kernel(call.attributes, w))
    return (TensorSpec(dtype, (x[0], features, *outputs)),)


def _check_ranks(x: TensorSpec, w: TensorSpec) -> None:
    ranks = [spec.rank for spec in (x, w) if spec.rank is not None]
    if min(ranks, default=3) < 3 or len(set(ranks)) > 1:
        raise ShapeError(
            f"input {x} and weights {w} are not of one rank ≥ 3",
            fix="give both as (…, channels, *spatial) with the same number of spatial dimensions",
        )


def _kernel(attributes: Attributes, w: Shape) -> Shape:
    """Return the kernel's sizes; where the weights' are symbols, those of `kernel_shape`."""
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


def _check_divides(count: Dim, group: int, what: str) -> None:
    if isinstance(count, int) and count % group:
        raise ShapeError(
            f"{what}, {count}, do not divide into {group} groups",
            fix="choose a group that divides the number of channels",
        )
