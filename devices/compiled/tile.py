"""The innermost loop of all convolutions: a tile of outputs held in vector registers.

It is the "micro-kernel" of Goto and van de Geijn 2008, "Anatomy of high-performance matrix
multiplication". A table of offsets locates the operand's rows, as in Dukhan 2019, "The indirect
convolution algorithm": a row is a channel, or a channel shifted by a tap.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils

from .jit import instruction
from .vector import FEATURES, FLOAT, INT, LANES, VECTOR, Writer, emit

ROWS = 12 if "avx512f" in FEATURES else 6
"""Most rows of a tile that are computed together: with two vectors each they use 24 of the 32
registers (12 of 16)."""


def count_vectors(rows: int) -> int:
    """Return the width in vectors of a tile of `rows`: few rows are wide, to overlap additions."""
    return 8 if rows == 1 else 4 if rows <= ROWS // 3 else 2


@instruction
def multiply_tile(
    typing_context: Any,
    rows: Any,
    weights: Any,
    source: Any,
    offsets: Any,
    depth: Any,
    target: Any,
    pitch: Any,
) -> Any:
    # Writes Σ over k of weights[k, row] · source[offsets[k] + lane] to target[row · pitch + lane].
    # `rows` is a literal, and `depth` counts k; all others but `pitch` are addresses.
    if not isinstance(rows, types.IntegerLiteral):
        return None
    n_rows = rows.literal_value
    signature = types.void(rows, *[types.int64] * 6)
    return emit(signature, lambda write, _, *given: _emit_tile(write, n_rows, *given))


def _emit_tile(
    write: Writer,
    rows: int,
    weights: Any,
    source: Any,
    offsets: Any,
    depth: Any,
    target: Any,
    pitch: Any,
) -> None:
    builder, vectors = write.builder, range(count_vectors(rows))
    zeros = write.constant(0)
    sums = [[write.variable(zeros) for _ in vectors] for _ in range(rows)]
    with cgutils.for_range(builder, depth, intp=INT) as loop:
        offset = write.load(INT, write.advance(offsets, loop.index, 8))
        cells = write.advance(source, offset)
        x = [write.load(VECTOR, write.advance(cells, write.index(LANES * v))) for v in vectors]
        column = write.advance(weights, loop.index, 4 * rows)
        for row in range(rows):
            w = write.splat(write.load(FLOAT, write.advance(column, write.index(row))))
            for v in vectors:
                total = write.multiply_add(w, x[v], builder.load(sums[row][v]))
                builder.store(total, sums[row][v])
    for row in range(rows):
        line = write.advance(target, pitch, 4 * row)
        for v in vectors:
            write.store(builder.load(sums[row][v]), write.advance(line, write.index(LANES * v)))
