"""The epilogue of a convolution, run in cache: add, activate, scale and shift its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import types

from ...graph.values.tensor import Array
from .jit import instruction
from .vector import FLOAT, INT, Value, Writer, emit

NONE, RELU, CLIP, HARD_SWISH, HARD_SIGMOID, LEAKY_RELU = range(6)


class Numbers(NamedTuple):
    """The compiled form of an epilogue: y = activate(v + residual) · scale + shift."""

    activation: int = NONE
    """One of the constants of this module."""
    adds: bool = False
    scales: bool = False
    """Whether there is a residual; whether `scale` and `shift` are used."""
    a: float = 0.0
    b: float = 0.0
    """The bounds of CLIP, slope and offset of HARD_SIGMOID, the slope of LEAKY_RELU."""
    scale: float = 1.0
    shift: float = 0.0


PLAIN = Numbers()


@dataclass(frozen=True, slots=True)
class CompiledEpilogue:
    numbers: Numbers = PLAIN
    residual: Array | None = None

    def packed(self) -> Array:
        """Return the numbers as an array, which is cheap to pass to compiled loops."""
        return np.array(self.numbers, np.float32)


_Activation = Callable[[Writer, Value, Value, Value], Value]


def _hard_swish(write: Writer, x: Value, a: Value, b: Value) -> Value:
    sixth, half = write.constant(1 / 6), write.constant(0.5)
    gate = write.builder.fadd(write.builder.fmul(x, sixth), half)
    return write.builder.fmul(x, write.clamp(gate, write.constant(0), write.constant(1)))


def _hard_sigmoid(write: Writer, x: Value, a: Value, b: Value) -> Value:
    line = write.builder.fadd(write.builder.fmul(x, a), b)
    return write.clamp(line, write.constant(0), write.constant(1))


def _leaky_relu(write: Writer, x: Value, a: Value, b: Value) -> Value:
    below = write.builder.fcmp_ordered("<", x, write.constant(0))
    return write.builder.select(below, write.builder.fmul(x, a), x)


_FORMULAS: dict[int, _Activation] = {
    NONE: lambda write, x, a, b: x,
    RELU: lambda write, x, a, b: write.clamp(x, write.constant(0), None),
    CLIP: lambda write, x, a, b: write.clamp(x, a, b),
    HARD_SWISH: _hard_swish,
    HARD_SIGMOID: _hard_sigmoid,
    LEAKY_RELU: _leaky_relu,
}


@instruction
def finish_cells(
    typing_context: Any,
    source: Any,
    bias: Any,
    target: Any,
    residual: Any,
    length: Any,
    numbers: Any,
) -> Any:
    # Writes the epilogue of source + bias to `target`, for `length` cells of one channel. All but
    # `bias` and `length` are addresses; `residual` is added, and `numbers` holds float32.
    signature = types.void(
        types.int64, types.float32, types.int64, types.int64, types.int64, types.int64
    )
    return emit(signature, _finish)


def _finish(
    write: Writer,
    source: Value,
    bias: Value,
    target: Value,
    residual: Value,
    length: Value,
    numbers: Value,
) -> None:
    builder = write.builder
    activation, adds, scales, a, b, scale, shift = (
        write.splat(write.load(FLOAT, write.advance(numbers, write.index(i))))
        for i in range(len(Numbers._fields))
    )
    kind = builder.fptosi(builder.extract_element(activation, write.index(0)), INT)
    has_residual, has_scale = (
        builder.fcmp_ordered("!=", flag, write.constant(0)) for flag in (adds, scales)
    )
    bias = write.splat(bias)
    for code, formula in _FORMULAS.items():
        with builder.if_then(builder.icmp_signed("==", kind, write.index(code))):

            def cells(first: Value, mask: Value, formula: _Activation = formula) -> None:
                x = write.masked_load(write.advance(source, first), mask)
                x = builder.fadd(x, bias)
                other = write.masked_load(
                    write.advance(residual, first), builder.and_(mask, has_residual)
                )
                x = builder.select(has_residual, builder.fadd(x, other), x)
                y = formula(write, x, a, b)
                scaled = builder.fadd(builder.fmul(y, scale), shift)
                y = builder.select(has_scale, scaled, y)
                write.masked_store(y, write.advance(target, first), mask)

            write.for_lanes(length, cells)
