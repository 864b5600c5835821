"""Resize: the place of an output in the input is a fraction of integers, exact on every device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.resampling import CROP, Resampling, read_target, resample_axes
from ...graph.values.tensor import TensorSpec
from .folds import find_extreme
from .indexing import choose_index_type, declare_coordinates, make_strides, write_offset
from .registry import THREADS, Code, Kernel, Parameter, count_groups, generates
from .types import is_float, is_narrow, load, store, to_computed_type, to_ctype, write_literal

FINEST = 1 << 30
FARTHEST = 16
"""The largest denominator of a region's bounds, and their largest magnitude: all fits in 64
bits."""


@dataclass(frozen=True)
class _Axis:
    """An axis, and the line on which its outputs lie: slope · i + intercept."""

    length: int
    resized: int
    slope: Fraction
    intercept: Fraction
    stretch: Fraction = Fraction(1)
    """The width of the filter in cells of the input."""

    @property
    def is_kept(self) -> bool:
        return self.length == self.resized and self.slope == 1 and self.intercept == 0

    @property
    def is_inside(self) -> bool:
        lowest, highest = self.ends()
        return lowest >= 0 and highest <= self.length - 1

    def ends(self) -> tuple[Fraction, Fraction]:
        last = self.slope * max(self.resized - 1, 0) + self.intercept
        return min(self.intercept, last), max(self.intercept, last)

    def floor(self, index: str, shift: Fraction = Fraction(0)) -> str:
        """Return the expression ⌊place + shift⌋ for the output at `index`; `shift` defaults to 0.

        C rounds quotients toward zero: whole numbers are added before and subtracted after.
        """
        lowest, highest = (end + shift for end in self.ends())
        up = max(0, -math.floor(lowest))
        constant = self.intercept + shift + up
        # With one common denominator all arithmetic is on whole numbers, and devices cannot round.
        below = math.lcm(self.slope.denominator, constant.denominator)
        top, add = int(self.slope * below), int(constant * below)
        fits = max(int((highest + up) * below), abs(top) * self.resized, add) < 1 << 31
        c, suffix = ("i32", "") if fits else ("i64", "L")
        number = f"{top}{suffix} * ({c}){index} + {add}{suffix}"
        return f"(i32)(({number}) / {below}{suffix} - {up})"

    def gap(self, index: str, cell: str, c: str) -> str:
        """Return how far, in C type `c`, `cell` lies after the place of the output at `index`."""
        below = math.lcm(self.slope.denominator, self.intercept.denominator)
        top, add = int(self.slope * below), int(self.intercept * below)
        # The distance is a fraction, too, rounded once when it becomes a float.
        number = f"(i64){cell} * {below}L - {top}L * (i64){index} - ({add}L)"
        return f"({c})({number}) / {write_literal(below, c)}"

    def is_outside(self, index: str) -> str:
        """Return the condition that the place of the output at `index` is outside of the input."""
        below = math.lcm(self.slope.denominator, self.intercept.denominator)
        top, add = int(self.slope * below), int(self.intercept * below)
        number = f"{top}L * (i64){index} + ({add}L)"
        return f"{number} < 0 || {number} > {(self.length - 1) * below}L"


def _find_line(how: Resampling, transformation: str) -> tuple[Fraction, Fraction]:
    """Return slope and intercept of places for `how` and `transformation`: see `compute_places`."""
    length, resized, width = how.length, how.resized, how.width
    if not resized or (transformation == "pytorch_half_pixel" and resized == 1):
        return Fraction(1), Fraction(0)
    if transformation == "asymmetric":
        return length / width, Fraction(0)
    if transformation == "align_corners":
        return ((length - 1) / (width - 1) if width != 1 else Fraction(1)), Fraction(0)
    if transformation == CROP:
        start, end = Fraction(how.start), Fraction(how.end)
        if resized == 1:
            return Fraction(1), (start + end) / 2 * (length - 1)
        return (end - start) * (length - 1) / (resized - 1), start * (length - 1)
    half = Fraction(1, 2)
    if transformation == "half_pixel_symmetric":
        return length / width, length * ((1 - resized) / width + 1) / 2 - half
    return length / width, length / width / 2 - half


def _list_axes(call: Call) -> list[_Axis]:
    target = read_target(call.values, call.attributes)
    axes: list[_Axis] = []
    for how in resample_axes(call.spec(0).static_shape, call.attributes, target):
        widens = call.attributes["antialias"] and how.width < how.length
        stretch = how.length / how.width if widens else Fraction(1)
        line = _find_line(how, call.attributes["coordinate_transformation_mode"])
        axis = _Axis(how.length, how.resized, *line, stretch)
        # Fewer axes need fewer divisions for coordinates.
        if axis.is_kept and axes and axes[-1].is_kept:
            length = axis.length * axes.pop().length
            axis = _Axis(length, length, Fraction(1), Fraction(0))
        axes.append(axis)
    return axes


def _refuse(call: Call) -> str | None:
    if any(call.has(index) and call.value(index) is None for index in range(1, 4)):
        return "the region, scales or sizes are computed"
    region = call.value(1)
    if call.attributes["coordinate_transformation_mode"] != CROP or region is None:
        return None
    bounds = list(map(Fraction, region.tolist()))
    if any(bound.denominator > FINEST or abs(bound) > FARTHEST for bound in bounds):
        return "the region's bounds have too many digits, or are far outside"
    return None


def _has_wide_sums(call: Call) -> bool:
    dtype, has_sums = call.spec(0).dtype, call.attributes["mode"] != "nearest"
    return has_sums and not is_float(dtype) and dtype.itemsize > 2


@generates("Resize", unless=_refuse, float64=_has_wide_sums)
def resize(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: the nearest cells of x, or weighted sums of cells."""
    x, y, attributes = call.spec(0), outputs[0], call.attributes
    axes = _list_axes(call)
    c = choose_index_type(x.size + THREADS, y.size + THREADS)
    if attributes["mode"] == "nearest":
        element = "u16" if is_narrow(x.dtype) else to_ctype(x.dtype)
        body = _declare_nearest(axes, attributes, c)
        value = f"x[{write_offset(make_strides([axis.length for axis in axes]), 'c')}]"
        write = f"y[i] = {value};"
    else:
        element, body = to_ctype(x.dtype), _interpolate(axes, x, attributes, c)
        write = _write_narrow(y, "sum")
    begin = [
        f"const {c} i = ({c})GROUP * {THREADS} + THREAD;",
        f"if (i >= {y.size}) return;",
        *declare_coordinates("i", [axis.resized for axis in axes], "o", c),
    ]
    if attributes["coordinate_transformation_mode"] == CROP:
        begin += _extrapolate(axes, y, attributes)
    parameters = (Parameter("x", element, "input", 0), Parameter("y", element, "output", 0))
    text = "\n".join((*begin, *body, write))
    return Code((Kernel("resize", parameters, text, count_groups(y.size)),))


