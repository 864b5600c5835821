"""The compiled loops of convolutions: frame the input, multiply tiles, apply the epilogue.

Arrays are passed as addresses: a view made in a loop is reference-counted, which costs more than a
row of work.
"""

from __future__ import annotations

import numpy as np
from numba import types

from ...graph.values.tensor import Array
from .epilogue import Numbers, finish_cells
from .jit import CELLS, TABLE, machine_code
from .tile import multiply_tile
from .vector import copy_cell, copy_cells, copy_every_second, zero_cells

CHUNK = 512
"""Most cells of each feature that are multiplied before the epilogue runs."""

HELD = 1 << 16
"""Most cells of all features in a chunk, unless a tile has more: 256 KB of the L2 cache."""

FLOAT = 4
"""Bytes."""

ADDS = Numbers._fields.index("adds")
"""Index of the epilogue's number that says whether there is a residual."""

ROWS_OF_CELLS = types.Array(types.float32, 2, "C")
BLOCKS = types.Array(types.float32, 4, "C")


@machine_code()
def copy_line(target: int, source: int, step: int, length: int) -> None:
    if step == 1:
        copy_cells(target, source, length)
    elif step == 2:
        copy_every_second(target, source, length)
    else:
        for i in range(length):
            copy_cell(target + FLOAT * i, source + FLOAT * i * step)


