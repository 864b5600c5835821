"""Windows that slide over images: which cells an output reads, in C.

A window that slides over the output of a transposed convolution reaches each output with some of
its taps only: with a stride of 2, every second one. Outputs that are a stride apart have the same
taps: they are a phase, and just these taps are gone through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...graph.windows import Window
from .indexing import contiguous, coordinates, offset


class Cell(NamedTuple):
    """A cell that a tap reads: statements, the condition that there is one, its offset."""

    statements: tuple[str, ...]
    condition: str
    offset: str


class _Axis(NamedTuple):
    """An axis of an image and of the window, by number, and how many phases its outputs have."""

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
    """A window over a plane of cells, and its outputs.

    Attributes
    ----------
    is_transposed : bool
        Whether the window slides over the outputs, and a cell of the input adds to all of it.
    """

    spatial: tuple[int, ...]
    outputs: tuple[int, ...]
    window: Window
    is_transposed: bool = False

    @property
    def cells(self) -> int:
        """How many cells a plane of the input has."""
        return math.prod(self.spatial)

    @property
    def planes(self) -> int:
        """How many cells a plane of the output has."""
        return math.prod(self.outputs)

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """How many phases the outputs have along each axis."""
        if not self.is_transposed:
            return (1,) * len(self.spatial)
        pairs = zip(self.window.strides, self.window.dilations, strict=True)
        # Only then does each phase have a first tap, found by an inverse, and all others a stride
        # apart; with a common divisor the condition stays, for every tap.
        return tuple(stride if math.gcd(stride, apart) == 1 else 1 for stride, apart in pairs)

    @property
    def grid(self) -> tuple[int, ...]:
        """How many outputs a phase has along each axis, at most."""
        return tuple(-(-n // phases) for n, phases in zip(self.outputs, self.phases, strict=True))

    @property
    def steps(self) -> tuple[int, ...]:
        """How many taps each output goes through along each axis."""
        kernel = self.window.kernel
        return tuple(-(-size // phases) for size, phases in zip(kernel, self.phases, strict=True))

    @property
    def taps(self) -> int:
        """How many taps each output goes through."""
        return math.prod(self.steps)

    def place(self, index: str, tag: str, c: str) -> list[str]:
        """Return the declarations for an output, by its index in the plane."""
        statements = coordinates(index, self.outputs, f"o{tag}_", c)
        first = [
            f"const {c} first{axis.number} = {self._first(axis, f'o{tag}_{axis.number}')};"
            for axis in self._axes()
            if axis.phases > 1
        ]
        return [*statements, *first, *self._origins(tag, c)]

    def place_in_phase(self, index: str, tag: str, c: str) -> list[str]:
        """Return the same, by its index in the grid of its phase."""
        statements = coordinates(index, self.grid, f"g{tag}_", c)
        for axis in self._axes():
            number, along = axis.number, f"g{tag}_{axis.number}"
            place = f"{along} * {axis.phases} + phase{number}" if axis.phases > 1 else along
            statements.append(f"const {c} o{tag}_{number} = {place};")
        return [*statements, *self._origins(tag, c)]

    def begin_phase(self, index: str, c: str) -> list[str]:
        statements = coordinates(index, self.phases, "phase", c)
        return statements + [
            f"const {c} first{axis.number} = {self._first(axis, f'phase{axis.number}')};"
            for axis in self._axes()
            if axis.phases > 1
        ]

    def written(self, tag: str) -> tuple[str, str]:
        """Return an output's offset, and the condition that it is one."""
        inside = [
            f"o{tag}_{axis.number} < {axis.outputs}"
            for axis in self._axes()
            if axis.outputs % axis.phases
        ]
        return offset(contiguous(self.outputs), f"o{tag}_"), " && ".join(inside)

    def tap(self, c: str) -> Cell:
        """Return the tap `t0`, `t1`... of a step `u0`, `u1`..., and its number as the offset."""
        statements, conditions = [], []
        for axis in self._axes():
            number = axis.number
            if axis.phases == 1:
                statements.append(f"const {c} t{number} = u{number};")
                continue
            statements.append(f"const {c} t{number} = first{number} + u{number} * {axis.phases};")
            # Phases go through equally many steps; those with a tap less have one step too many.
            if axis.size % axis.phases:
                conditions.append(f"t{number} < {axis.size}")
        at = offset(contiguous(self.window.kernel), "t")
        return Cell(tuple(statements), " && ".join(conditions), at)

    def read(self, tag: str, c: str) -> Cell:
        """Return the cell that a tap `t0`, `t1`... of a window reads."""
        statements, conditions = [], []
        for axis in self._axes():
            cell, inside = (self._gathered if not self.is_transposed else self._spread)(
                axis, f"origin{tag}_{axis.number}", c
            )
            statements += cell
            conditions += inside
        at = offset(contiguous(self.spatial), "p")
        return Cell(tuple(statements), " && ".join(conditions), at)

    def over_taps(self, inner: list[str]) -> list[str]:
        """Return the loops over the taps `t0`, `t1`... of a placed output around statements."""
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
        """Return the declarations of where the windows of an output begin, or end if transposed."""
        statements = []
        for axis in self._axes():
            place, pad = f"o{tag}_{axis.number}", f" - {axis.pad}" if axis.pad else ""
            value = f"{place} * {axis.stride}{pad}"
            if self.is_transposed:
                value = f"{place} + {axis.pad}"
            statements.append(f"const {c} origin{tag}_{axis.number} = {value};")
        return statements

    def _first(self, axis: _Axis, place: str) -> str:
        """Return the first tap that reaches an output: t · apart ≡ output + pad (mod stride)."""
        inverse = pow(axis.apart, -1, axis.stride)
        return f"({place} + {axis.pad}) % {axis.stride} * {inverse} % {axis.stride}"

    def _gathered(self, axis: _Axis, origin: str, c: str) -> tuple[list[str], list[str]]:
        number = axis.number
        cell = f"const {c} p{number} = {origin} + t{number} * {axis.apart};"
        span = self.window.span(self.outputs)[number]
        # A comparison in the innermost loop, which a window that stays inside does not need.
        leaves = axis.pad > 0 or span - axis.pad > axis.length
        return [cell], [f"p{number} >= 0 && p{number} < {axis.length}"] if leaves else []

    def _spread(self, axis: _Axis, origin: str, c: str) -> tuple[list[str], list[str]]:
        number = axis.number
        far = f"const {c} q{number} = {origin} - t{number} * {axis.apart};"
        cell = f"const {c} p{number} = q{number} / {axis.stride};"
        inside = [f"q{number} >= 0 && p{number} < {axis.length}"]
        # Within a phase all taps meet a cell: the division leaves nothing over.
        if axis.stride > axis.phases:
            inside.append(f"q{number} % {axis.stride} == 0")
        return [far, cell], inside
