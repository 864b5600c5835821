"""Operators that select elements by value, so that the number of results depends on values.

Each has a second rule for the most results: see `bound` in `define`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, Specs, define
from ..core.traits import (
    FIRST_FOLLOWS,
    IN_COORDINATES,
    IN_STEPS,
    LENGTH_BY_VALUES,
    NO_SLOPE_OF_PLACES,
    Part,
)
from ..values.dims import UNKNOWN, mul, multiply_all, normalize_axis
from ..values.errors import ShapeError
from ..values.tensor import Dim, TensorSpec
from .inputs import (
    ANY,
    BOOLS,
    check_dtype,
    check_rank,
    check_single,
    find_common_dtype,
    may_equal,
    read_integers,
)
from .slicing import replace_axis

_AXIS = Attribute(Kind.INT, None)


def _get_size(spec: TensorSpec) -> Dim:
    return UNKNOWN if spec.shape is None else multiply_all(spec.shape)


def _sort_cost(call: Call, outputs: Specs) -> int:
    # Sorting takes log₂ n comparisons for each element.
    size = call.spec(0).size
    return size * max(size.bit_length(), 1)


def _limit_non_zero(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: as many columns as x has elements."""
    check_dtype(call.spec(0), ANY)
    rank = call.spec(0).rank
    return (TensorSpec("int64", (UNKNOWN if rank is None else rank, _get_size(call.spec(0)))),)


