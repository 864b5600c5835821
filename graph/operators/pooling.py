"""Pooling: one number from each window over the spatial axes, or from each whole plane.

MaxPoolGradient is an operator of plait's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..core.attribute import Attribute, Attributes, Kind
from ..core.operator import Call, Specs, define
from ..core.traits import (
    FIRST_FOLLOWS,
    FOLLOWS,
    IN_GRADIENTS,
    IN_SUMS,
    MAXIMA,
    NEVER_NEGATIVE,
    PRIMITIVE,
)
from ..values.dims import UNKNOWN, add, mul
from ..values.errors import ShapeError
from ..values.tensor import Dim, Shape, TensorSpec
from .inputs import (
    FLOATS,
    NUMBERS,
    check_dtype,
    check_form,
    check_rank,
    may_equal,
    read_integers,
    read_rank,
)
from .rules import per_input_element
from .windows import WINDOW_ATTRIBUTES, Window, resolve_window

_LAYOUT = "(batch, channels, length...)"
_WINDOW = {
    **WINDOW_ATTRIBUTES,
    "ceil_mode": Attribute(Kind.BOOL, False),
    "kernel_shape": Attribute(Kind.INTS, minimum=1),
}
_POWER = Attribute(Kind.INT, 2, minimum=1)


def _estimate_windows(call: Call, outputs: Specs) -> int:
    return math.prod(call.attributes["kernel_shape"]) * outputs[0].size


@define(
    "MaxPool",
    inputs="x",
    outputs="y indices?",
    attributes={**_WINDOW, "storage_order": Attribute(Kind.INT, 0, choices=(0, 1))},
    cost=_estimate_windows,
    traits=MAXIMA,
    float16=FOLLOWS,
)
def infer_max_pool(call: Call) -> Sequence[TensorSpec]:
    x = call.spec(0)
    check_dtype(x, NUMBERS)
    y = _pool(x, call)
    return (y, TensorSpec("int64", y.shape))


@define(
    "AveragePool",
    inputs="x",
    attributes={**_WINDOW, "count_include_pad": Attribute(Kind.BOOL, False)},
    cost=_estimate_windows,
    float16=FOLLOWS,
)
@define(
    "LpPool",
    inputs="x",
    attributes={**_WINDOW, "p": _POWER},
    cost=_estimate_windows,
    traits=NEVER_NEGATIVE,
    float16=IN_SUMS,
)
def infer_pool(call: Call) -> Sequence[TensorSpec]:
    x = call.spec(0)
    check_dtype(x, FLOATS)
    return (_pool(x, call),)


@define(
    "GlobalLpPool",
    inputs="x",
    attributes={"p": _POWER},
    cost=per_input_element(1),
    traits=NEVER_NEGATIVE,
    float16=IN_SUMS,
)
@define("GlobalMaxPool", inputs="x", cost=per_input_element(1), float16=FOLLOWS)
@define("GlobalAveragePool", inputs="x", cost=per_input_element(1), float16=IN_SUMS)
def infer_global_pool(call: Call) -> Sequence[TensorSpec]:
    x = call.spec(0)
    check_dtype(x, FLOATS)
    if x.shape is None:
        return (x,)
    check_rank(x, 3, _LAYOUT)
    if 0 in x.shape[2:]:
        raise ShapeError(f"{x} has planes without cells", fix="pool over at least one cell")
    return (TensorSpec(x.dtype, (*x.shape[:2], *(1 for _ in x.shape[2:]))),)


@define(
    "MaxUnpool",
    inputs="x indices output_shape?",
    attributes={name: _WINDOW[name] for name in ("kernel_shape", "pads", "strides")},
    float16=FIRST_FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_max_unpool(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: the shape that a MaxPool would take to x's, or the one given."""
    x, indices = call.spec(0), call.spec(1)
    if indices.dtype != np.int64:
        raise ShapeError(f"the indices must be int64, got {indices}", fix="insert a Cast")
    if x.shape is None:
        return (x,)
    check_rank(x, 3, _LAYOUT)
    _check_like(indices, x.shape)
    shape = infer_unpooled_shape(x.shape, call.attributes)
    if call.has(2):
        given = call.value(2)
        shape = (UNKNOWN,) * len(shape) if given is None else _check_given_shape(given, x.shape)
    return (TensorSpec(x.dtype, shape),)


