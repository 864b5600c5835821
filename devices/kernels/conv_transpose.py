"""ConvTranspose: one product of weights and input, its rows then added into the output.

The product has a row per output channel and tap, a column per input cell (Dumoulin and Visin 2016,
section 4: a convolution's gradient); a tap's row lands on output cells that lie a stride apart. The
kernel takes ``(xp, inputs, outputs, attributes, scratch) -> Step``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import le, mul

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.windows import Window, resolve_transposed_window
from ...graph.values.tensor import Array, TensorSpec
from .blocks import count_in_block, iterate_blocks
from .geometry import Operands, copy_with_bias
from .precision import compute_dtype, declare_wide_copies, widen
from .registry import ArrayModule, Arrays, Step, kernel
from .sliding import AxisWindow, list_axis_windows

BLOCK = 1 << 18
"""Elements; a larger product is made and added band by band of the input, to stay in cache."""


def _declare_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x, w = call.spec(0), call.spec(1)
    group = call.attributes["group"]
    rows = _choose_band_rows(x.static_shape, w.static_shape, group)
    cells = rows * math.prod(x.static_shape[3:])
    product = (group, math.prod(w.static_shape[1:]), cells)
    return (
        *declare_wide_copies((*call.inputs, *outputs)),
        TensorSpec(compute_dtype(x.dtype), product),
    )


@kernel("ConvTranspose", scratch=_declare_scratch, binds=True)
def conv_transpose(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    wide = widen(xp, inputs, outputs, scratch)
    on = Operands.of(wide)
    window, _ = resolve_transposed_window(on.x.shape[2:], attributes, on.w.shape[2:])
    assert window is not None
    return wide.around(_add_taps(xp, on, window, attributes["group"]))


def _choose_band_rows(x: Sequence[int], w: Sequence[int], group: int) -> int:
    row = group * math.prod(w[1:]) * math.prod(x[3:])
    return count_in_block(BLOCK, row, x[2])


def _add_taps(xp: ArrayModule, on: Operands, window: Window, group: int) -> list[Step]:
    spatial, outputs = on.x.shape[2:], on.y.shape[2:]
    steps: list[Step] = []
    disjoint = all(map(le, window.extents, window.strides))
    if not (disjoint and _covers(window, spatial, outputs) and on.x.size):
        flat = on.y.reshape(*on.y.shape[:2], math.prod(outputs))
        steps.append(partial(xp.copyto, flat, 0 if on.bias is None else on.bias[:, None]))
    rows = _choose_band_rows(on.x.shape, on.w.shape, group)
    images, bands = range(len(on.x) if on.x.size else 0), list(iterate_blocks(spatial[0], rows))
    for image, band in itertools.product(images, bands):
        product, products = _multiply_band(xp, on, image, band, group)
        steps.append(product)
        for cells, target in _iterate_landings(products, on.y[image], window, band):
            if disjoint:
                steps.append(copy_with_bias(xp, cells, on.bias, target))
            else:
                steps.append(partial(xp.add, target, cells, out=target))
    return steps


def _covers(window: Window, spatial: Sequence[int], outputs: Sequence[int]) -> bool:
    whole = window.kernel == window.strides and not any(window.pads_begin)
    return whole and tuple(outputs) == tuple(map(mul, spatial, window.strides))


def _multiply_band(
    xp: ArrayModule, on: Operands, image: int, band: slice, group: int
) -> tuple[Step, Array]:
    """Return a step in `xp` that multiplies rows `band` of `image` by weights, and its result.

    `on` has the arrays; channels are in `group` groups.
    """
    channels, height, *inner = on.x.shape[1:]
    row = math.prod(inner)
    cells = on.x[image].reshape(group, channels // group, height * row)
    columns = cells[..., band.start * row : band.stop * row]
    weights = on.w.reshape(group, channels // group, -1).swapaxes(1, 2)
    shape = (group, weights.shape[1], columns.shape[-1])
    products = on.scratch[0].reshape(-1)[: math.prod(shape)].reshape(shape)
    step = partial(xp.matmul, weights, columns, out=products)
    return step, products.reshape(-1, *on.w.shape[2:], band.stop - band.start, *inner)


def _iterate_landings(
    products: Array, y: Array, window: Window, band: slice
) -> Iterator[tuple[Array, Array]]:
    """Yield, for each tap of `window`, its part of `products`, and the cells of `y` it lands on.

    A convolution has the opposite roles: it would read these cells by that tap, and write where the
    products are. The products are those of rows `band` of the input.
    """
    first, *others = list_axis_windows(
        window, y.shape[1:], products.shape[1 + len(window.kernel) :]
    )
    first = replace(first, begin=first.begin - band.start * first.stride)
    for tap in itertools.product(*map(range, window.kernel)):
        cells, target = zip(*map(AxisWindow.slices, (first, *others), tap), strict=True)
        landed = products[(slice(None), *tap, *cells)]
        if landed.size:
            yield landed, y[(slice(None), *target)]
