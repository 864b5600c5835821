"""Prototypes of numpy kernels with channels last: (batch, rows, columns, channels)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from plait.devices.kernels.blocks import count_in_block, iterate_blocks
from plait.devices.kernels.convolution import make_geometry
from plait.devices.kernels.geometry import Geometry
from plait.devices.kernels.registry import Step, run_in_order
from plait.devices.kernels.sliding import list_axis_windows
from plait.graph.operators.pooling import find_pooling_window
from plait.graph.values.tensor import Array

if TYPE_CHECKING:
    from bench_layouts import Case

WINDOWS = 1 << 18
"""Elements; so much is copied at a time before it is multiplied, as with channels first."""

BAND = 1 << 16
"""Elements; a depthwise band is as long, as with channels first."""


class Last(NamedTuple):
    """A convolution with channels last: what it reads and writes, one image each."""

    conv: Geometry
    x: Array
    w: Array
    bias: Array
    y: Array


Way: TypeAlias = Callable[[Last], Iterator[Step]]
"""Yields the steps that compute one image."""


def candidates(case: Case, device: str) -> dict[str, tuple[Array, Step]]:
    """Return ways to compute a node with channels last, and where each leaves its result."""
    shape = case.graph.tensors[case.node.outputs[0]].static_shape
    x = np.ascontiguousarray(np.moveaxis(case.arrays()[0], 1, -1))
    y = np.empty((shape[0], *shape[2:], shape[1]), np.float32)
    if case.node.op == "GlobalAveragePool":
        return {"mean": (y, partial(np.mean, x, axis=(1, 2), keepdims=True, out=y))}
    if case.node.op != "Conv":
        return {"windows": (y, run_in_order(pooled(case, x, y)))}
    _, w, *bias = case.arrays()
    x_shape = case.graph.tensors[case.node.inputs[0]].static_shape
    conv = make_geometry(x_shape, w.shape, shape, case.node.attributes, x.dtype)
    given = bias[0] if bias else np.zeros(conv.features, np.float32)
    ways: dict[str, tuple[Array, Step]] = {}
    for name, make in convolutions(conv, device).items():
        y = np.empty_like(y)
        images = (Last(conv, image, w, given, out) for image, out in zip(x, y, strict=True))
        ways[name] = y, run_in_order(step for on in images for step in make(on))
    return ways


def convolutions(conv: Geometry, device: str) -> Mapping[str, Way]:
    """Return the ways to compute such a convolution."""
    if conv.taps == 1 and conv.moves_by_one and not conv.padded:
        return {"product": pointwise}
    if conv.depth == 1 and conv.features == conv.channels:
        ways: dict[str, Way] = {"taps in bands": depthwise}
        if conv.moves_by_one:
            ways["einsum in rows"] = depthwise_einsum
        if device == "compiled":
            import channels_last_compiled

            ways["machine code"] = channels_last_compiled.depthwise
        return ways
    return {"columns": columns, "phases": phases}


def pointwise(on: Last) -> Iterator[Step]:
    """Y = x·W, per group."""
    conv = on.conv
    cells = math.prod(conv.outputs)
    x = on.x.reshape(cells, conv.group, conv.depth).swapaxes(0, 1)
    y = on.y.reshape(cells, conv.group, -1).swapaxes(0, 1)
    w = np.ascontiguousarray(on.w.reshape(conv.group, -1, conv.depth).swapaxes(1, 2))
    if conv.group == 1:
        x, w, y = x[0], w[0], y[0]
    yield partial(np.matmul, x, w, y)
    yield partial(np.add, on.y, on.bias, on.y)


class Framed(NamedTuple):
    """An image within zeros."""

    cells: Array
    steps: list[Step]


def framed(on: Last, columns: int = 0) -> Framed:
    """Return the image within its padding, with so many more columns to the right."""
    conv, window = on.conv, on.conv.window
    if not conv.padded and not columns:
        return Framed(on.x, [])
    (top, left), (bottom, right) = window.pads_begin, window.pads_end
    rows, across = conv.spatial
    cells = np.zeros((rows + top + bottom, across + left + right + columns, conv.channels), "f")
    return Framed(cells, [partial(np.copyto, cells[top : top + rows, left : left + across], on.x)])


def columns(on: Last) -> Iterator[Step]:
    """Y = columns·W for all windows of a band of rows; a line of a window is one run."""
    conv, window = on.conv, on.conv.window
    source, steps = framed(on)
    yield from steps
    (down, across), (kh, kw) = window.strides, window.kernel
    row, cell, one = source.strides
    cells = kh * kw * conv.channels
    band = count_in_block(WINDOWS, cells * conv.outputs[1], conv.outputs[0])
    shape = (conv.outputs[1], kh, kw, conv.channels)
    buffer = np.empty((band, *shape), np.float32)
    strides = (row * down, cell * across, row * window.dilations[0], cell * window.dilations[1])
    for part in iterate_blocks(conv.outputs[0], band):
        rows = part.stop - part.start
        windows = as_strided(source[part.start * down :], (rows, *shape), (*strides, one))
        yield partial(np.copyto, buffer[:rows], windows)
        yield from product(on, buffer[:rows].reshape(-1, cells), on.y[part])


def product(on: Last, windows: Array, y: Array) -> Iterator[Step]:
    """Y = windows·W + b, windows ordered by (line, column, channel)."""
    conv = on.conv
    assert conv.group == 1  # so it is in all of the models
    w = np.ascontiguousarray(on.w.transpose(2, 3, 1, 0)).reshape(-1, conv.features)
    flat = y.reshape(-1, conv.features)
    return iter((partial(np.matmul, windows, w, flat), partial(np.add, flat, on.bias, flat)))


def phases(on: Last) -> Iterator[Step]:
    """Y = columns·W with the columns of a window's height copied, its width read in place.

    A cell of the copy holds the channels of a column of the window, so a window is a run of cells.
    Windows that begin `apart` cells apart do not overlap: they are the rows of a matrix.
    """
    conv, window = on.conv, on.conv.window
    if window.dilations != (1, 1):
        yield from columns(on)
        return
    (down, across), (kh, kw) = window.strides, window.kernel
    count = -(-kw // across)
    apart = count * across
    groups = -(-conv.outputs[1] // count)
    needed = groups * apart + kw
    pads = window.pads_begin[1] + window.pads_end[1]
    source, steps = framed(on, max(0, needed - conv.spatial[1] - pads))
    yield from steps
    row, cell, one = source.strides
    width = source.shape[1]
    depth = kh * conv.channels
    band = count_in_block(WINDOWS, width * depth, conv.outputs[0])
    high = np.empty((band, width, kh, conv.channels), np.float32)
    sums = np.empty((band, groups, count, conv.features), np.float32)
    w = np.ascontiguousarray(on.w.transpose(3, 2, 1, 0)).reshape(-1, conv.features)
    for part in iterate_blocks(conv.outputs[0], band):
        rows = part.stop - part.start
        shape, strides = (rows, width, kh, conv.channels), (row * down, cell, row, one)
        tall = as_strided(source[part.start * down :], shape, strides)
        yield partial(np.copyto, high[:rows], tall)
        for phase in range(count):
            first = high[:rows, phase * across :]
            matrices = as_strided(
                first, (rows, groups, kw * depth), (width * depth * 4, apart * depth * 4, 4)
            )
            yield partial(np.matmul, matrices, w, sums[:rows, :, phase])
        kept = sums[:rows].reshape(rows, -1, conv.features)[:, : conv.outputs[1]]
        yield partial(np.add, kept, on.bias, on.y[part])


class Rows(NamedTuple):
    """A depthwise image whose columns lie apart by phase: (rows, phases, columns · channels)."""

    cells: Array
    steps: list[Step]
    width: int


def by_phase(on: Last) -> Rows:
    """Return the padded image with every stride-th column side by side."""
    conv, window = on.conv, on.conv.window
    across, (top, left) = window.strides[1], window.pads_begin
    reach = (window.kernel[1] - 1) * window.dilations[1]
    width = conv.outputs[1] + reach // across
    rows = conv.spatial[0] + top + window.pads_end[0]
    cells = np.zeros((rows, across, width, conv.channels), np.float32)
    steps: list[Step] = []
    for phase in range(across):
        start = (phase - left) % across
        begin = (start + left) // across
        kept = on.x[:, start::across][:, : width - begin]
        target = cells[top : top + conv.spatial[0], phase, begin : begin + kept.shape[1]]
        steps.append(partial(np.copyto, target, kept))
    return Rows(cells.reshape(rows, across, -1), steps, width)


def taps_of(on: Last) -> Iterator[tuple[int, int, int, Array]]:
    """Yield each tap's row, phase and offset in flat cells, and its weights for a row."""
    conv, window = on.conv, on.conv.window
    across, length = window.strides[1], conv.outputs[1]
    for i, j in itertools.product(*map(range, window.kernel)):
        column = j * window.dilations[1]
        row = np.tile(on.w[:, 0, i, j], length)
        yield i * window.dilations[0], column % across, column // across * conv.channels, row


