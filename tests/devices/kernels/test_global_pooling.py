from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import FLOATS, SEEDS, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from single_node import run_node

FEW = settings(max_examples=25)
TOLERANCE = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}

PLANES = st.tuples(
    st.integers(0, 3), st.integers(0, 3), st.lists(st.integers(1, 5), min_size=1, max_size=3)
).map(lambda drawn: (drawn[0], drawn[1], *drawn[2]))


@given(PLANES, st.sampled_from(FLOATS), SEEDS)
@FEW
def test_global_average_pool_takes_the_mean_of_each_plane(
    shape: tuple[int, ...], dtype: str, seed: int
) -> None:
    x = random_array(dtype, shape, seed)

    (y,) = run_node("GlobalAveragePool", [x])

    axes = tuple(range(2, len(shape)))
    wanted = x.astype(float).mean(axis=axes, keepdims=True)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, wanted, rtol=TOLERANCE[dtype], atol=9 * TOLERANCE[dtype])


def test_global_average_pool_of_half_precision_does_not_overflow() -> None:
    x = np.full((1, 1, 40, 40), 60000, np.float16)

    (y,) = run_node("GlobalAveragePool", [x])

    assert y.item() == np.float16(60000)


@given(PLANES, st.sampled_from(FLOATS), SEEDS)
@FEW
def test_global_max_pool_takes_the_greatest_cell_of_each_plane(
    shape: tuple[int, ...], dtype: str, seed: int
) -> None:
    x = random_array(dtype, shape, seed)

    (y,) = run_node("GlobalMaxPool", [x])

    axes = tuple(range(2, len(shape)))
    np.testing.assert_array_equal(y, x.max(axis=axes, keepdims=True), strict=True)


@given(PLANES, st.sampled_from(FLOATS), st.integers(1, 3), SEEDS)
@FEW
def test_global_lp_pool_takes_the_norm_of_each_plane(
    shape: tuple[int, ...], dtype: str, p: int, seed: int
) -> None:
    x = random_array(dtype, shape, seed)

    (y,) = run_node("GlobalLpPool", [x], {"p": p})

    axes = tuple(range(2, len(shape)))
    wanted = (np.abs(x.astype(float)) ** p).sum(axis=axes, keepdims=True) ** (1 / p)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, wanted, rtol=5 * TOLERANCE[dtype])


def unpool_attributes(rank: int) -> dict[str, Any]:
    return {"kernel_shape": [2] * rank, "strides": [2] * rank}


@pytest.mark.parametrize("spatial", [(6,), (4, 6), (2, 4, 4)])
def test_max_unpool_puts_maxima_back_to_where_max_pool_found_them(
    spatial: tuple[int, ...],
) -> None:
    x = np.random.default_rng(1).permutation(6 * int(np.prod(spatial))).astype(np.float32)
    x = x.reshape(2, 3, *spatial)
    attributes = unpool_attributes(len(spatial))
    pooled, indices = run_node("MaxPool", [x], attributes, 2)

    (y,) = run_node("MaxUnpool", [pooled, indices], attributes)

    np.testing.assert_array_equal(y, np.where(np.isin(x, pooled), x, 0), strict=True)


def test_max_unpool_adds_margins_up_to_the_given_shape() -> None:
    x = np.array([[[[5, 6], [7, 8]]]], np.float32)
    indices = np.array([[[[5, 7], [13, 15]]]])
    shape = np.array([1, 1, 5, 5])

    (y,) = run_node("MaxUnpool", [x, indices, shape], unpool_attributes(2), constant=[2])

    wanted = np.zeros((5, 5))
    wanted[1, 1], wanted[1, 3], wanted[3, 1], wanted[3, 3] = 5, 6, 7, 8
    np.testing.assert_array_equal(y[0, 0], wanted)