@define(
    "NonZero",
    inputs="x",
    bound=_limit_non_zero,
    float16=IN_STEPS,
    lacks=LENGTH_BY_VALUES | NO_SLOPE_OF_PLACES,
)
def infer_non_zero(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: a row per axis, a column per element that is not zero."""
    (most,) = _limit_non_zero(call)
    assert most.shape is not None
    return (TensorSpec("int64", (most.shape[0], UNKNOWN)),)


def _limit_compress(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: as many slices as conditions, and no more than x has."""
    x, condition = call.spec(0), call.spec(1)
    check_dtype(condition, BOOLS, "the condition")
    if condition.rank not in (None, 1):
        raise ShapeError(f"the condition is {condition}", fix="flatten it")
    length: Dim = UNKNOWN if condition.shape is None else condition.shape[0]
    if call.attributes["axis"] is None:
        return (TensorSpec(x.dtype, (_find_least(length, _get_size(x)),)),)
    if x.shape is None:
        return (x,)
    axis = normalize_axis(call.attributes["axis"], len(x.shape))
    return (TensorSpec(x.dtype, replace_axis(x.shape, axis, _find_least(length, x.shape[axis]))),)


@define(
    "Compress",
    inputs="x condition",
    attributes={"axis": _AXIS},
    bound=_limit_compress,
    float16=FIRST_FOLLOWS,
    lacks=LENGTH_BY_VALUES,
)
def infer_compress(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: x, or x flattened, with some slices along the axis left out."""
    # Errors of the largest result are errors of any: one rule checks for both.
    (most,) = _limit_compress(call)
    return (_with_unknown(most, call.attributes["axis"] or 0),)


def _find_least(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return UNKNOWN if UNKNOWN in (a, b) else f"min({a},{b})"


def _with_unknown(spec: TensorSpec, axis: int) -> TensorSpec:
    if spec.shape is None:
        return spec
    return TensorSpec(spec.dtype, replace_axis(spec.shape, axis % len(spec.shape), UNKNOWN))


def _limit_unique(call: Call) -> Sequence[TensorSpec]:
    """Infer the outputs of `call`: the results if all elements are different."""
    x, axis = call.spec(0), call.attributes["axis"]
    check_dtype(x, ANY)
    # Flattened, it has one axis, as long as x has elements.
    if axis is None:
        kept, length = TensorSpec(x.dtype, (_get_size(x),)), _get_size(x)
    elif x.shape is None:
        kept, length = x, UNKNOWN
    else:
        kept, length = x, x.shape[normalize_axis(axis, len(x.shape))]
    return (kept, *[TensorSpec("int64", (length,))] * 3)


@define(
    "Unique",
    inputs="x",
    outputs="y indices? inverse_indices? counts?",
    attributes={"axis": _AXIS, "sorted": Attribute(Kind.BOOL, True)},
    cost=_sort_cost,
    bound=_limit_unique,
    float16=IN_STEPS,
    lacks=LENGTH_BY_VALUES | {Part.GRADIENT: "what is equal to what jumps"},
)
def infer_unique(call: Call) -> Sequence[TensorSpec]:
    """Infer x, or x flattened, without repetitions; where each is first, is now, how often."""
    # The inverse has an entry for each slice of x, whichever of them are kept: that is known.
    kept, indices, inverse, counts = _limit_unique(call)
    axis = call.attributes["axis"] or 0
    return _with_unknown(kept, axis), _with_unknown(indices, 0), inverse, _with_unknown(counts, 0)


def _limit_suppression(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: a row for each box of each class and image, up to the limit."""
    boxes, scores = call.spec(0), call.spec(1)
    _check_boxes(boxes, scores)
    _check_limits(call)
    if boxes.shape is None or scores.shape is None:
        return (TensorSpec("int64", (UNKNOWN, 3)),)
    # A box is put out for several classes at once, but for each class no more than once.
    limit = read_integers(call, 2, "max_output_boxes_per_class")
    most = boxes.shape[1]
    if not call.has(2):
        most = 0
    elif limit:
        most = _find_least(max(limit[0], 0), most)
    return (TensorSpec("int64", (mul(mul(boxes.shape[0], scores.shape[1]), most), 3)),)


@define(
    "NonMaxSuppression",
    inputs="boxes scores max_output_boxes_per_class? iou_threshold? score_threshold?",
    attributes={"center_point_box": Attribute(Kind.BOOL, False)},
    cost=lambda call, outputs: 8 * call.spec(1).size * max(call.spec(1).size.bit_length(), 1),
    bound=_limit_suppression,
    float16=IN_COORDINATES,
    lacks=LENGTH_BY_VALUES | NO_SLOPE_OF_PLACES,
)
def infer_suppression(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: a row (image, class, box) for each box that is kept."""
    _limit_suppression(call)
    return (TensorSpec("int64", (UNKNOWN, 3)),)


def _check_limits(call: Call) -> None:
    """Raise ShapeError unless each limit in `call` is one number, the overlap's in [0, 1]."""
    names = ("max_output_boxes_per_class", "iou_threshold", "score_threshold")
    for index, name in enumerate(names, 2):
        check_single(call, index, name)
    overlap = call.value(3) if call.has(3) else None
    if overlap is not None:
        check_overlap(float(overlap.reshape(())))


def check_overlap(threshold: float) -> None:
    if not 0 <= threshold <= 1:
        raise ShapeError(f"iou_threshold is {threshold:g}", fix="pass a number in [0, 1]")


def _check_boxes(boxes: TensorSpec, scores: TensorSpec) -> None:
    """Raise ShapeError unless `boxes` are (images, boxes, 4), `scores` (images, classes, boxes)."""
    for spec in (boxes, scores):
        check_rank(spec, 3, "[images, ..., ...]")
        if spec.dtype.name != "float32" or spec.rank not in (None, 3):
            raise ShapeError(f"boxes and scores are float32 of rank 3, not {spec}", fix="Cast it")
    find_common_dtype((boxes, scores))
    if boxes.shape is None or scores.shape is None:
        return
    # Boxes of an image are for all classes; scores are by class.
    pairs = zip(boxes.shape, (scores.shape[0], scores.shape[2], 4), strict=True)
    if not all(may_equal(a, b) for a, b in pairs):
        raise ShapeError(
            f"boxes {boxes} and scores {scores} do not fit together",
            fix="make them [images, boxes, 4] and [images, classes, boxes]",
        )