def depthwise(on: Last) -> Iterator[Step]:
    """Y = Σ over taps of w·x, shifted, each tap a product and a sum over long rows."""
    conv, down = on.conv, on.conv.window.strides[0]
    source, steps, _ = by_phase(on)
    yield from steps
    length = conv.outputs[1] * conv.channels
    y = on.y.reshape(conv.outputs[0], length)
    bias = np.tile(on.bias, conv.outputs[1])
    band = count_in_block(BAND, length, conv.outputs[0])
    part = np.empty((band, length), np.float32)
    taps = list(taps_of(on))
    for rows in iterate_blocks(conv.outputs[0], band):
        number = rows.stop - rows.start
        total, product = y[rows], part[:number]
        for index, (i, phase, offset, w) in enumerate(taps):
            first = rows.start * down + i
            x = source[first : first + (number - 1) * down + 1 : down, phase]
            shifted = x[:, offset : offset + length]
            yield partial(np.multiply, shifted, w, product if index else total)
            if index:
                yield partial(np.add, total, product, total)
        yield partial(np.add, total, bias, total)


def depthwise_einsum(on: Last) -> Iterator[Step]:
    """Y = Σ over taps of w·x, one einsum for each row whose inner loop is over all its cells."""
    conv, window = on.conv, on.conv.window
    down, (kh, kw) = window.strides[0], window.kernel
    source, steps, width = by_phase(on)
    yield from steps
    length = conv.outputs[1] * conv.channels
    y = on.y.reshape(conv.outputs[0], length)
    w = np.stack([row for *_, row in taps_of(on)]).reshape(kh, kw, length)
    bias = np.tile(on.bias, conv.outputs[1])
    line = 4 * width * conv.channels
    strides = (4, line * window.dilations[0], 4 * conv.channels * window.dilations[1])
    for row in range(conv.outputs[0]):
        shifted = as_strided(source[row * down :], (length, kh, kw), strides)
        axes = [0, 1, 2]
        yield partial(np.einsum, shifted, axes, w, [1, 2, 0], [0], out=y[row], order="F")
    yield partial(np.add, y, bias, y)


