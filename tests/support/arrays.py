"""Strategies for arrays: shapes by hypothesis, so that they shrink, and values from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.extra.numpy as arrays_of
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from plait.graph.values.dtypes import dtype_of, is_extension

AnyArray = NDArray[Any]

FLOATS = ("float16", "float32", "float64")
SIGNED_INTEGERS = ("int8", "int16", "int32", "int64")
UNSIGNED_INTEGERS = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED_INTEGERS + UNSIGNED_INTEGERS
NUMBERS = FLOATS + INTEGERS
COMPLEX = ("complex64", "complex128")
EVERY = (*NUMBERS, *COMPLEX, "bool")

SEEDS = st.integers(0, 2**32 - 1)


def shapes(min_rank: int = 0, max_rank: int = 4, max_length: int = 5) -> Any:
    """Return a strategy for shapes; lengths of 0 and 1 are among them."""
    return st.lists(st.integers(0, max_length), min_size=min_rank, max_size=max_rank).map(tuple)


def random_array(
    dtype: str, shape: Sequence[int], seed: int, low: int = -9, high: int = 9
) -> AnyArray:
    """Return numbers in [low, high]; floats are fractions, with some zeros of either sign."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        return rng.integers(max(low, 0) if kind == "u" else low, high, shape, dtype, endpoint=True)
    values = rng.uniform(low, high, shape)
    if low <= 0 <= high:
        values = np.where(rng.random(shape) < 0.1, np.copysign(0.0, values), values)
    if kind == "c":
        return (values + 1j * rng.uniform(low, high, shape)).astype(dtype)
    return values.astype(dtype)


def any_bits(dtype: str, shape: Any) -> Any:
    """Return a strategy for arrays of any dtype, those that hypothesis does not know included."""
    found = dtype_of(dtype)
    if not is_extension(found):
        return arrays_of.arrays(found, shape)
    return arrays_of.arrays(f"uint{8 * found.itemsize}", shape).map(lambda bits: bits.view(found))


@st.composite
def broadcastable(draw: st.DrawFn, count: int, max_rank: int = 4) -> list[tuple[int, ...]]:
    """Draw shapes that broadcast together."""
    whole = draw(shapes(max_rank=max_rank))
    drawn = []
    for _ in range(count):
        suffix = whole[draw(st.integers(0, len(whole))) :]
        drawn.append(tuple(1 if draw(st.booleans()) else length for length in suffix))
    return drawn


@st.composite
def operands(
    draw: st.DrawFn, dtypes: Sequence[str], count: int = 2, low: int = -9, high: int = 9
) -> list[AnyArray]:
    """Draw arrays of one dtype that broadcast together."""
    dtype, seed = draw(st.sampled_from(dtypes)), draw(SEEDS)
    return [
        random_array(dtype, shape, seed + place, low, high)
        for place, shape in enumerate(draw(broadcastable(count)))
    ]
