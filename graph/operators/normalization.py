"""Normalization: shift and scale values to mean 0 and variance 1, over a batch, layer or group."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, Specs, define
from ..core.traits import EPILOGUE, FIRST_FOLLOWS, IN_SUMS
from ..values.dims import normalize_axes, normalize_axis
from ..values.errors import ShapeError
from ..values.tensor import Dim, TensorSpec
from .inputs import (
    FLOATS,
    check_broadcastable,
    check_dtype,
    check_per_channel,
    check_rank,
    find_common_dtype,
    list_present,
)
from .rules import FIRST, per_element, same_along_axis

_AXIS = Attribute(Kind.INT, -1)
_EPSILON = Attribute(Kind.FLOAT, 1e-5)
_STASH_TYPE = Attribute(Kind.INT, 1, choices=(1,))
"""ONNX's name for float32, the least precision that statistics are computed in."""

_STATISTICS = "float32"
_LAYOUT = "(batch, channels, ...)"

_SCALE_AND_SHIFT = 2
_MEASURE_AND_SCALE = 7
"""Operations per element: mean, difference, variance, then scale and shift."""


@define(
    "BatchNormalization",
    inputs="x scale bias mean variance",
    outputs="y running_mean? running_variance?",
    attributes={
        "epsilon": _EPSILON,
        "momentum": Attribute(Kind.FLOAT, 0.9),
        "training_mode": Attribute(Kind.BOOL, False),
    },
    cost=per_element(_SCALE_AND_SHIFT),
    inplace=FIRST,
    traits=EPILOGUE,
    float16=FIRST_FOLLOWS,
)
def infer_batch_normalization(call: Call) -> Sequence[TensorSpec]:
    """Infer the outputs of `call`: like x; in training mode, the running statistics too."""
    x = call.spec(0)
    for index in range(5):
        check_dtype(call.spec(index), FLOATS, f"input {index}")
    # Inference changes no statistics: there is nothing to put out.
    if call.n_outputs > 1 and not call.attributes["training_mode"]:
        raise ShapeError(
            "running statistics are outputs in training mode only",
            fix="ask for one output, or set training_mode=1",
        )
    if x.shape is not None:
        check_rank(x, 1, _LAYOUT)
        # ONNX takes a vector for one channel, with a batch of any length.
        channels: Dim = x.shape[1] if len(x.shape) > 1 else 1
        for index, what in enumerate(("scale", "bias", "mean", "variance"), 1):
            check_per_channel(call, index, channels, what)
    return (x, call.spec(3), call.spec(4))


@define(
    "InstanceNormalization",
    inputs="x scale bias",
    attributes={"epsilon": _EPSILON},
    cost=per_element(_MEASURE_AND_SCALE),
    inplace=FIRST,
    float16=IN_SUMS,
)
def infer_instance_normalization(call: Call) -> Sequence[TensorSpec]:
    return (_check_per_channel(call),)


