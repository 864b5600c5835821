"""Windows over arrays: what a convolution's shapes come to, zero-framed copies, strided views."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...graph.tensor import Array, TensorSpec
from ...graph.windows import Window
from .registry import ArrayModule

Step: TypeAlias = Callable[[], Any]
"""A function of no arguments: one call of the array module, its operands bound."""

MAX_RUN = 64
"""Elements; up to here copying a run as one opaque item beats copying its elements."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The numbers a convolution is made of.

    Attributes
    ----------
    batch, channels, features, group : int
        Channels are the input's, features the output's.
    spatial, outputs : tuple of int
        Spatial dims of input and output.
    window : Window
    dtype : numpy.dtype
        What is computed in.
    """

    batch: int
    channels: int
    features: int
    group: int
    spatial: tuple[int, ...]
    outputs: tuple[int, ...]
    window: Window
    dtype: np.dtype[Any]

    @property
    def taps(self) -> int:
        """The number of cells in the kernel."""
        return math.prod(self.window.kernel)

    @property
    def depth(self) -> int:
        """The number of channels in a group: how many each output cell sums over."""
        return self.channels // self.group

    @property
    def padded(self) -> bool:
        """True when the input has a border."""
        return any((*self.window.pads_begin, *self.window.pads_end))

    @property
    def moves_by_one(self) -> bool:
        """True when all strides are 1."""
        return set(self.window.strides) == {1}

    def spec(self, *shape: int) -> TensorSpec:
        """Return the spec of a buffer to compute in."""
        return TensorSpec(self.dtype, shape)


class Operands(NamedTuple):
    """The arrays of a convolution: (batch, channels, *spatial), weights, bias, output, scratch."""

    x: Array
    w: Array
    bias: Array | None
    y: Array
    scratch: Sequence[Array]


@dataclass(frozen=True, slots=True)
class Packing:
    """How a method wants its weights: reordered once where they are constant.

    Attributes
    ----------
    spec : TensorSpec
        Of the reordered weights.
    steps : callable
        Given the array module, the weights and a buffer, returns the steps that fill it.
    """

    spec: TensorSpec
    steps: Callable[[ArrayModule, Array, Array], list[Step]]


@dataclass(frozen=True, slots=True)
class Frame:
    """An input within a border of zeros, flattened per channel.

    Two rows share the border between them: right of one, left of the next. A row is thus shorter
    than the padded input's, which saves zeroing and, where windows run over the flat cells, work.

    Attributes
    ----------
    spatial, begins, ends : tuple of int
        The input's dims, the cells of border before and after it.
    """

    spatial: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def trivial(self) -> bool:
        """True when there is no border, and the input needs no copy."""
        return not any((*self.begins, *self.ends))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The dims of the framed cells, the last one's border shared."""
        *outer, last = zip(self.spatial, self.begins, self.ends, strict=True)
        return (*(map(sum, outer)), last[0] + max(last[1:]))

    @property
    def steps(self) -> tuple[int, ...]:
        """How far apart, in flat cells, the neighbours along each axis are."""
        sizes = self.sizes
        return tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))

    @property
    def origin(self) -> int:
        """The flat cell of the border's first corner."""
        return max(self.begins[-1], self.ends[-1]) - self.begins[-1]

    @property
    def length(self) -> int:
        """How many flat cells a channel has; the last row's right border sticks out."""
        return math.prod(self.sizes) + self.ends[-1]

    def span(self, outputs: Sequence[int]) -> int:
        """Return the flat cells from the first to the last window, where windows move by one."""
        return 1 + sum((size - 1) * step for size, step in zip(outputs, self.steps, strict=True))

    def fill(self, xp: ArrayModule, buffer: Array, source: Array) -> list[Step]:
        """Return the steps that lay `source` (channels, *spatial) into `buffer`'s flat cells."""
        cells = buffer[:, : math.prod(self.sizes)].reshape(-1, *self.sizes)
        begins = (*self.begins[:-1], self.sizes[-1] - self.spatial[-1])
        steps, inner = zero_borders(cells, begins, self.spatial)
        if self.ends[-1]:
            steps.append(partial(buffer[:, math.prod(self.sizes) :].fill, 0))
        return [*steps, partial(xp.copyto, inner, source)]


def zero_borders(
    cells: Array, begins: Sequence[int], spatial: Sequence[int]
) -> tuple[list[Step], Array]:
    """Return the steps that zero what surrounds an input in its frame, and the cells within."""
    steps: list[Step] = []
    for axis, (begin, size) in enumerate(zip(begins, spatial, strict=True)):
        before = np.index_exp[:] * (axis + 1)
        borders = cells[(*before, slice(begin))], cells[(*before, slice(begin + size, None))]
        steps += [partial(border.fill, 0) for border in borders if border.size]
        cells = cells[(*before, slice(begin, begin + size))]
    return steps, cells


def frame_of(conv: Geometry) -> Frame:
    """Return the frame that a convolution's padding asks for."""
    return Frame(conv.spatial, conv.window.pads_begin, conv.window.pads_end)


def strided(
    xp: ArrayModule, array: Array, shape: Sequence[int], steps: Sequence[int], offset: int = 0
) -> Array:
    """Return a view over a contiguous array's cells, `steps` apart along each axis."""
    strides = [step * array.itemsize for step in steps]
    cells = array.reshape(-1)[offset:]
    return xp.lib.stride_tricks.as_strided(cells, tuple(shape), tuple(strides))


def copy(xp: ArrayModule, target: Array, source: Array) -> Step:
    """Return the step that copies between two views.

    numpy copies a short run of elements in 4 ns, and as one opaque item in 2 (measured on 12
    floats): trailing axes that are one run in both views are copied as such items.
    """
    run, axes = 1, 0
    while axes < target.ndim and target.shape[-axes - 1] * run <= MAX_RUN:
        if not target.strides[-axes - 1] == source.strides[-axes - 1] == run * target.itemsize:
            break
        axes, run = axes + 1, run * target.shape[-axes - 1]
    if xp is not np or run <= 1:
        return partial(xp.copyto, target, source)
    item = np.dtype((np.void, run * target.itemsize))
    target, source = (
        array.reshape(*array.shape[: array.ndim - axes], run).view(item)[..., 0]
        for array in (target, source)
    )
    return partial(np.copyto, target, source)


def tap_offsets(conv: Geometry, steps: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
    """Return each tap's index in the kernel, and its offset in flat cells."""
    apart = tuple(map(mul, steps, conv.window.dilations))
    taps = itertools.product(*map(range, conv.window.kernel))
    return [(tap, sum(map(mul, tap, apart))) for tap in taps]


def add_bias(xp: ArrayModule, y: Array, bias: Array | None) -> list[Step]:
    """Return the step that adds a number per channel to `y`, none where there is no bias."""
    if bias is None:
        return []
    rows = y.reshape(*y.shape[:2], -1)
    return [partial(xp.add, rows, bias[:, None], out=rows)]


def biased(xp: ArrayModule, source: Array, bias: Array | None, target: Array) -> Step:
    """Return the step that copies (channels, *spatial), adding the bias on the way."""
    if bias is None:
        return copy(xp, target, source)
    per_channel = bias.reshape(-1, *[1] * (source.ndim - 1))
    return partial(xp.add, source, per_channel, out=target)


def in_turn(steps: Sequence[Step]) -> Step:
    """Return a step that runs others in turn."""
    if len(steps) == 1:
        return steps[0]
    ordered = tuple(steps)

    def run() -> None:
        for step in ordered:
            step()

    return run