def infer_unpooled_shape(shape: Shape, attributes: Attributes) -> Shape:
    """Return the shape, unpooled from `shape`, that the indices of a MaxUnpool count in."""
    kernel, rank = attributes["kernel_shape"], len(shape) - 2
    strides = attributes["strides"] or (1,) * rank
    pads = attributes["pads"] or (0,) * (2 * rank)
    if not len(kernel) == len(strides) == len(pads) / 2 == rank:
        raise ShapeError(
            f"kernel_shape, strides and pads do not describe {rank} spatial dimensions",
            fix="give a size and a stride per spatial dimension, and two pads",
        )
    # Without the rest after the last window: its length cannot be known from the result.
    spatial = (
        add(mul(add(dim, -1), stride), size - begin - end)
        for dim, stride, size, begin, end in zip(
            shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True
        )
    )
    return (*shape[:2], *spatial)


def find_pooling_window(shape: Shape, attributes: Attributes) -> tuple[Window | None, Shape]:
    kernel, ceil_mode = attributes["kernel_shape"], attributes["ceil_mode"]
    return resolve_window(shape[2:], attributes, kernel, ceil_mode=ceil_mode)


def _pool(x: TensorSpec, call: Call) -> TensorSpec:
    if x.shape is None:
        return x
    check_rank(x, 3, _LAYOUT)
    _, outputs = find_pooling_window(x.shape, call.attributes)
    return TensorSpec(x.dtype, (*x.shape[:2], *outputs))


def _check_like(indices: TensorSpec, shape: Shape) -> None:
    if indices.shape is None:
        return
    if len(indices.shape) != len(shape) or not all(map(may_equal, indices.shape, shape)):
        raise ShapeError(
            f"indices {indices} do not fit an input of shape [{', '.join(map(str, shape))}]",
            fix="pass one index per element: MaxPool's second output",
        )


def _check_given_shape(
    given: np.ndarray[tuple[int, ...], np.dtype[np.int64]], shape: Shape
) -> Shape:
    wanted: tuple[Dim, ...] = tuple(int(length) for length in given)
    if len(wanted) != len(shape) or not all(map(may_equal, wanted[:2], shape[:2])):
        raise ShapeError(
            f"output_shape {list(wanted)} does not fit [{', '.join(map(str, shape))}]",
            fix="keep batch and channels, and give one length per spatial dimension",
        )
    return wanted


_SHAPE = 2


@define(
    "MaxPoolGradient",
    inputs="dy indices shape",
    attributes={
        **WINDOW_ATTRIBUTES,
        "ceil_mode": Attribute(Kind.BOOL, False),
        "kernel_shape": Attribute(Kind.INTS, minimum=1),
    },
    cost=per_input_element(1),
    float16=IN_GRADIENTS,
    lacks=PRIMITIVE,
)
def infer_max_pool_gradient(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: the shape given, which makes windows of dy's shape."""
    dy, indices = call.spec(0), call.spec(1)
    check_dtype(dy, FLOATS)
    if indices.dtype != np.int64:
        raise ShapeError(f"the indices must be int64, got {indices}", fix="insert a Cast")
    if dy.shape is not None:
        check_form(indices, dy.shape, "the indices")
    shape = read_integers(call, _SHAPE, "the shape")
    if shape is None:
        # A tensor and its pooled form have the same rank.
        rank = dy.rank or read_rank(call, _SHAPE)
        return (TensorSpec(dy.dtype, None if rank is None else (UNKNOWN,) * rank),)
    _check_windows(call, shape)
    return (TensorSpec(dy.dtype, shape),)


def _check_windows(call: Call, shape: Shape) -> None:
    """Raise ShapeError unless `shape` has as many windows as dy in `call` has numbers."""
    dy = call.spec(0)
    if len(shape) != len(call.attributes["kernel_shape"]) + 2 or dy.rank not in (None, len(shape)):
        raise ShapeError(
            f"{list(shape)} is not the shape of what was pooled to {dy}",
            fix="pass the shape of MaxPool's input",
        )
    _, outputs = find_pooling_window(shape, call.attributes)
    made = (*shape[:2], *outputs)
    if dy.shape is not None and not all(map(may_equal, made, dy.shape)):
        raise ShapeError(
            f"a tensor of shape {list(shape)} has windows of shape {list(made)}, dy is {dy}",
            fix="pass MaxPool's attributes, and the gradient of what it returned",
        )