@define(
    "GroupNormalization",
    inputs="x scale bias",
    attributes={
        "epsilon": _EPSILON,
        "num_groups": Attribute(Kind.INT, minimum=1),
        "stash_type": _STASH_TYPE,
    },
    cost=per_element(_MEASURE_AND_SCALE),
    inplace=FIRST,
    float16=IN_SUMS,
)
def infer_group_normalization(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like x, with channels in equal groups."""
    x = _check_per_channel(call)
    groups = call.attributes["num_groups"]
    if x.shape is not None and isinstance(x.shape[1], int) and x.shape[1] % groups:
        raise ShapeError(
            f"{x.shape[1]} channels do not fall into {groups} equal groups",
            fix="set num_groups to a divisor of the number of channels",
        )
    return (x,)


@define(
    "LayerNormalization",
    inputs="x scale bias?",
    outputs="y mean? inverse_deviation?",
    attributes={"axis": _AXIS, "epsilon": _EPSILON, "stash_type": _STASH_TYPE},
    cost=per_element(_MEASURE_AND_SCALE),
    inplace=FIRST,
    float16=IN_SUMS,
)
def infer_layer_normalization(call: Call) -> Sequence[TensorSpec]:
    """Infer the outputs of `call`: like x; the statistics have length 1 from `axis` on."""
    x = call.spec(0)
    find_common_dtype(list_present(call), FLOATS)
    if x.shape is None:
        unknown = TensorSpec(_STATISTICS, None)
        return (x, unknown, unknown)
    axis = normalize_axis(call.attributes["axis"], len(x.shape))
    check_broadcastable(call.spec(1), x.shape, "scale")
    if call.has(2):
        check_broadcastable(call.spec(2), x.shape, "bias")
    # The axes stay, so that statistics broadcast against x again in the gradient.
    statistics = TensorSpec(_STATISTICS, (*x.shape[:axis], *(1 for _ in x.shape[axis:])))
    return (x, statistics, statistics)


@define(
    "RMSNormalization",
    inputs="x scale",
    attributes={"axis": _AXIS, "epsilon": _EPSILON, "stash_type": _STASH_TYPE},
    cost=per_element(_MEASURE_AND_SCALE),
    inplace=FIRST,
    float16=IN_SUMS,
)
def infer_rms_normalization(call: Call) -> Sequence[TensorSpec]:
    x = call.spec(0)
    check_dtype(x, FLOATS)
    check_dtype(call.spec(1), FLOATS, "scale")
    if x.shape is not None:
        normalize_axis(call.attributes["axis"], len(x.shape))
        check_broadcastable(call.spec(1), x.shape, "scale")
    # To scale comes last: x may have been in another dtype until then.
    return (TensorSpec(call.spec(1).dtype, x.shape),)


define(
    "LpNormalization",
    inputs="x",
    attributes={"axis": _AXIS, "p": Attribute(Kind.INT, 2, choices=(1, 2))},
    cost=per_element(_MEASURE_AND_SCALE),
    float16=IN_SUMS,
)(same_along_axis(FLOATS))


@define(
    "MeanVarianceNormalization",
    inputs="x",
    attributes={"axes": Attribute(Kind.INTS, (0, 2, 3))},
    cost=per_element(_MEASURE_AND_SCALE),
    inplace=FIRST,
    float16=IN_SUMS,
)
def infer_mean_variance_normalization(call: Call) -> Sequence[TensorSpec]:
    x = call.spec(0)
    check_dtype(x, FLOATS)
    if x.rank is not None:
        normalize_axes(call.attributes["axes"], x.rank)
    return (x,)


def _estimate_local_response(call: Call, outputs: Specs) -> int:
    """Estimate `call` with `outputs`: one addition per neighbouring channel, and a power."""
    return int(call.attributes["size"] + 12) * outputs[0].size


@define(
    "LRN",
    inputs="x",
    attributes={
        "alpha": Attribute(Kind.FLOAT, 1e-4),
        "beta": Attribute(Kind.FLOAT, 0.75),
        "bias": Attribute(Kind.FLOAT, 1.0),
        "size": Attribute(Kind.INT, minimum=1),
    },
    cost=_estimate_local_response,
    float16=IN_SUMS,
)
def infer_local_response_normalization(call: Call) -> Sequence[TensorSpec]:
    x = call.spec(0)
    check_dtype(x, FLOATS)
    check_rank(x, 2, _LAYOUT)
    return (x,)


def _check_per_channel(call: Call) -> TensorSpec:
    """Return x's spec in `call`; raise unless scale and bias have one value per channel of x."""
    x = call.spec(0)
    find_common_dtype(list_present(call), FLOATS)
    check_rank(x, 2, _LAYOUT)
    if x.shape is not None:
        check_per_channel(call, 1, x.shape[1], "scale")
        check_per_channel(call, 2, x.shape[1], "bias")
    return x
