"""Operators that read a tensor at computed places, which may lie between its cells."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, Specs, define
from ..core.traits import ARRAY_KERNEL, IN_COORDINATES, PRIMITIVE
from ..values.dims import UNKNOWN
from ..values.errors import ShapeError
from ..values.tensor import Dim, TensorSpec
from .inputs import (
    ANY,
    FLOATS,
    INTEGERS,
    check_dtype,
    check_form,
    check_rank,
    find_common_dtype,
    may_equal,
    read_integers,
)

_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


def _estimate_grid_sample(call: Call, outputs: Specs) -> int:
    points = outputs[0].size
    for _ in outputs[0].static_shape[2:]:
        points *= _TAPS[call.attributes["mode"]]
    return 2 * points


@define(
    "GridSample",
    inputs="x grid",
    attributes={
        "align_corners": Attribute(Kind.BOOL, False),
        "mode": Attribute(Kind.STRING, "linear", choices=tuple(_TAPS)),
        "padding_mode": Attribute(Kind.STRING, "zeros", choices=("zeros", "border", "reflection")),
    },
    cost=_estimate_grid_sample,
    float16=IN_COORDINATES,
    lacks=PRIMITIVE | ARRAY_KERNEL,
)
def infer_grid_sample(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`.

    (batch, channels, *spatial), (batch, *outputs, rank) → (batch, channels, *outputs). Coordinates
    that are NaN, and infinite ones that are mirrored, are interpolated to NaN, and to 0 among
    integers. The nearest cell to them is outside, or else the first along their axis.
    """
    x, grid = call.spec(0), call.spec(1)
    check_dtype(x, ANY)
    check_dtype(grid, FLOATS, "the grid")
    check_rank(x, 3, "(batch, channels, *spatial)")
    check_rank(grid, 3, "(batch, *outputs, number of spatial dimensions)")
    if x.shape is None or grid.shape is None:
        return (TensorSpec(x.dtype, None),)
    if len(x.shape) != len(grid.shape) or not may_equal(grid.shape[-1], len(x.shape) - 2):
        raise ShapeError(
            f"the grid {grid} does not name places in the input {x}",
            fix=f"make its shape [{x.shape[0]}, *outputs, {len(x.shape) - 2}]",
        )
    _check_batches(x.shape[0], grid.shape[0], "the grid")
    _check_cells(x, grid.shape[1:-1])
    return (TensorSpec(x.dtype, (*x.shape[:2], *grid.shape[1:-1])),)


def _check_batches(batch: Dim, other: Dim, label: str) -> None:
    if not may_equal(batch, other):
        raise ShapeError(
            f"the input is a batch of {batch}, {label} one of {other}", fix="make them equal"
        )


def _check_cells(x: TensorSpec, outputs: Sequence[Dim]) -> None:
    if x.shape is not None and 0 in x.shape[2:] and 0 not in outputs:
        raise ShapeError(f"the input {x} has no cells to read", fix="feed a larger one")


@define(
    "AffineGrid",
    inputs="theta size",
    outputs="grid",
    attributes={"align_corners": Attribute(Kind.BOOL, False)},
    cost=lambda call, outputs: outputs[0].size * 2 * call.spec(0).static_shape[2],
    float16=IN_COORDINATES,
    lacks=PRIMITIVE | ARRAY_KERNEL,
)
def infer_affine_grid(call: Call) -> Sequence[TensorSpec]:
    """Infer (batch, rank, rank + 1), (batch, channels, *spatial) → (batch, *spatial, rank)."""
    theta, size = call.spec(0), read_integers(call, 1, "the size")
    check_dtype(theta, FLOATS, "theta")
    rank = _get_spatial_rank(call, size)
    if rank is None:
        return (TensorSpec(theta.dtype, None),)
    if rank not in (2, 3):
        raise ShapeError(
            f"a grid over {rank} spatial dimensions is not supported",
            fix="use a size of (batch, channels, *spatial) with 2 or 3 of them",
        )
    batch = _batch_of_matrices(theta, rank)
    if size is None:
        return (TensorSpec(theta.dtype, (batch, *(UNKNOWN,) * rank, rank)),)
    if min(size) < 0:
        raise ShapeError(f"{list(size)} is not a shape", fix="use lengths ≥ 0")
    _check_batches(batch, size[0], "the size")
    return (TensorSpec(theta.dtype, (size[0], *size[2:], rank)),)


def _get_spatial_rank(call: Call, size: Sequence[int] | None) -> int | None:
    if size is not None:
        return len(size) - 2
    theta, count = call.spec(0).shape, call.spec(1).shape
    if count is not None and len(count) == 1 and isinstance(count[0], int):
        return count[0] - 2
    known = theta is not None and len(theta) == 3 and isinstance(theta[1], int)
    return int(theta[1]) if known and theta is not None else None


def _batch_of_matrices(theta: TensorSpec, rank: int) -> Dim:
    shape = theta.shape
    if shape is None:
        return UNKNOWN
    if len(shape) != 3 or not all(map(may_equal, shape[1:], (rank, rank + 1))):
        raise ShapeError(
            f"theta {theta} holds no affine maps of {rank} dimensions",
            fix=f"make its shape [batch, {rank}, {rank + 1}]",
        )
    return shape[0]


def _estimate_roi_align(call: Call, outputs: Specs) -> int:
    # The samples of a region may depend on its size; two along each axis are usual.
    samples = max(call.attributes["sampling_ratio"], 0) or 2
    return 8 * samples**2 * outputs[0].size


@define(
    "RoiAlign",
    inputs="x rois batch_indices",
    attributes={
        "coordinate_transformation_mode": Attribute(
            Kind.STRING, "half_pixel", choices=("half_pixel", "output_half_pixel")
        ),
        "mode": Attribute(Kind.STRING, "avg", choices=("avg", "max")),
        "output_height": Attribute(Kind.INT, 1, minimum=1),
        "output_width": Attribute(Kind.INT, 1, minimum=1),
        "sampling_ratio": Attribute(Kind.INT, 0, minimum=0),
        "spatial_scale": Attribute(Kind.FLOAT, 1.0),
    },
    cost=_estimate_roi_align,
    float16=IN_COORDINATES,
    lacks=PRIMITIVE | ARRAY_KERNEL,
)
def infer_roi_align(call: Call) -> Sequence[TensorSpec]:
    """Infer (batch, channels, h, w), (regions, 4) → (regions, channels, out_h, out_w)."""
    x, rois, owners = (call.spec(index) for index in range(3))
    dtype = find_common_dtype((x, rois), FLOATS)
    check_dtype(owners, INTEGERS, "batch_indices")
    check_form(x, (None,) * 4, "the input")
    check_form(rois, (None, 4), "rois")
    check_form(owners, (None,), "batch_indices")
    counts = [spec.shape[0] for spec in (rois, owners) if spec.shape is not None]
    if len(counts) == 2 and not may_equal(*counts):
        raise ShapeError(
            f"there are {counts[0]} regions and {counts[1]} batch_indices", fix="give one for each"
        )
    if x.shape is None or not counts:
        return (TensorSpec(dtype, None),)
    known = [count for count in counts if isinstance(count, int)]
    count = (known or counts)[0]
    _check_cells(x, (count,))
    sizes = (call.attributes["output_height"], call.attributes["output_width"])
    return (TensorSpec(dtype, (count, x.shape[1], *sizes)),)