def _extrapolate(axes: Sequence[_Axis], y: TensorSpec, attributes: Attributes) -> list[str]:
    """Return statements for places outside of `axes`: store a value of `attributes` in `y`."""
    value = np.array(attributes["extrapolation_value"]).astype(y.dtype)
    if is_narrow(y.dtype) and attributes["mode"] == "nearest":
        write = f"y[i] = {int(value.view(np.uint16))};"
    else:
        write = store(y.dtype, "y", "i", write_literal(value.item(), to_computed_type(y.dtype)))
    return [
        f"if ({axis.is_outside(f'o{number}')}) {{ {write} return; }}"
        for number, axis in enumerate(axes)
        if not axis.is_inside
    ]


def _declare_nearest(axes: Sequence[_Axis], attributes: Attributes, c: str) -> list[str]:
    half = Fraction(1, 2)
    statements = []
    for number, axis in enumerate(axes):
        if axis.is_kept:
            statements.append(f"const {c} c{number} = o{number};")
            continue
        match attributes["nearest_mode"]:
            case "floor":
                cell = axis.floor(f"o{number}")
            case "round_prefer_ceil":
                cell = axis.floor(f"o{number}", half)
            # Whole numbers can only be rounded down.
            case mode:  # ⌈p⌉ is -⌊-p⌋
                down = _Axis(axis.length, axis.resized, -axis.slope, -axis.intercept)
                shift = half if mode == "round_prefer_floor" else Fraction(0)
                cell = f"-{down.floor(f'o{number}', shift)}"
        statements.append(f"const {c} c{number} = {_clamp(cell, axis.length)};")
    return statements


def _clamp(cell: str, length: int) -> str:
    return f"max(min({cell}, {length - 1}), 0)"


def _interpolate(axes: Sequence[_Axis], x: TensorSpec, attributes: Attributes, c: str) -> list[str]:
    """Return the statements that add up cells of `x`, weighted along `axes`, in the variable sum.

    `attributes` are those of Resize; indices have the C type `c`.
    """
    real = _choose_sum_type(x.dtype)
    changed = [number for number, axis in enumerate(axes) if not axis.is_kept]
    statements = [
        f"const {c} c{number} = o{number};" for number, axis in enumerate(axes) if axis.is_kept
    ]
    for number in changed:
        statements += _begin_axis(number, axes[number], attributes, real)
    at = write_offset(make_strides([axis.length for axis in axes]), "c")
    weight = " * ".join(f"w{number}" for number in changed)
    value = f"({real}){load(x.dtype, 'x', at)}"
    inner = [f"sum = sum + {weight} * {value};" if weight else f"sum = {value};"]
    # Inside out: the last axis, with neighbouring cells, is the innermost loop.
    for number in reversed(changed):
        inner = _loop_over_cells(number, axes[number], attributes, real, c, inner)
    totals = [f"sum = sum / total{n};" for n in changed if _is_normalized(axes[n], attributes)]
    return [*statements, f"{real} sum = 0;", *inner, *totals]


