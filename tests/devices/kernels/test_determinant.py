from __future__ import annotations

from itertools import permutations
from math import prod

import arrays
import numpy as np
import pytest
from arrays import FLOATS, AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.errors import ShapeError
from single_node import run_node

TOLERANCE = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}


def leibniz(matrix: AnyArray) -> float:
    """Return the signed sum of the products over all permutations."""
    total = 0.0
    for places in permutations(range(len(matrix))):
        swapped = sum(a > b for i, a in enumerate(places) for b in places[i + 1 :])
        total += (-1) ** swapped * prod(
            float(row[p]) for row, p in zip(matrix, places, strict=True)
        )
    return total


@given(
    batch=arrays.shapes(max_rank=2, max_length=3),
    size=st.integers(0, 4),
    dtype=st.sampled_from(FLOATS),
    seed=arrays.SEEDS,
)
@settings(max_examples=60)
def test_det_is_the_sum_over_permutations(
    batch: tuple[int, ...], size: int, dtype: str, seed: int
) -> None:
    x = random_array(dtype, (*batch, size, size), seed, -2, 2)

    (y,) = run_node("Det", [x])

    assert (y.dtype.name, y.shape) == (dtype, batch)
    for index in np.ndindex(batch):
        bound = prod(float(abs(row).sum()) for row in x[index].astype(float)) + 1
        assert abs(float(y[index]) - leibniz(x[index])) <= TOLERANCE[dtype] * bound


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 1)])
def test_det_refuses_what_is_not_square(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError):
        run_node("Det", [np.ones(shape, np.float32)])


@given(size=st.integers(1, 4), dtype=st.sampled_from(FLOATS), seed=arrays.SEEDS)
@settings(max_examples=25)
def test_cofactors_are_determinants_of_what_is_left(size: int, dtype: str, seed: int) -> None:
    x = random_array(dtype, (2, size, size), seed, -2, 2)
    x[1, -1] = x[1, 0]  # which has no inverse, but for a size of 1

    (y,) = run_node("Cofactors", [x])

    assert (y.dtype.name, y.shape) == (dtype, x.shape)
    for index in np.ndindex(x.shape):
        stack, row, column = index
        rest = np.delete(np.delete(x[stack], row, 0), column, 1)
        sign = (-1) ** (row + column)
        bound = max(float(np.linalg.norm(x[stack].astype(float))), 1.0) ** size
        assert abs(float(y[index]) - sign * leibniz(rest)) <= 4 * TOLERANCE[dtype] * bound


def test_cofactors_of_what_is_no_number_are_not_either() -> None:
    x = np.stack([np.eye(2), np.full((2, 2), np.inf)]).astype(np.float32)

    (y,) = run_node("Cofactors", [x])

    np.testing.assert_array_equal(y[0], np.eye(2))
    assert np.isnan(y[1]).all()
