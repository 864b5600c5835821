"""LightNet's operators that make tensors: weights, zeros, steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...graph.core.parameters import INT_MAX
from ...graph.values.tensor import Array
from .entries import fail
from .statement import Statement, register_rule

_BLOCK = 2**14
"""Steps computed as doubles at a time."""


@register_rule("create", "", "dtype dims ran data from_file")
def create(op: Statement) -> None:
    """Write `op` as a constant if weights or data give its value, else as an input."""
    dims, dtype, name = _read_dims(op), op.dtype(), op.output()
    low, high = op.numbers("ran", 2)
    if low > high:
        fail(f"parameter 'ran' is not a range: {low} to {high}", op.at)
    weights = op.reading.weights.get(name)
    if name in op.reading.fed or (weights is None and (op.flag("from_file") or low or high)):
        op.reading.builder.input(name, dtype, dims)
        return
    if weights is not None:
        if weights.dtype != dtype or weights.size != math.prod(dims):
            fail(
                f"tensor {name!r} is {dtype.name}{list(dims)}, but {weights.size} elements of "
                f"{weights.dtype.name} among the weights",
                op.at,
            )
        op.reading.builder.constant(weights.reshape(dims), name)
        return
    data = op.numbers("data")
    if len(data) == 1 and not data[0]:
        _make_zeros(op, dims, dtype)
        return
    if len(data) != math.prod(dims):
        fail(f"parameter 'data' holds {len(data)} elements, not {math.prod(dims)}", op.at)
    op.reading.builder.constant(clamp_to_dtype(np.array(data), dtype).reshape(dims), name)


@register_rule("zeros", "", "dtype dims")
def zeros(op: Statement) -> None:
    _make_zeros(op, _read_dims(op), op.dtype())


@register_rule("arange", "", "dtype start stop step")
def arange(op: Statement) -> None:
    op.reading.builder.constant(_make_steps(op, op.dtype()), op.output())


@register_rule("rearange", "src", "start stop step")
def rearange(op: Statement) -> None:
    """Write `op`, steps like those of arange in the memory of src."""
    src = op.input("src")
    spec, values = op.spec(src, rank=1), _make_steps(op, op.spec(src).dtype)
    if values.shape != spec.shape:
        fail(f"{len(values)} steps do not fit in {src!r}, {spec}", op.at)
    op.last("Identity", values)
    op.reading.overwrite(src, op.entry)


def clamp_to_dtype(values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert the doubles `values` to `dtype`, with those outside clamped to its range."""
    if dtype.kind == "b":
        return values != 0
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        return values.clip(float(limits.min), float(limits.max)).astype(dtype)
    bounds = np.iinfo(dtype)
    return values.clip(bounds.min, bounds.max).astype(dtype)


def _make_zeros(op: Statement, dims: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    op.reading.allot(math.prod(dims) * dtype.itemsize, op.at)
    op.reading.builder.constant(np.zeros(dims, dtype), op.output())


def _read_dims(op: Statement) -> tuple[int, ...]:
    dims = op.integers("dims", least=1)
    if math.prod(dims) > INT_MAX:
        fail(f"a tensor of {math.prod(dims)} elements", op.at)
    return dims


def _make_steps(op: Statement, dtype: np.dtype[Any]) -> Array:
    start, stop, step = (op.number(name) for name in ("start", "stop", "step"))
    if not (step > 0 and (stop - start) / step > 0):
        fail(f"no steps of {step} lead from {start} to {stop}", op.at)
    count = math.ceil(min((stop - start) / step, INT_MAX))
    op.reading.allot(count * dtype.itemsize, op.at, computed=True)
    found = np.empty(count, dtype)
    for begin in range(0, count, _BLOCK):
        places = np.arange(begin, min(begin + _BLOCK, count), dtype=np.float64)
        found[begin : begin + _BLOCK] = clamp_to_dtype(start + step * places, dtype)
    return found
