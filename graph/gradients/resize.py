"""The gradient of Resize, which along each axis is a product with a matrix."""

from __future__ import annotations

from typing import Any

from ..resampling import CROP, resized_axes
from .adjoint import Adjoint
from .elementwise import Gradients
from .formula import Term
from .registry import gradient

_SHARED = (
    *("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside"),
    *("mode", "nearest_mode"),
)


@gradient("Resize")
def resize(at: Adjoint) -> Gradients:
    """Along each axis a product with the transposed matrix.

    The matrix is what Resize makes of the rows of a unit matrix.
    """
    if at["keep_aspect_ratio_policy"] != "stretch":
        raise at.refuse("it chooses sizes by the aspect ratio", "give it scales, or final sizes")
    x, made = at.input(0), at.dy
    axes = resized_axes(at.node.attributes, x.rank)
    for place, axis in enumerate(axes):
        target = _target(at, place, len(axes))
        if not _stays(at, target[1]):
            made = _multiplied(made, _matrix(at, x, axis, target), axis)
    yield 0, made


def _stays(at: Adjoint, scale: Term | None) -> bool:
    """True when an axis is known to be shown as it is."""
    value = None if scale is None else scale.value
    crops = at["coordinate_transformation_mode"] == CROP
    return value is not None and value.item() == 1 and not crops


def _target(at: Adjoint, place: int, count: int) -> list[Term | None]:
    """Return region, scales and sizes of one axis, the latter as vectors of one number."""
    formula = at.formula
    found: list[Term | None] = []
    for index in (1, 2, 3):
        term = at.optional(index)
        if term is None or term.spec.shape == (0,):
            found.append(None)
            continue
        own = [place, place + count] if index == 1 else [place]
        value = term.value
        picked = formula.constant(own)
        found.append(
            term.op("Gather", picked)
            if value is None
            else formula.constant(value.reshape(-1)[own], value.dtype)
        )
    return found


def _matrix(at: Adjoint, x: Term, axis: int, target: list[Term | None]) -> Term:
    """Return the matrix that takes lines along an axis to resized ones."""
    formula = at.formula
    length = formula.shape_of(x, axis, axis + 1)
    unit = formula.filled(formula.joined(length, length), 0, x.dtype).op("EyeLike")
    shared: dict[str, Any] = {name: at[name] for name in _SHARED}
    return unit.op("Resize", *target, axes=[1], **shared)


def _multiplied(dy: Term, matrix: Term, axis: int) -> Term:
    """Return dy with its lines along an axis multiplied by the transposed matrix."""
    last = [i for i in range(dy.rank) if i != axis] + [axis]
    back = [last.index(i) for i in range(dy.rank)]
    turned = matrix.transposed([1, 0])
    return dy.transposed(last).op("MatMul", turned).transposed(back)
