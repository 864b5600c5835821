"""Vector instructions, with which the tile, the epilogue and copies are written.

Without them the compiler neither keeps a two-dimensional tile in registers nor masks the last
cells of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils, config

from .jit import instruction

_config: Any = config  # its attributes are set while it is imported


def find_features() -> frozenset[str]:
    """Return the instruction sets that Numba compiles for, which the environment may restrict."""
    if _config.CPU_FEATURES is not None:  # NUMBA_CPU_FEATURES
        named = _config.CPU_FEATURES.split(",")
        return frozenset(name[1:] for name in named if name.startswith("+"))
    if _config.CPU_NAME == "generic":
        return frozenset()
    found = llvmlite.binding.get_host_cpu_features()
    return frozenset(name for name, is_there in found.items() if is_there)


FEATURES = find_features()
LANES = 16 if "avx512f" in FEATURES else 8 if "avx2" in FEATURES else 4
"""Floats in a vector."""

FLOAT = ir.FloatType()
INT = ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)
MASK = ir.VectorType(ir.IntType(1), LANES)
ALL = ir.Constant(MASK, [1] * LANES)
"""The mask of whole vectors, which are loaded and stored unmasked."""

_numba: Any = cgutils  # some of it is typed, some is not

Value: TypeAlias = Any
"""A value of the emitted program; llvmlite is not typed."""


class Writer:
    """Emits vector instructions through a builder."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def index(self, number: int) -> Value:
        return ir.Constant(INT, number)

    def constant(self, number: float) -> Value:
        return ir.Constant(VECTOR, [ir.Constant(FLOAT, float(number))] * LANES)

    def advance(self, address: Value, count: Value, size: int = 4) -> Value:
        return self.builder.add(address, self.builder.mul(count, self.index(size)))

    def load(self, kind: Any, address: Value) -> Value:
        """Load a value of type `kind` at `address` with the alignment of array elements."""
        pointer = self.builder.inttoptr(address, kind.as_pointer())
        return self.builder.load(pointer, align=8 if kind is INT else 4)

    def store(self, value: Value, address: Value) -> None:
        pointer = self.builder.inttoptr(address, VECTOR.as_pointer())
        self.builder.store(value, pointer, align=4)

    def variable(self, value: Value) -> Value:
        """Return a stack slot for the vector `value`, which the compiler promotes to a register."""
        return _numba.alloca_once_value(self.builder, value)

    def splat(self, scalar: Value) -> Value:
        undefined = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, undefined, lanes)

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """Return `a`·`b` + `c`, rounded once."""
        return self._call(f"llvm.fma.v{LANES}f32", VECTOR, a, b, c)

    def clamp(self, x: Value, low: Value | None, high: Value | None) -> Value:
        """Return `x` between `low` and `high`, which are open if None; NaN stays NaN."""
        if low is not None:
            x = self.builder.select(self.builder.fcmp_ordered("<", x, low), low, x)
        if high is not None:
            x = self.builder.select(self.builder.fcmp_ordered(">", x, high), high, x)
        return x

    def even(self, low: Value, high: Value) -> Value:
        """Return one vector of every second lane of `low` and `high`."""
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(range(0, 2 * LANES, 2)))
        return self.builder.shuffle_vector(low, high, lanes)

    def mask(self, length: Value) -> Value:
        """Return the mask of the first `length` lanes; empty if it is negative."""
        lanes = ir.Constant(ir.VectorType(INT, LANES), list(range(LANES)))
        return self.builder.icmp_signed("<", lanes, self.splat(length))

    def masked_load(self, address: Value, mask: Value) -> Value:
        """Load the lanes of `mask` at `address`, else zeros. Other memory is not touched."""
        if mask is ALL:
            return self.load(VECTOR, address)
        pointer = self.builder.inttoptr(address, VECTOR.as_pointer())
        name = f"llvm.masked.load.v{LANES}f32.p0"
        return self._call(name, VECTOR, pointer, _align(4), mask, self.constant(0))

    def masked_store(self, value: Value, address: Value, mask: Value) -> None:
        if mask is ALL:
            self.store(value, address)
            return
        pointer = self.builder.inttoptr(address, VECTOR.as_pointer())
        name = f"llvm.masked.store.v{LANES}f32.p0"
        self._call(name, ir.VoidType(), value, pointer, _align(4), mask)

    def for_lanes(self, length: Value, body: Callable[[Value, Value], None]) -> None:
        """Emit a loop over vectors of `length` cells; `body` gets the first cell and the mask.

        Only the last vector computes a mask: AMD's processors take some twenty cycles for a masked
        store of AVX2.
        """
        builder = self.builder
        rounds = builder.udiv(length, self.index(LANES))
        with cgutils.for_range(builder, rounds, intp=INT) as loop:
            body(builder.mul(loop.index, self.index(LANES)), ALL)
        first = builder.mul(rounds, self.index(LANES))
        left = builder.sub(length, first)
        with builder.if_then(builder.icmp_signed(">", left, self.index(0))):
            body(first, self.mask(left))

    def store_lanes(self, value: Value, address: Value, length: Value) -> None:
        is_whole = self.builder.icmp_signed(">=", length, self.index(LANES))
        with self.builder.if_else(is_whole) as (whole, part):
            with whole:
                self.store(value, address)
            with part:
                self.masked_store(value, address, self.mask(length))

    def _call(self, name: str, result: Any, *arguments: Value) -> Value:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = _numba.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, arguments)


def emit(signature: Any, write: Callable[..., None]) -> tuple[Any, Any]:
    """Return the `signature` of an instruction, and the generator of code that calls `write`.

    It passes a `Writer` and the values of the arguments.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write(Writer(builder), *arguments)
        return context.get_dummy_value()

    return signature, generate


def _align(nbytes: int) -> Value:
    return ir.Constant(ir.IntType(32), nbytes)


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
