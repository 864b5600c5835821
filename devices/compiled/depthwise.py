"""Depthwise convolutions over short lines, straight from the input.

Framing a channel and dropping the ends of its lines would take longer than its few products. So the
cells of a tap beyond the ends of a line are masked, and so are whole lines. Where this pays it is
twice as fast (272 planes of 14 by 14 cells: 0.044 ms, 0.083 ms framed).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from ...graph.values.tensor import Array
from .epilogue import finish_cells
from .jit import CELLS, TABLE, instruction, machine_code
from .vector import FLOAT, INT, LANES, Value, Writer, emit

LINES = 4
"""Lines computed together, so that their additions overlap."""

BYTES = 4
"""Size of a cell."""

CHUNK = 1 << 12
"""Sums of a channel computed before the epilogue runs; they fit in the innermost cache."""

_SHORT = ir.IntType(32)
_PLACES = ir.VectorType(_SHORT, LANES)


@instruction
def sum_lines(
    typing_context: Any,
    across: Any,
    source: Any,
    weights: Any,
    first_row: Any,
    target: Any,
    layout: Any,
) -> Any:
    # Writes Σ over taps of weights[tap] · source[line, cell + tap] for LINES lines to `target`.
    # Windows move by `across` cells, 1 or 2, a literal. `source`, `weights`, `target` and `layout`
    # are addresses; the first line's window begins at `first_row` of the source.
    if not isinstance(across, types.IntegerLiteral):
        return None
    apart = across.literal_value
    signature = types.void(across, *[types.int64] * 5)
    return emit(signature, lambda write, _, *given: _sum(write, apart, *given))


def _sum(
    write: Writer, across: int, source: Value, weights: Value, row: Value, target: Value, at: Value
) -> None:
    builder = write.builder
    height, width, columns, left, rows, cells, below, beside, down = (
        write.load(INT, write.advance(at, write.index(i), 8)) for i in range(9)
    )
    rounds = builder.udiv(builder.add(columns, write.index(LANES - 1)), write.index(LANES))
    with cgutils.for_range(builder, rounds, intp=INT) as vector:
        column = builder.mul(vector.index, write.index(LANES))
        begin = builder.sub(builder.mul(column, write.index(across)), left)
        sums = [write.variable(write.constant(0)) for _ in range(LINES)]
        with cgutils.for_range(builder, rows, intp=INT) as tap_row:
            first = builder.add(row, builder.mul(tap_row.index, below))
            lines = [builder.add(first, builder.mul(down, write.index(n))) for n in range(LINES)]
            bounds = [_measure_line(write, line, height, width) for line in lines]
            starts = [write.advance(source, builder.mul(line, width)) for line in lines]
            with cgutils.for_range(builder, cells, intp=INT) as tap:
                place = builder.add(begin, builder.mul(tap.index, beside))
                number = builder.add(builder.mul(tap_row.index, cells), tap.index)
                w = write.splat(write.load(FLOAT, write.advance(weights, number)))
                for total, start, bound in zip(sums, starts, bounds, strict=True):
                    x = _load_masked(write, across, start, place, bound)
                    builder.store(write.multiply_add(w, x, builder.load(total)), total)
        left = builder.sub(columns, column)
        for n, total in enumerate(sums):
            line = builder.add(column, builder.mul(columns, write.index(n)))
            write.store_lanes(builder.load(total), write.advance(target, line), left)


def _measure_line(write: Writer, line: Value, height: Value, width: Value) -> Value:
    """Emit with `write` the length of `line` in all lanes: `width`, or 0 from `height` on."""
    builder = write.builder
    inside = builder.icmp_unsigned("<", line, height)
    length = builder.select(inside, width, write.index(0))
    return write.splat(builder.trunc(length, _SHORT))


def _load_masked(write: Writer, across: int, line: Value, place: Value, bound: Value) -> Value:
    """Emit with `write` loads of `across` vectors from `place` in `line`; beyond `bound` is 0."""
    builder = write.builder
    parts = []
    for part in range(across):
        begin = builder.add(place, write.index(part * LANES))
        lanes = ir.Constant(_PLACES, list(range(LANES)))
        places = builder.add(write.splat(builder.trunc(begin, _SHORT)), lanes)
        mask = builder.icmp_unsigned("<", places, bound)
        parts.append(write.masked_load(write.advance(line, begin), mask))
    return parts[0] if across == 1 else write.even(*parts)


@machine_code(CELLS, CELLS, CELLS, CELLS, CELLS, CELLS, TABLE)
def convolve_channels(
    x: Array, weights: Array, bias: Array, y: Array, residual: Array, after: Array, layout: Array
) -> None:
    """Compute `y` = after(`weights`·`x` + `bias`, `residual`) for each image and channel.

    `after` has the numbers of `CompiledEpilogue.packed`. `layout` (int64) has the rows and columns
    of the input, columns of the output, cells before the first column, rows and columns of the
    kernel, both dilations, row stride, images, output rows, column stride, rows above the first.
    """
    height, width, columns, down = layout[0], layout[1], layout[2], layout[8]
    batch, lines, across, top = layout[9], layout[10], layout[11], layout[12]
    channels, taps = bias.size, layout[4] * layout[5]
    band = LINES * max(1, CHUNK // (LINES * columns))
    buffer = np.empty(band * columns, np.float32)
    held, at = buffer.ctypes.data, layout.ctypes.data
    for part in range(batch * channels):
        channel = part % channels
        source = x.ctypes.data + BYTES * part * height * width
        own = weights.ctypes.data + BYTES * channel * taps
        for line in range(0, lines, band):
            count = min(band, lines - line)
            for begin in range(0, count, LINES):
                row, target = (line + begin) * down - top, held + BYTES * begin * columns
                if across == 1:
                    sum_lines(1, source, own, row, target, at)
                else:
                    sum_lines(2, source, own, row, target, at)
            place = BYTES * (part * lines + line) * columns
            finish_cells(
                held,
                bias[channel],
                y.ctypes.data + place,
                residual.ctypes.data + place,
                count * columns,
                after.ctypes.data,
            )
