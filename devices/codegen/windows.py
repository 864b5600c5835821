"""Windows that slide over images: the cells that an output reads, in C.

A window that slides over the output of a transposed convolution reaches each output with some of
its taps only: with a stride of 2, every second one. Outputs that are a stride apart have the same
taps: they form a phase, and only these taps are visited.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...graph.operators.windows import Window
from .indexing import declare_coordinates, make_strides, write_offset


class Cell(NamedTuple):
    """The cell under a tap: statements, the condition that it exists, its offset."""

    statements: tuple[str, ...]
    condition: str
    offset: str


class _Axis(NamedTuple):
    """An axis of an image and of the window, by number, and the number of phases of its outputs."""

    number: int
    length: int
    outputs: int
    size: int
    stride: int
    apart: int
    pad: int
    phases: int


@dataclass(frozen=True)
class Sliding:
    """A window over a plane of cells, and its outputs."""

    spatial: tuple[int, ...]
    outputs: tuple[int, ...]
    window: Window
    is_transposed: bool = False
    """Whether the window slides over the outputs, so that an input cell adds to the whole
    window."""

    @property
    def cells(self) -> int:
        return math.prod(self.spatial)

    @property
    def planes(self) -> int:
        return math.prod(self.outputs)

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """The number of phases of the outputs along each axis."""
        if not self.is_transposed:
            return (1,) * len(self.spatial)
        pairs = zip(self.window.strides, self.window.dilations, strict=True)
        # Only then does each phase have a first tap, found by an inverse, and all others a stride
        # apart. With a common divisor every tap keeps its condition.
        return tuple(stride if math.gcd(stride, apart) == 1 else 1 for stride, apart in pairs)

    @property
    def grid(self) -> tuple[int, ...]:
        """The most outputs of a phase along each axis."""
        return tuple(-(-n // phases) for n, phases in zip(self.outputs, self.phases, strict=True))

    @property
    def steps(self) -> tuple[int, ...]:
        """The number of taps that each output visits along each axis."""
        kernel = self.window.kernel
        return tuple(-(-size // phases) for size, phases in zip(kernel, self.phases, strict=True))

    @property
    def taps(self) -> int:
        return math.prod(self.steps)

    def place(self, index: str, tag: str, c: str) -> list[str]:
        statements = declare_coordinates(index, self.outputs, f"o{tag}_", c)
        first = [
            f"const {c} first{axis.number} = {self._first(axis, f'o{tag}_{axis.number}')};"
            for axis in self._axes()
            if axis.phases > 1
        ]
        return [*statements, *first, *self._origins(tag, c)]

    def place_in_phase(self, index: str, tag: str, c: str) -> list[str]:
        statements = declare_coordinates(index, self.grid, f"g{tag}_", c)
        for axis in self._axes():
            number, along = axis.number, f"g{tag}_{axis.number}"
            place = f"{along} * {axis.phases} + phase{number}" if axis.phases > 1 else along
            statements.append(f"const {c} o{tag}_{number} = {place};")
        return [*statements, *self._origins(tag, c)]

    def begin_phase(self, index: str, c: str) -> list[str]:
        statements = declare_coordinates(index, self.phases, "phase", c)
        return statements + [
            f"const {c} first{axis.number} = {self._first(axis, f'phase{axis.number}')};"
            for axis in self._axes()
            if axis.phases > 1
        ]

    def written(self, tag: str) -> tuple[str, str]:
        """Return the offset of output `tag`, and the condition that it exists."""
        inside = [
            f"o{tag}_{axis.number} < {axis.outputs}"
            for axis in self._axes()
            if axis.outputs % axis.phases
        ]
        return write_offset(make_strides(self.outputs), f"o{tag}_"), " && ".join(inside)

    def tap(self, c: str) -> Cell:
        """Return the tap `t0`, `t1`... of step `u0`, `u1`..., in C type `c`, with its number."""
        statements, conditions = [], []
        for axis in self._axes():
            number = axis.number
            if axis.phases == 1:
                statements.append(f"const {c} t{number} = u{number};")
                continue
            statements.append(f"const {c} t{number} = first{number} + u{number} * {axis.phases};")
            # All phases have equally many steps; in those with a tap less, the last step is empty.
            if axis.size % axis.phases:
                conditions.append(f"t{number} < {axis.size}")
        at = write_offset(make_strides(self.window.kernel), "t")
        return Cell(tuple(statements), " && ".join(conditions), at)

    def read(self, tag: str, c: str) -> Cell:
        """Return the cell under tap `t0`, `t1`... of window `tag`; indices have C type `c`."""
        statements, conditions = [], []
        for axis in self._axes():
            cell, inside = (self._gathered if not self.is_transposed else self._spread)(
                axis, f"origin{tag}_{axis.number}", c
            )
            statements += cell
            conditions += inside
        at = write_offset(make_strides(self.spatial), "p")
        return Cell(tuple(statements), " && ".join(conditions), at)

    def over_taps(self, inner: list[str]) -> list[str]:
        """Return `inner` in loops over the taps `t0`, `t1`... of a placed output."""
        loops = [
            f"for (i32 u{axis} = 0; u{axis} < {size}; u{axis}++) {{"
            for axis, size in enumerate(self.steps)
        ]
        tap = self.tap("i32")
        skip = [f"if (!({tap.condition})) continue;"] if tap.condition else []
        return [*loops, *tap.statements, *skip, *inner, *["}"] * len(loops)]

    def _axes(self) -> Iterator[_Axis]:
        window = self.window
        fields = (window.kernel, window.strides, window.dilations, window.pads_begin, self.phases)
        for number, of in enumerate(zip(self.spatial, self.outputs, *fields, strict=True)):
            yield _Axis(number, *of)

    def _origins(self, tag: str, c: str) -> list[str]:
        statements = []
        for axis in self._axes():
            place, pad = f"o{tag}_{axis.number}", f" - {axis.pad}" if axis.pad else ""
            value = f"{place} * {axis.stride}{pad}"
            if self.is_transposed:
                value = f"{place} + {axis.pad}"
            statements.append(f"const {c} origin{tag}_{axis.number} = {value};")
        return statements

    def _first(self, axis: _Axis, place: str) -> str:
        """Return the first tap that reaches `place` along `axis`: t · apart ≡ place + pad."""
        inverse = pow(axis.apart, -1, axis.stride)
        return f"({place} + {axis.pad}) % {axis.stride} * {inverse} % {axis.stride}"

    def _gathered(self, axis: _Axis, origin: str, c: str) -> tuple[list[str], list[str]]:
        number = axis.number
        cell = f"const {c} p{number} = {origin} + t{number} * {axis.apart};"
        span = self.window.span(self.outputs)[number]
        # Skip the comparison in the innermost loop for a window that stays inside.
        leaves = axis.pad > 0 or span - axis.pad > axis.length
        return [cell], [f"p{number} >= 0 && p{number} < {axis.length}"] if leaves else []

    def _spread(self, axis: _Axis, origin: str, c: str) -> tuple[list[str], list[str]]:
        number = axis.number
        far = f"const {c} q{number} = {origin} - t{number} * {axis.apart};"
        cell = f"const {c} p{number} = q{number} / {axis.stride};"
        inside = [f"q{number} >= 0 && p{number} < {axis.length}"]
        # Within a phase each tap meets a cell: the division has no remainder.
        if axis.stride > axis.phases:
            inside.append(f"q{number} % {axis.stride} == 0")
        return [far, cell], inside
