"""Quantization: real numbers as integers, a scale and a zero point.

A real number r is stored as q = r / scale + zero point. There is one scale per tensor, one per
index along an axis, or one per block of some elements along an axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, define
from ..core.traits import DECODES, IN_SCALES, NEVER_NEGATIVE
from ..values.dims import ceildiv, normalize_axis
from ..values.dtypes import FLOATS_OF_8_BITS
from ..values.errors import ShapeError
from ..values.tensor import Shape, TensorSpec
from .inputs import FLOATS, SIGNED, check_dtype, may_equal
from .rules import per_element

QUANTIZED = ("int8", "uint8", "int16", "uint16", *FLOATS_OF_8_BITS)
"""Dtypes of quantized numbers."""

_AXIS = {"axis": Attribute(Kind.INT, 1), "block_size": Attribute(Kind.INT, 0, minimum=0)}


def check_named(spec: TensorSpec, dtypes: Sequence[str], label: str) -> None:
    if spec.dtype.name not in dtypes:
        raise ShapeError(f"{label} is {spec}, not {' or '.join(dtypes)}", fix="quantize it to one")


@define(
    "QuantizeLinear",
    inputs="x y_scale y_zero_point?",
    attributes={
        **_AXIS,
        "output_dtype": Attribute(Kind.DTYPE, None),
        "precision": Attribute(Kind.DTYPE, None),
        "saturate": Attribute(Kind.BOOL, True),
    },
    cost=per_element(4),
    float16=IN_SCALES,
)
def infer_quantize(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like x, in the zero point's dtype, or the one given, or uint8."""
    x, scale, given = call.spec(0), call.spec(1), call.attributes["output_dtype"]
    check_dtype(x, SIGNED)
    check_dtype(scale, SIGNED, "the scale")
    if call.attributes["precision"] is not None:
        check_dtype(TensorSpec(call.attributes["precision"], ()), FLOATS, "the precision")
    _check_granularity(call)
    dtype = call.spec(2).dtype if call.has(2) else given or "uint8"
    made = TensorSpec(dtype, x.shape)
    check_named(made, QUANTIZED, "the output")
    if given is not None and made.dtype != given:
        raise ShapeError(
            f"output_dtype is {given}, the zero point is {call.spec(2)}",
            fix="leave output_dtype out",
        )
    return (made,)


@define(
    "DequantizeLinear",
    inputs="x x_scale x_zero_point?",
    attributes={**_AXIS, "output_dtype": Attribute(Kind.DTYPE, None)},
    cost=per_element(2),
    traits=DECODES,
    float16=IN_SCALES,
)
def infer_dequantize(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like x, in the declared dtype, by default that of the scale."""
    x, scale = call.spec(0), call.spec(1)
    check_named(x, (*QUANTIZED, "int32"), "the input")
    check_dtype(scale, FLOATS, "the scale")
    _check_granularity(call)
    check_zero_point(call, 2, x, "the zero point")
    made = TensorSpec(call.attributes["output_dtype"] or scale.dtype, x.shape)
    check_dtype(made, FLOATS, "the output")
    return (made,)


@define(
    "DynamicQuantizeLinear",
    inputs="x",
    outputs="y y_scale y_zero_point",
    cost=per_element(6),
    traits=NEVER_NEGATIVE,
    float16=IN_SCALES,
)
def infer_dynamic_quantize(call: Call) -> Sequence[TensorSpec]:
    """Infer the outputs of `call`: x as uint8, and the scale and zero point for its range."""
    x = call.spec(0)
    check_named(x, ("float32",), "the input")
    return TensorSpec("uint8", x.shape), TensorSpec("float32", ()), TensorSpec("uint8", ())


def _check_granularity(call: Call) -> None:
    """Raise ShapeError unless scale and zero point in `call` are per tensor, axis or block."""
    x, scale = call.spec(0), call.spec(1)
    zero = call.spec(2).shape if call.has(2) else None
    single = scale.shape is not None and is_single(scale.shape)
    if zero is not None and not (single and is_single(zero)):
        check_shape(call.spec(2), scale.shape, "the zero point")
    if scale.shape is None or x.shape is None or single:
        return
    axis = normalize_axis(call.attributes["axis"], len(x.shape))
    block, wanted = call.attributes["block_size"], list(x.shape)
    wanted[axis] = ceildiv(wanted[axis], block or 1)
    check_shape(scale, tuple(wanted) if block else x.shape[axis : axis + 1], "the scale")


def is_single(shape: Shape) -> bool:
    """Return whether a scale of `shape` is one number for the whole tensor."""
    return len(shape) < 2 and all(may_equal(dim, 1) for dim in shape)


def check_shape(spec: TensorSpec, wanted: Shape | None, label: str) -> None:
    if spec.shape is None or wanted is None:
        return
    if len(spec.shape) != len(wanted) or not all(map(may_equal, spec.shape, wanted)):
        listed = ", ".join(map(str, wanted))
        raise ShapeError(f"{label} is {spec}, not of shape [{listed}]", fix="reshape it")


def check_zero_point(call: Call, index: int, x: TensorSpec, label: str) -> None:
    """Raise ShapeError about `label` unless zero point `index` of `call`, if given, is like `x`."""
    if call.has(index) and call.spec(index).dtype != x.dtype:
        raise ShapeError(f"{label} is {call.spec(index)}, its tensor {x}", fix="use one dtype")
