"""The gradient of Resize, which is a product with a matrix along each axis."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ..operators.resampling import CROP, list_resized_axes
from .elementwise import Gradients
from .formula import Term
from .registry import Adjoint, gradient

_SHARED = (
    *("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside"),
    *("mode", "nearest_mode"),
)

_REGION, _SCALES, _SIZES = 1, 2, 3
"""Inputs after the tensor."""


@gradient("Resize")
def resize(at: Adjoint) -> Gradients:
    # Along each axis dy is multiplied by the transposed matrix: the rows of a unit matrix, resized.
    x, made = at.input(0), at.dy
    axes = list_resized_axes(at.node.attributes, x.rank)
    stretches = _find_sizes(at) is None or at["keep_aspect_ratio_policy"] == "stretch"
    crops = at["coordinate_transformation_mode"] == CROP
    for place, axis in enumerate(axes):
        target = _pick_target(at, place, len(axes))
        if not (stretches or crops):
            made = _multiply(made, _make_ratio_matrix(at, x, axis), axis)
        elif not _is_copied(at, target[1]):
            if not stretches:  # a region is stretched at any ratio
                target[2] = at.formula.shape_of(at.output(), axis, axis + 1)
            made = _multiply(made, _make_matrix(at, x, axis, target), axis)
    yield 0, made


def _find_sizes(at: Adjoint) -> Term | None:
    found = at.optional(_SIZES)
    return None if found is None or found.spec.shape == (0,) else found


def _is_copied(at: Adjoint, scale: Term | None) -> bool:
    value = None if scale is None else scale.value
    crops = at["coordinate_transformation_mode"] == CROP
    return value is not None and value.item() == 1 and not crops


def _pick_target(at: Adjoint, place: int, count: int) -> list[Term | None]:
    """Return the region, scales and sizes of `at`, if any, for axis `place` of `count`."""
    formula = at.formula
    found: list[Term | None] = []
    for index in (_REGION, _SCALES, _SIZES):
        term = at.optional(index)
        if term is None or term.spec.shape == (0,):
            found.append(None)
            continue
        own = [place, place + count] if index == _REGION else [place]
        value = term.value
        picked = formula.constant(own)
        found.append(
            term.op("Gather", picked)
            if value is None
            else formula.constant(value.reshape(-1)[own], value.dtype)
        )
    return found


def _make_matrix(at: Adjoint, x: Term, axis: int, target: list[Term | None]) -> Term:
    """Return the matrix by which `at` resizes lines of `x` along `axis` to `target`."""
    formula = at.formula
    length = formula.shape_of(x, axis, axis + 1)
    unit = formula.filled(formula.joined(length, length), 0, x.dtype).op("EyeLike")
    shared: dict[str, Any] = {name: at[name] for name in _SHARED}
    return unit.op("Resize", *target, axes=[1], **shared)


def _find_ratio(at: Adjoint, x: Term) -> tuple[Fraction, dict[int, int]]:
    """Return the ratio that `at` uses for all axes of `x`, and the requested size of each."""
    sizes, axes = _find_sizes(at), list_resized_axes(at.node.attributes, x.rank)
    value = None if sizes is None else sizes.value
    lengths = [dim for dim in map((x.spec.shape or ()).__getitem__, axes) if isinstance(dim, int)]
    if value is None or len(lengths) != len(axes):
        raise at.refused_error(
            "the ratio that it keeps is not known",
            "give its input a shape of numbers and its sizes as a constant",
        )
    asked = [int(size) for size in value.reshape(-1)]
    choose = min if at["keep_aspect_ratio_policy"] == "not_larger" else max
    return choose(map(Fraction, asked, lengths)), dict(zip(axes, asked, strict=True))


def _make_ratio_matrix(at: Adjoint, x: Term, axis: int) -> Term:
    """Return the matrix by which `at` resizes `axis` of `x` if one ratio decides all sizes.

    The axis that has this ratio is added as a second one, as short as possible.
    """
    formula, (ratio, asked) = at.formula, _find_ratio(at, x)
    length = formula.shape_of(x, axis, axis + 1)
    matrix = formula.joined(length, length)
    if not ratio:
        return formula.filled(formula.joined(length, formula.constant([0])), 0, x.dtype)
    unit = formula.filled(matrix, 0, x.dtype).op("EyeLike").op("Unsqueeze", formula.constant([2]))
    cube = unit.expanded(formula.joined(matrix, formula.constant([ratio.denominator])))
    sizes = formula.constant([asked[axis], ratio.numerator])
    kept = {name: at[name] for name in (*_SHARED, "keep_aspect_ratio_policy")}
    made = cube.op("Resize", None, None, sizes, axes=[1, 2], **kept)
    return made.op("Gather", formula.constant(0), axis=2)


def _multiply(dy: Term, matrix: Term, axis: int) -> Term:
    last = [i for i in range(dy.rank) if i != axis] + [axis]
    back = [last.index(i) for i in range(dy.rank)]
    turned = matrix.transposed([1, 0])
    return dy.transposed(last).op("MatMul", turned).transposed(back)