@machine_code()
def frame(
    source: int, target: int, channels: int, first_line: int, zeroed: bool, layout: Array
) -> None:
    """Lay out `channels` of a band in the frame `target`, from `first_line` of the output on.

    `source` has the input's cells, `layout` its sizes. Each phase of the strides has its own rows
    and columns. `zeroed` says that the frame holds zeros around its cells already, from other
    channels of the same layout.
    """
    height, width, top, left = layout[4], layout[5], layout[6], layout[7]
    down, across, row_phases, column_phases = layout[8], layout[9], layout[10], layout[11]
    rows, columns = layout[12], layout[13]
    for channel in range(channels):
        for row_phase in range(row_phases):
            for column_phase in range(column_phases):
                # Columns `first` to `last` of the frame come from the input.
                first = min(columns, max(0, -((column_phase - left) // across)))
                last = max(first, min(columns, (width - 1 + left - column_phase) // across + 1))
                begin = first * across + column_phase - left
                for row in range(first_line, first_line + rows):
                    line = row * down + row_phase - top
                    if line < 0 or line >= height:
                        if not zeroed:
                            zero_cells(target, columns)
                    else:
                        if first and not zeroed:
                            zero_cells(target, first)
                        if last < columns and not zeroed:
                            zero_cells(target + FLOAT * last, columns - last)
                        cells = source + FLOAT * ((channel * height + line) * width + begin)
                        copy_line(target + FLOAT * first, cells, across, last - first)
                    target += FLOAT * columns


@machine_code()
def multiply(
    rows: int, weights: int, source: int, offsets: int, depth: int, target: int, pitch: int
) -> None:
    # Each number of rows is compiled on its own.
    if rows == 12:
        multiply_tile(12, weights, source, offsets, depth, target, pitch)
    elif rows == 11:
        multiply_tile(11, weights, source, offsets, depth, target, pitch)
    elif rows == 10:
        multiply_tile(10, weights, source, offsets, depth, target, pitch)
    elif rows == 9:
        multiply_tile(9, weights, source, offsets, depth, target, pitch)
    elif rows == 8:
        multiply_tile(8, weights, source, offsets, depth, target, pitch)
    elif rows == 7:
        multiply_tile(7, weights, source, offsets, depth, target, pitch)
    elif rows == 6:
        multiply_tile(6, weights, source, offsets, depth, target, pitch)
    elif rows == 5:
        multiply_tile(5, weights, source, offsets, depth, target, pitch)
    elif rows == 4:
        multiply_tile(4, weights, source, offsets, depth, target, pitch)
    elif rows == 3:
        multiply_tile(3, weights, source, offsets, depth, target, pitch)
    elif rows == 2:
        multiply_tile(2, weights, source, offsets, depth, target, pitch)
    else:
        multiply_tile(1, weights, source, offsets, depth, target, pitch)


@machine_code()
def write_row(
    source: int,
    bias: float,
    y: int,
    residual: int,
    after: int,
    adds: bool,
    begin: int,
    length: int,
    pitch: int,
    columns: int,
) -> None:
    """Apply the epilogue `after` to `length` cells from `begin` on, but not after a line's end.

    `source` has lines of `pitch` cells, of which `y` and `residual` have `columns`; `bias` is
    added. Unless it `adds` the residual, all cells are finished in place: copying each line is
    cheaper than starting the epilogue for each.
    """
    if pitch == columns:
        place = FLOAT * begin
        finish_cells(source, bias, y + place, residual + place, length, after)
        return
    if not adds:
        finish_cells(source, bias, source, source, length, after)
    line = begin // pitch
    column = begin - line * pitch
    while length > 0:
        count = min(columns - column, length)
        if count > 0:
            place = FLOAT * (line * columns + column)
            if adds:
                finish_cells(source, bias, y + place, residual + place, count, after)
            else:
                copy_cells(y + place, source, count)
        source += FLOAT * (pitch - column)
        length -= pitch - column
        line, column = line + 1, 0


@machine_code()
def convolve_group(
    source: int,
    spare: bool,
    lines: int,
    weights: int,
    offsets: Array,
    bias: Array,
    first_feature: int,
    y: int,
    residual: int,
    after: Array,
    buffer: Array,
    rows: int,
    layout: Array,
) -> None:
    """Compute `lines` of a group from `first_feature` on; with `spare`, `source` has more cells.

    `weights`, `offsets`, `bias` and `after` are those of `convolve`; `y` and `residual` are
    addresses. `buffer` has tiles of `rows` rows, and `layout` holds the sizes.
    """
    features, plane = layout[2], layout[3]
    pitch, columns, width = layout[13], layout[14], layout[16]
    cells = (lines - 1) * pitch + columns
    depth, held = offsets.size, buffer.ctypes.data
    adds = after[ADDS] != 0
    size = buffer.size // (-(-features // rows) * rows)
    for chunk in range(0, cells, size):
        end = min(chunk + size, cells)
        # Tiles outside, features inside: a tile's cells are scattered and stay in L1, while the
        # weights are read from L2 in order.
        for begin in range(chunk, end, width):
            # Without spare cells the last tile starts further left, over cells done already: a tile
            # reads its whole width, and no memory may follow the last cell.
            by = 0 if spare else max(0, begin + width - cells)
            at = source + FLOAT * (begin - by)
            for block in range(0, features, rows):
                own, place = weights + FLOAT * block * depth, block * size + begin - chunk
                multiply(rows, own, at, offsets.ctypes.data, depth, held + FLOAT * place, size)
                if by:
                    for row in range(rows):
                        for i in range(place + row * size, place + row * size + end - begin):
                            buffer[i] = buffer[i + by]
        for feature in range(features):
            write_row(
                held + FLOAT * feature * size,
                bias[first_feature + feature],
                y + FLOAT * feature * plane,
                residual + FLOAT * feature * plane,
                after.ctypes.data,
                adds,
                chunk,
                end - chunk,
                pitch,
                columns,
            )


@machine_code(CELLS, BLOCKS, TABLE, CELLS, CELLS, CELLS, CELLS, CELLS, TABLE)
def convolve(
    x: Array,
    weights: Array,
    offsets: Array,
    bias: Array,
    y: Array,
    residual: Array,
    after: Array,
    framed: Array,
    layout: Array,
) -> None:
    """Compute `y` = after(`weights`·`x` + `bias`) for each image and group.

    `after` has the numbers of `CompiledEpilogue.packed`, `offsets` and `layout` (int64) those of
    `CompiledConvolution`. It may add `residual`. `framed` is scratch for the framed channels of a
    group, empty if x is read in place.
    """
    batch, depth, features, plane = layout[0], layout[1], layout[2], layout[3]
    height, width, columns = layout[4], layout[5], layout[14]
    groups, blocks, _, rows = weights.shape
    size = CHUNK  # a multiple of any tile's width
    while size > layout[16] and size * blocks * rows > HELD:
        size //= 2
    buffer = np.empty(blocks * rows * size, np.float32)
    for part in range(batch * groups):
        group = part % groups
        source = x.ctypes.data + FLOAT * part * depth * height * width
        # In bands, so that the frame is still in the cache when it is read.
        lines = plane // columns
        band = min(layout[15], lines)
        for line in range(0, lines, band):
            if framed.size:
                # Only a band that covers the whole image leaves a frame that the next image can
                # reuse.
                zeroed = part > 0 and band == lines
                frame(source, framed.ctypes.data, depth, line, zeroed, layout)
            convolve_group(
                framed.ctypes.data if framed.size else source,
                framed.size > 0,
                min(band, lines - line),
                weights.ctypes.data + FLOAT * group * blocks * offsets.size * rows,
                offsets,
                bias,
                group * features,
                y.ctypes.data + FLOAT * (part * features * plane + line * columns),
                residual.ctypes.data + FLOAT * (part * features * plane + line * columns),
                after,
                buffer,
                rows,
                layout,
            )


@machine_code(ROWS_OF_CELLS, ROWS_OF_CELLS, CELLS, CELLS, CELLS, CELLS)
def convolve_point(
    x: Array, weights: Array, bias: Array, y: Array, residual: Array, after: Array
) -> None:
    """Compute `y` = after(`x`·`weights` + `bias`, `residual`) for one cell.

    `weights` are (channels, features), and `after` has the numbers of `CompiledEpilogue.packed`.
    """
    channels, features = weights.shape
    sums = np.empty(features, np.float32)
    for image in range(x.shape[0]):
        for feature in range(features):
            sums[feature] = bias[feature]
        for channel in range(channels):
            factor = x[image, channel]
            for feature in range(features):
                sums[feature] += factor * weights[channel, feature]
        place = FLOAT * image * features
        finish_cells(
            sums.ctypes.data,
            np.float32(0),
            y.ctypes.data + place,
            residual.ctypes.data + place,
            features,
            after.ctypes.data,
        )
