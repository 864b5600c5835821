"""The gradient of a convolution's weights: dY times the windows of the input.

The windows of a few images, or of a band of rows of one, are laid side by side as for the
convolution itself (see `dense`), with one product for each; the products are added up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from operator import mul

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.windows import resolve_window
from ...graph.values.tensor import Array, TensorSpec
from .blocks import count_in_block, iterate_blocks
from .frames import make_frame
from .geometry import Geometry
from .precision import compute_dtype, declare_wide_copies, widen
from .registry import ArrayModule, Arrays, Step, kernel
from .views import copy, make_strided

BLOCK = 1 << 18
"""Elements; more windows than this are copied and multiplied band by band, to stay in cache."""


class Sums:
    """How the products are taken: which images and rows together, in which buffers."""

    def __init__(self, conv: Geometry) -> None:
        self.conv = conv
        self.frame = make_frame(conv)
        row = math.prod(conv.outputs[1:])
        image = conv.channels * conv.taps * row * conv.outputs[0]
        self.images = count_in_block(BLOCK, image, conv.batch)
        self.rows = max(1, -(-conv.outputs[0] // max(1, -(-image // BLOCK))))
        self.cells = self.images * self.rows * row

    @property
    def scratch(self) -> list[TensorSpec]:
        """Windows, dY, a product, and images in a frame of zeros if padded."""
        conv = self.conv
        windows = conv.spec(conv.channels * conv.taps * self.cells)
        gradients = conv.spec(conv.features * self.cells)
        product = conv.spec(conv.features * conv.depth * conv.taps)
        framed = conv.spec(self.images * conv.channels, self.frame.length)
        return [windows, gradients, product, *(() if self.frame.trivial else (framed,))]

    def steps(self, xp: ArrayModule, x: Array, dy: Array, dw: Array, scratch: Arrays) -> list[Step]:
        conv, steps, first = self.conv, list[Step](), True
        for images in iterate_blocks(conv.batch, self.images):
            source = x[images].reshape(-1, *conv.spatial)
            if not self.frame.trivial:
                framed = scratch[3][: len(source)]
                steps += self.frame.fill(xp, framed, source)
                source = framed
            for rows in iterate_blocks(conv.outputs[0], self.rows):
                target = dw.reshape(-1) if first else scratch[2]
                steps += self._band(xp, source, dy[images, :, rows], target, rows, scratch)
                if not first:
                    steps.append(partial(xp.add, dw.reshape(-1), target, out=dw.reshape(-1)))
                first = False
        return steps

    def _band(
        self, xp: ArrayModule, source: Array, dy: Array, target: Array, rows: slice, scratch: Arrays
    ) -> list[Step]:
        """Return the steps in `xp` for `target` = `dy` · windows of `source`, over `rows`.

        They copy gradients and windows to `scratch`, and multiply them.
        """
        conv, frame, images = self.conv, self.frame, len(dy)
        taps = map(mul, frame.steps, conv.window.dilations)
        moves = tuple(map(mul, frame.steps, conv.window.strides))
        outputs = (rows.stop - rows.start, *conv.outputs[1:])
        shape = (images, conv.channels, *conv.window.kernel, *outputs)
        apart = (conv.channels * frame.length, frame.length, *taps, *moves)
        offset = frame.origin + rows.start * moves[0]
        views = make_strided(xp, source, shape, apart, offset)
        by_image = (*range(1, 2 + len(moves)), 0, *range(2 + len(moves), views.ndim))
        windows = _take_leading(scratch[0], (*shape[1 : 2 + len(moves)], images, *outputs))
        gradients = _take_leading(scratch[1], (conv.features, images, *outputs))
        product = partial(
            xp.matmul,
            gradients.reshape(conv.group, conv.features // conv.group, -1),
            windows.reshape(conv.group, conv.depth * conv.taps, -1).swapaxes(1, 2),
            out=target.reshape(conv.group, conv.features // conv.group, -1),
        )
        return [
            copy(xp, windows, views.transpose(by_image)),
            copy(xp, gradients, dy.swapaxes(0, 1)),
            product,
        ]


def _take_leading(buffer: Array, shape: Sequence[int]) -> Array:
    return buffer[: math.prod(shape)].reshape(shape)


def _make_geometry(
    x: Sequence[int], dy: Sequence[int], attributes: Attributes, like: Array
) -> Geometry:
    window, _ = resolve_window(x[2:], attributes, attributes["kernel_shape"])
    assert window is not None
    batch, channels, *spatial = x
    dtype = compute_dtype(like.dtype)
    return Geometry(
        batch, channels, dy[1], attributes["group"], tuple(spatial), tuple(dy[2:]), window, dtype
    )


def _declare_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x, dy = call.spec(0), call.spec(1)
    conv = _make_geometry(x.static_shape, dy.static_shape, call.attributes, x)
    return (*declare_wide_copies((x, dy, *outputs)), *Sums(conv).scratch)


@kernel("ConvWeightsGradient", scratch=_declare_scratch, binds=True)
def conv_weights_gradient(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    wide = widen(xp, inputs, outputs, scratch)
    (x, dy), (dw,) = wide.inputs, wide.outputs
    assert x is not None
    assert dy is not None
    if not (x.size and dy.size):
        return partial(outputs[0].fill, 0)
    sums = Sums(_make_geometry(x.shape, dy.shape, attributes, x))
    return wide.around(sums.steps(xp, x, dy, dw, wide.scratch))
