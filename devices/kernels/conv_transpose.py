"""ConvTranspose: one product of weights and input, its rows then added into the output.

The product has a row per output channel and tap, a column per input cell (Dumoulin and Visin 2016,
section 4: a convolution's gradient); a tap's row lands on output cells that lie a stride apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from operator import le, mul
from typing import NamedTuple

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.tensor import Array, TensorSpec
from ...graph.windows import Window, resolve_transposed_window
from .precision import computed_in, widen, wider
from .registry import ArrayModule, Arrays, kernel
from .windows import Operands, Step, biased, in_turn

MAX_PRODUCT = 1 << 18
"""Elements; a larger product is made and added band by band of the input, to stay in cache."""


def conv_transpose_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Return the product's buffer, and float32 copies of float16 tensors."""
    x, w = call.spec(0), call.spec(1)
    group = call.attributes["group"]
    rows = band_rows(x.static_shape, w.static_shape, group)
    cells = rows * math.prod(x.static_shape[3:])
    product = (group, math.prod(w.static_shape[1:]), cells)
    return (*wider((*call.inputs, *outputs)), TensorSpec(computed_in(x.dtype), product))


@kernel("ConvTranspose", scratch=conv_transpose_scratch, binds=True)
def conv_transpose(
    xp: ArrayModule,
    inputs: Arrays,
    outputs: Arrays,
    attributes: Attributes,
    scratch: Sequence[Array],
) -> Step:
    """Y[o] = Σ over channels, and over taps and cells i that land on o, of w·x[i], + b."""
    wide, (y,), before, after, scratch = widen(xp, inputs, outputs, scratch)
    x, w, bias = (*wide, None)[:3]
    assert x is not None
    assert w is not None
    window, _ = resolve_transposed_window(x.shape[2:], attributes, w.shape[2:])
    assert window is not None
    on = Operands(x, w, bias, y, scratch)
    steps = _add_taps(xp, on, window, attributes["group"])
    return in_turn([*before, *steps, *after])


def band_rows(x: Sequence[int], w: Sequence[int], group: int) -> int:
    """Return how many rows of the input's first spatial axis are multiplied at a time."""
    row = group * math.prod(w[1:]) * math.prod(x[3:])
    return max(1, min(x[2], MAX_PRODUCT // max(1, row)))


class Landing(NamedTuple):
    """Where a tap's products land along an axis: input cells, and as many output cells."""

    cells: slice
    target: slice


def landing(tap: int, axis: int, window: Window, begin: int, end: int, outputs: int) -> Landing:
    """Return where a tap lands for input cells begin ≤ i < end; cells are counted from begin."""
    stride = window.strides[axis]
    offset = tap * window.dilations[axis] - window.pads_begin[axis]
    first = max(begin, -(offset // stride))
    last = min(end - 1, (outputs - 1 - offset) // stride)
    if last < first:
        return Landing(slice(0), slice(0))
    start = first * stride + offset
    return Landing(
        slice(first - begin, last + 1 - begin),
        slice(start, (last - first) * stride + start + 1, stride),
    )


def _add_taps(xp: ArrayModule, on: Operands, window: Window, group: int) -> list[Step]:
    spatial, outputs = on.x.shape[2:], on.y.shape[2:]
    steps: list[Step] = []
    disjoint = all(map(le, window.extents, window.strides))
    if not (disjoint and _covers(window, spatial, outputs) and on.x.size):
        flat = on.y.reshape(*on.y.shape[:2], math.prod(outputs))
        steps.append(partial(xp.copyto, flat, 0 if on.bias is None else on.bias[:, None]))
    rows = band_rows(on.x.shape, on.w.shape, group)
    images = range(len(on.x) if on.x.size else 0)
    for image, row in itertools.product(images, range(0, spatial[0], rows)):
        band = slice(row, min(row + rows, spatial[0]))
        product, products = _product(xp, on, image, band, group)
        steps.append(product)
        for cells, target in _landings(products, on.y[image], window, band):
            if disjoint:
                steps.append(biased(xp, cells, on.bias, target))
            else:
                steps.append(partial(xp.add, target, cells, out=target))
    return steps


def _covers(window: Window, spatial: Sequence[int], outputs: Sequence[int]) -> bool:
    """True when disjoint windows reach every output cell."""
    whole = window.kernel == window.strides and not any(window.pads_begin)
    return whole and tuple(outputs) == tuple(map(mul, spatial, window.strides))


def _product(
    xp: ArrayModule, on: Operands, image: int, band: slice, group: int
) -> tuple[Step, Array]:
    """Return the step that multiplies a band, and a view of its result (features, *k, *band)."""
    channels, height, *inner = on.x.shape[1:]
    row = math.prod(inner)
    cells = on.x[image].reshape(group, channels // group, height * row)
    columns = cells[..., band.start * row : band.stop * row]
    weights = on.w.reshape(group, channels // group, -1).swapaxes(1, 2)
    shape = (group, weights.shape[1], columns.shape[-1])
    products = on.scratch[0].reshape(-1)[: math.prod(shape)].reshape(shape)
    step = partial(xp.matmul, weights, columns, out=products)
    return step, products.reshape(-1, *on.w.shape[2:], band.stop - band.start, *inner)


def _landings(
    products: Array, y: Array, window: Window, band: slice
) -> Iterator[tuple[Array, Array]]:
    """Yield, for each tap, its products that land in the output, and the cells they land on."""
    axes = range(len(window.kernel))
    bands = [(band.start, band.stop), *((0, size) for size in products.shape[-len(axes) :][1:])]
    for tap in itertools.product(*map(range, window.kernel)):
        lands = [landing(tap[axis], axis, window, *bands[axis], y.shape[1 + axis]) for axis in axes]
        every = slice(None)
        cells = products[(every, *tap, *(land.cells for land in lands))]
        if cells.size:
            yield cells, y[(every, *(land.target for land in lands))]
