"""Convolutions over one and two axes in float32, computed as tiles of outputs in registers.

No window is copied. In a flat input that is framed by zeros, the cells under one tap of
neighbouring windows are neighbours, so each row of the product is an offset in flat cells. For
strides above one the frame stores every second (third, ...) row and column apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import Array, TensorSpec
from ..kernels.convolution import make_geometry
from ..kernels.geometry import Geometry
from ..kernels.registry import Step
from .convolve import convolve, convolve_point
from .depthwise import convolve_channels
from .epilogue import CompiledEpilogue
from .jit import make_writable
from .tile import ROWS, count_vectors
from .vector import LANES

BAND = 1 << 17
"""Cells framed at a time, so that they are in cache when they are multiplied."""

LONE_BAND = 1 << 14
"""Cells framed at a time if a group is one channel. Such a band shares no weights, and its frame
fits in the innermost cache (16 planes of 320 by 320 cells: 1.0 ms, 1.2 ms with `BAND`)."""

MAX_PRODUCTS = 25
"""Vectors in a line of a channel above which framing pays. Twice as many if every second column is
left out, since framing those takes longer (measured at 7 to 160 columns)."""

LEAST_WINDOWS = LANES
"""Convolutions of fewer windows use numpy: most lanes of a vector would be idle."""


class CompiledConvolution:
    """A convolution of given shapes: the layout of its input and the offsets of its taps.

    `scratch` holds the frame, unless the input is read in place.
    """

    def __init__(self, conv: Geometry) -> None:
        self.conv = conv
        window = conv.window
        lone = len(conv.spatial) == 1  # one axis is two, the first of length 1
        self._kernel = (1,) * lone + window.kernel
        self._strides = (1,) * lone + window.strides
        self._dilations = (1,) * lone + window.dilations
        self._begins = (0,) * lone + window.pads_begin
        self._spatial = (1,) * lone + conv.spatial
        self._outputs = (1,) * lone + conv.outputs
        extents = (1,) * lone + window.extents
        self._phases = tuple(map(min, self._strides, extents))
        self.features = conv.features // conv.group
        # Blocks as equal as can be: a short one takes as long as a full one.
        self.rows = -(-self.features // -(-self.features // ROWS))
        self.width = LANES * count_vectors(self.rows)
        self.direct = conv.moves_by_one and not conv.padded and self._span >= self.width
        one_cell = math.prod((*conv.spatial, *conv.outputs, conv.taps)) == 1 and not conv.padded
        self.is_point = one_cell and conv.group == 1
        self.by_line = conv.depth == self.features == 1 and self._suits_lines
        self.band, self._sizes = self._outputs[0], self._spatial
        self.scratch: tuple[TensorSpec, ...] = ()
        if not self.direct and not self.is_point and not self.by_line:
            self._frame(extents)

    @property
    def _suits_lines(self) -> bool:
        """Return whether a depthwise convolution has too few products for framing to pay."""
        across = self._strides[1]
        products = self.conv.taps * -(-self._outputs[1] // LANES)
        return across <= 2 and products <= MAX_PRODUCTS * across

    @property
    def _span(self) -> int:
        """The flat cells of the input from the first to the last window, moving by one."""
        return (self._outputs[0] - 1) * self._spatial[1] + self._outputs[1]

    def _frame(self, extents: Sequence[int]) -> None:
        # Cells of a phase that a window reads after its first one.
        beyond = [(extent - 1) // step for extent, step in zip(extents, self._strides, strict=True)]
        pitch = self._outputs[1] + beyond[1]
        line = self.conv.depth * math.prod(self._phases) * pitch
        band = BAND if self.conv.depth > 1 else LONE_BAND
        # Bands share `beyond` lines, which are framed twice: a band fits in the cache and has at
        # least twice as many lines as it shares.
        fitting = max(band // line - beyond[0], 2 * beyond[0], 4)
        self.band = min(self._outputs[0], fitting)
        self._sizes = (self.band + beyond[0], pitch)
        self.scratch = (self.conv.spec(line * self._sizes[0] + self.width),)

    def offsets(self) -> Array:
        """Return the offsets of each channel's taps in the flat cells of a group."""
        rows, columns = self._sizes
        plane = rows * columns
        table = np.empty((self.conv.depth, *self._kernel), np.int64)
        for i, j in np.ndindex(*self._kernel):
            down, across = i * self._dilations[0], j * self._dilations[1]
            phase = (down % self._strides[0]) * self._phases[1] + across % self._strides[1]
            within = down // self._strides[0] * columns + across // self._strides[1]
            table[:, i, j] = phase * plane + within
        channel = plane * math.prod(self._phases)
        table += (np.arange(self.conv.depth) * channel)[:, None, None]
        return table.reshape(-1)

    def packed(self, w: Array) -> Array:
        """Return zero-padded weights `w` in the order (group, block, channel and tap, row)."""
        group, depth = self.conv.group, self.conv.depth * self.conv.taps
        blocks = -(-self.features // self.rows)
        packed = np.zeros((group, blocks * self.rows, depth), np.float32)
        packed[:, : self.features] = w.reshape(group, self.features, depth)
        by_block = packed.reshape(group, blocks, self.rows, depth)
        return np.ascontiguousarray(by_block.swapaxes(2, 3))

    def bind(
        self,
        x: Array,
        w: Array,
        bias: Array,
        y: Array,
        scratch: Sequence[Array],
        after: CompiledEpilogue,
    ) -> Step:
        """Return the step that writes after(`w`·`x` + `bias`) to `y`, using `scratch`.

        `after` is the epilogue. Weights are read now.
        """
        out, batch = y.reshape(-1), self.conv.batch
        # Compiled code always gets an array; it reads it only if there is a residual.
        residual = out if after.residual is None else make_writable(after.residual).reshape(-1)
        x, bias = make_writable(x).reshape(-1), make_writable(bias)
        if self.is_point:
            # Neighbouring features side by side, so that a vector loads them.
            transposed = w.reshape(w.shape[:2]).T.copy()
            x = x.reshape(batch, -1)
            return partial(convolve_point, x, transposed, bias, out, residual, after.packed())
        if self.by_line:
            arrays = (x, w.reshape(-1).copy(), bias, out, residual, after.packed())
            return partial(convolve_channels, *arrays, self._lines())
        framed = scratch[0] if self.scratch else np.empty(0, np.float32)
        arguments = (x, self.packed(w), self.offsets(), bias, out, residual, after.packed())
        return partial(convolve, *arguments, framed, self.layout())

    def _lines(self) -> Array:
        numbers = (
            *self._spatial,
            self._outputs[1],
            self._begins[1],
            *self._kernel,
            *self._dilations,
            self._strides[0],
            self.conv.batch,
            self._outputs[0],
            self._strides[1],
            self._begins[0],
        )
        return np.array(numbers, np.int64)

    def layout(self) -> Array:
        conv = self.conv
        numbers = (
            conv.batch,
            conv.depth,
            self.features,
            math.prod(conv.outputs),
            *self._spatial,
            *self._begins,
            *self._strides,
            *self._phases,
            *self._sizes,
            self._outputs[1],
            self.band,
            self.width,
        )
        return np.array(numbers, np.int64)


@lru_cache(maxsize=1024)
def plan_convolution(conv: Geometry) -> CompiledConvolution:
    return CompiledConvolution(conv)


def find_convolution(call: Call, outputs: Specs) -> CompiledConvolution | None:
    """Return the compiled form of a Conv, given `call` and `outputs`; None to leave it to numpy.

    With few windows, matrix products are two to four times faster (measured on silero-vad, whose
    convolutions have one to four).
    """
    x, w, y = call.spec(0), call.spec(1), outputs[0]
    if x.dtype != np.float32 or call.value(1) is None or not x.size or not y.size:
        return None
    if len(x.static_shape) not in (3, 4) or (call.has(2) and call.value(2) is None):
        return None
    conv = make_geometry(x.static_shape, w.static_shape, y.static_shape, call.attributes, x.dtype)
    made = plan_convolution(conv)
    few = math.prod(conv.outputs) < LEAST_WINDOWS and not made.is_point
    return None if few and conv.group == 1 else made
