"""Instructions that copy and zero runs of float32 cells."""

from __future__ import annotations

from typing import Any

from numba import types

from .jit import instruction
from .vector import FLOAT, LANES, Value, Writer, emit


@instruction
def copy_cells(typing_context: Any, target: Any, source: Any, length: Any) -> Any:
    # Copies `length` float32 cells from `source` to `target`, addresses that do not overlap.
    def generate(write: Writer, target: Value, source: Value, length: Value) -> None:

        def cells(first: Value, mask: Value) -> None:
            x = write.masked_load(write.advance(source, first), mask)
            write.masked_store(x, write.advance(target, first), mask)

        write.for_lanes(length, cells)

    return emit(types.void(types.int64, types.int64, types.int64), generate)


@instruction
def zero_cells(typing_context: Any, target: Any, length: Any) -> Any:
    def generate(write: Writer, target: Value, length: Value) -> None:

        def cells(first: Value, mask: Value) -> None:
            write.masked_store(write.constant(0), write.advance(target, first), mask)

        write.for_lanes(length, cells)

    return emit(types.void(types.int64, types.int64), generate)


@instruction
def copy_every_second(typing_context: Any, target: Any, source: Any, length: Any) -> Any:
    # Copies `length` float32 cells to `target`, every second one from `source` on.
    def generate(write: Writer, target: Value, source: Value, length: Value) -> None:

        builder = write.builder

        def cells(first: Value, mask: Value) -> None:
            begin = builder.mul(first, write.index(2))
            # The cell after the last one read may belong to other memory: the mask leaves it out.
            left = builder.sub(
                builder.mul(length, write.index(2)), builder.add(begin, write.index(1))
            )
            low, high = (
                write.masked_load(
                    write.advance(source, builder.add(begin, write.index(half * LANES))),
                    write.mask(builder.sub(left, write.index(half * LANES))),
                )
                for half in (0, 1)
            )
            write.masked_store(write.even(low, high), write.advance(target, first), mask)

        write.for_lanes(length, cells)

    return emit(types.void(types.int64, types.int64, types.int64), generate)


@instruction
def copy_cell(typing_context: Any, target: Any, source: Any) -> Any:
    def generate(write: Writer, target: Value, source: Value) -> None:
        pointer = write.builder.inttoptr(target, FLOAT.as_pointer())
        write.builder.store(write.load(FLOAT, source), pointer, align=4)

    return emit(types.void(types.int64, types.int64), generate)
