"""Resize: a tensor sampled at other places, on a grid of another size."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, Specs, define
from ..core.traits import FIRST_FOLLOWS, PRIMITIVE
from ..values.dims import UNKNOWN
from ..values.errors import ShapeError
from ..values.tensor import TensorSpec
from .inputs import NUMBERS, check_dtype, may_equal
from .resampling import CROP, infer_resized_shape, list_resized_axes, read_target

_TAPS = {"nearest": 0, "linear": 2, "cubic": 4}


def _resize_cost(call: Call, outputs: Specs) -> int:
    """Estimate `call` with `outputs`: a product and a sum for each cell read along each axis."""
    taps = _TAPS[call.attributes["mode"]]
    return 2 * taps * len(outputs[0].static_shape) * outputs[0].size


@define(
    "Resize",
    inputs="x roi? scales? sizes?",
    attributes={
        "antialias": Attribute(Kind.BOOL, False),
        "axes": Attribute(Kind.INTS, None),
        "coordinate_transformation_mode": Attribute(
            Kind.STRING,
            "half_pixel",
            choices=(
                "half_pixel",
                "half_pixel_symmetric",
                "pytorch_half_pixel",
                "align_corners",
                "asymmetric",
                CROP,
            ),
        ),
        "cubic_coeff_a": Attribute(Kind.FLOAT, -0.75),
        "exclude_outside": Attribute(Kind.BOOL, False),
        "extrapolation_value": Attribute(Kind.FLOAT, 0.0),
        "keep_aspect_ratio_policy": Attribute(
            Kind.STRING, "stretch", choices=("stretch", "not_larger", "not_smaller")
        ),
        "mode": Attribute(Kind.STRING, "nearest", choices=tuple(_TAPS)),
        "nearest_mode": Attribute(
            Kind.STRING,
            "round_prefer_floor",
            choices=("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
        ),
    },
    cost=_resize_cost,
    float16=FIRST_FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_resize(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: scaled or given lengths, unknown unless they are constant."""
    x = call.spec(0)
    if call.attributes["mode"] != "nearest":
        check_dtype(x, NUMBERS)
    crops = call.attributes["coordinate_transformation_mode"] == CROP
    has_scales, has_sizes = _is_given(call, 2), _is_given(call, 3)
    if has_scales == has_sizes:
        raise ShapeError(
            f"Resize got {'both' if has_scales else 'neither'} scales and sizes",
            fix="give one of the two",
        )
    if crops and not _is_given(call, 1):
        raise ShapeError(f"{CROP} needs a region", fix="give roi")
    if x.shape is None:
        return (x,)
    axes = list_resized_axes(call.attributes, len(x.shape))
    if not axes:
        raise ShapeError("there is no axis to resize", fix="leave Resize out")
    told = 2 if has_scales else 3
    _check_listed(call.spec(told), len(axes), "scales" if has_scales else "sizes")
    if crops:
        _check_listed(call.spec(1), 2 * len(axes), "roi")
    if any(call.value(index) is None for index in ((told, 1) if crops else (told,))):
        dims = (UNKNOWN if axis in axes else dim for axis, dim in enumerate(x.shape))
        return (TensorSpec(x.dtype, tuple(dims)),)
    target = read_target(call.values, call.attributes)
    return (TensorSpec(x.dtype, infer_resized_shape(x.shape, call.attributes, target)),)


def _check_listed(spec: TensorSpec, count: int, label: str) -> None:
    if spec.shape is None or (len(spec.shape) == 1 and may_equal(spec.shape[0], count)):
        return
    raise ShapeError(
        f"{label} is {spec}, a list of {count} is needed",
        fix="give one per axis (roi: two), and name the axes if they are not all",
    )


def _is_given(call: Call, index: int) -> bool:
    """Return whether optional input `index` of `call` is given; older exporters leave it empty."""
    return call.has(index) and call.spec(index).shape != (0,)
