"""Definitions and kernels of reductions and scans, written apart, agree."""

from __future__ import annotations

import numpy as np
import pytest
from by_definition import AnyArray, Both
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.formal import reduction

REDUCTIONS = (*reduction.REDUCTIONS, "ReduceMean", "ReduceMax", "ReduceMin")
DTYPES = ("bool", "int32", "uint8", "int64", "float16", "float32", "float64")
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def numbers(dtype: str, shape: tuple[int, ...], seed: int) -> AnyArray:
    """Return numbers that no sum or product of a few of them overflows."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind != "f":
        low = -2 if dtype.startswith("int") else 0
        return rng.integers(low, 2 if dtype == "bool" else 3, shape).astype(dtype)
    x = rng.standard_normal(shape).astype(dtype)
    special = rng.random(shape) < 0.05
    x[special] = rng.choice(SPECIAL, special.sum())
    return x


@pytest.mark.parametrize("op", REDUCTIONS)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=shapes,
    seed=st.integers(0, 99),
    keepdims=st.booleans(),
    noop=st.booleans(),
    data=st.data(),
)
def test_reductions(
    both: Both,
    op: str,
    dtype: str,
    shape: tuple[int, ...],
    seed: int,
    keepdims: bool,
    noop: bool,
    data: st.DataObject,
) -> None:
    rank = len(shape)
    chosen = data.draw(st.none() | st.sets(st.integers(0, rank - 1) if rank else st.nothing()))
    axes = None if chosen is None else np.array([a - rank * (a % 2) for a in chosen], np.int64)
    x = np.abs(numbers(dtype, shape, seed)) if op == "ReduceLogSum" else numbers(dtype, shape, seed)
    both.agree(op, x, axes, constant=(1,), keepdims=keepdims, noop_with_empty_axes=noop)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@given(
    dtype=st.sampled_from(DTYPES),
    shape=shapes,
    seed=st.integers(0, 99),
    keepdims=st.booleans(),
    last=st.booleans(),
    data=st.data(),
)
def test_places_of_extrema(
    both: Both,
    op: str,
    dtype: str,
    shape: tuple[int, ...],
    seed: int,
    keepdims: bool,
    last: bool,
    data: st.DataObject,
) -> None:
    rank = max(len(shape), 1)
    axis = data.draw(st.integers(-rank, rank - 1))
    x = numbers(dtype, shape, seed)
    both.agree(op, x, axis=axis, keepdims=keepdims, select_last_index=last)


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@given(
    dtype=st.sampled_from(DTYPES[1:]),
    shape=shapes.filter(bool),
    seed=st.integers(0, 99),
    exclusive=st.booleans(),
    reverse=st.booleans(),
    data=st.data(),
)
def test_scans(
    both: Both,
    op: str,
    dtype: str,
    shape: tuple[int, ...],
    seed: int,
    exclusive: bool,
    reverse: bool,
    data: st.DataObject,
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = numbers(dtype, shape, seed)
    assert both.agree(op, x, np.array(axis), exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_an_operator_takes_floats_and_gives_a_result_of_nothing(both: Both, op: str) -> None:
    for shape in ((0,), (2, 0), (2, 3)):
        assert both.agree(op, np.ones(shape, np.float32), keepdims=False)


def test_means_and_lengths_of_integers_are_rounded_toward_zero(both: Both) -> None:
    x = np.array([[-3, 2, 0], [5, 6, 2], [-1, 0, 0]], np.int32)
    for op in ("ReduceMean", "ReduceL2"):
        assert both.agree(op, x, np.array([1]), constant=(1,))