def pooled(case: Case, x: Array, y: Array) -> Iterator[Step]:
    """Y = the maximum or mean over windows: along rows, then along columns."""
    _, *spatial, channels = x.shape
    window, sizes = find_pooling_window((1, 1, *spatial), case.node.attributes)
    assert window is not None
    rows, columns = y.shape[1:3]
    combine, neutral = (np.maximum, -np.inf) if case.node.op == "MaxPool" else (np.add, 0.0)
    (top, left), (kh, kw), (down, across) = window.pads_begin, window.kernel, window.strides
    needed = max((rows - 1) * down + kh, spatial[0] + top)
    beside = max((columns - 1) * across + kw, spatial[1] + left)
    source = x
    if (needed, beside) != tuple(spatial):
        source = np.full((len(x), needed, beside, channels), neutral, np.float32)
        yield partial(np.copyto, source[:, top : top + spatial[0], left : left + spatial[1]], x)
    high = np.empty((len(x), rows, beside, channels), np.float32)
    lines = [source[:, i : i + (rows - 1) * down + 1 : down] for i in range(kh)]
    yield from folded(combine, lines, high)
    cells = [high[:, :, j : j + (columns - 1) * across + 1 : across] for j in range(kw)]
    yield from folded(combine, cells, y)
    if case.node.op == "AveragePool":
        padding = case.node.attributes["count_include_pad"]
        axes = list_axis_windows(window, tuple(spatial), sizes)
        counts: Any = math.prod(np.ix_(*(axis.counts(padding=padding) for axis in axes)))
        yield partial(np.divide, y, np.asarray(counts[..., None], np.float32), out=y)


def folded(combine: np.ufunc, sources: list[Array], target: Array) -> Iterator[Step]:
    """Target = all sources, combined."""
    if len(sources) == 1:
        yield partial(np.copyto, target, sources[0])
        return
    yield partial(combine, sources[0], sources[1], out=target)
    for source in sources[2:]:
        yield partial(combine, target, source, out=target)