def _is_normalized(axis: _Axis, attributes: Attributes) -> bool:
    return attributes["exclude_outside"] or axis.stretch != 1


def _find_radius(axis: _Axis, attributes: Attributes) -> Fraction:
    return (2 if attributes["mode"] == "cubic" else 1) * axis.stretch


def _begin_axis(number: int, axis: _Axis, attributes: Attributes, real: str) -> list[str]:
    """Return the declarations of the first cell on `axis`, its gap, and the sum of weights.

    The axis has this `number`; weights follow from `attributes`, in C type `real`.
    """
    # A cell at exactly the filter's width has weight zero: the next one is the first.
    first = axis.floor(f"o{number}", -_find_radius(axis, attributes))
    statements = [
        f"const i32 first{number} = {first} + 1;",
        f"const {real} gap{number} = {axis.gap(f'o{number}', f'first{number}', real)};",
    ]
    if _is_normalized(axis, attributes):
        add = [f"total{number} = total{number} + w{number};"]
        statements += [
            f"{real} total{number} = 0;",
            *_loop_over_cells(number, axis, attributes, real, "", add),
            # If all cells are outside, the sum stays 0.
            f"if (total{number} == 0) total{number} = 1;",
        ]
    return statements


def _loop_over_cells(
    number: int, axis: _Axis, attributes: Attributes, real: str, c: str, inner: Sequence[str]
) -> list[str]:
    """Return the loop of `inner` over cells with weights, which defines `w` and, if not empty, `c`.

    `axis` has this `number`; weights follow from `attributes`, with type `real`; indices have `c`.
    """
    taps = math.ceil(2 * _find_radius(axis, attributes))
    length = axis.length
    distance = f"fabs(gap{number} + ({real})t{number})"
    if axis.stretch != 1:
        distance += f" / {write_literal(float(axis.stretch), real)}"
    outside = f"first{number} + t{number} < 0 || first{number} + t{number} >= {length}"
    skip = f" || {outside}" if attributes["exclude_outside"] else ""
    cell = _clamp(f"first{number} + t{number}", length)
    return [
        f"for (i32 t{number} = 0; t{number} < {taps}; t{number}++) {{",
        f"const {real} d{number} = {distance};",
        f"const {real} w{number} = {_write_weight(f'd{number}', attributes, real)};",
        f"if (w{number} == 0{skip}) continue;",
        *([f"const {c} c{number} = {cell};"] if c else []),
        *inner,
        "}",
    ]


def _write_weight(d: str, attributes: Attributes, real: str) -> str:
    """Return the filter of `attributes` at distance `d`, in C type `real`: a triangle or cubic."""
    one, zero = write_literal(1, real), write_literal(0, real)
    if attributes["mode"] == "linear":
        return f"fmax({one} - {d}, {zero})"
    a = attributes["cubic_coeff_a"]
    first, second, third = (write_literal(number, real) for number in (a + 2, a + 3, a))
    inner = f"({first} * {d} - {second}) * {d} * {d} + {one}"
    five, eight, four = (write_literal(number, real) for number in (5, 8, 4))
    outer = f"{third} * ((({d} - {five}) * {d} + {eight}) * {d} - {four})"
    return f"({d} <= {one} ? {inner} : {d} < {write_literal(2, real)} ? {outer} : {zero})"


def _choose_sum_type(dtype: np.dtype[Any]) -> str:
    return "f64" if np.result_type(dtype, np.float32) == np.float64 else "f32"


def _write_narrow(y: TensorSpec, total: str) -> str:
    """Return the statement that writes `total` to `y`, rounded and clipped if `y` has integers."""
    if is_float(y.dtype):
        return store(y.dtype, "y", "i", total)
    real = _choose_sum_type(y.dtype)
    low, high = (find_extreme(y.dtype, name) for name in ("min", "max"))
    wide = np.float64(high) if real == "f64" else np.float32(high)
    if int(wide) > high:  # the largest integers of 64 bits are no floats
        wide = np.nextafter(wide, type(wide)(0))
    clipped = (
        f"fmin(fmax(rint({total}), {write_literal(low, real)}), {write_literal(float(wide), real)})"
    )
    return f"y[i] = ({to_ctype(y.dtype)}){clipped};"
