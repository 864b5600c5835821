from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from arrays import EVERY, SEEDS, random_array
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.kernels.resize import find_repeat, gather, repeat
from single_node import run_node

UPSAMPLING = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4),
    st.sampled_from(EVERY),
    SEEDS,
)
def test_whole_scales_repeat_each_cell(axes: list[tuple[int, int]], dtype: str, seed: int) -> None:
    shape, times = zip(*axes, strict=True)
    x = random_array(dtype, shape, seed)

    (y,) = run_node("Resize", [x, None, np.array(times, "f4")], UPSAMPLING, constant=[2])

    wanted = x
    for axis, count in enumerate(times):
        wanted = np.repeat(wanted, count, axis)
    np.testing.assert_array_equal(y, wanted, strict=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_repeating_keeps_infinities_and_nans_bit_by_bit(dtype: str) -> None:
    x = np.array([[np.nan, -np.nan, np.inf], [-np.inf, -0.0, 1]], dtype)

    (y,) = run_node("Resize", [x, None, np.array([2, 2], "f4")], UPSAMPLING, constant=[2])

    assert y.tobytes() == np.repeat(np.repeat(x, 2, 0), 2, 1).tobytes()


@given(st.lists(st.integers(0, 9), max_size=12).map(sorted))
def test_a_pattern_stands_for_the_cells_it_was_found_in(cells: list[int]) -> None:
    found = find_repeat(np.array(cells, np.int64))

    if found is not None:
        assert np.repeat(np.arange(10)[found.cells], found.times).tolist() == cells


@pytest.mark.parametrize(
    "cells", [[], [3], [0, 1, 2], [0, 0, 1, 1], [1, 3, 5], [4, 4, 4], [1, 1, 3, 3]]
)
def test_equal_distances_and_equal_repeats_are_a_pattern(cells: list[int]) -> None:
    assert find_repeat(np.array(cells, np.int64)) is not None


@pytest.mark.parametrize("cells", [[0, 0, 1], [0, 1, 3], [0, 0, 1, 1, 3, 3], [2, 1]])
def test_other_cells_are_no_pattern(cells: list[int]) -> None:
    assert find_repeat(np.array(cells, np.int64)) is None


class Narrow(SimpleNamespace):
    """An array module with no more than what CuPy has."""

    def __init__(self) -> None:
        super().__init__(copyto=np.copyto)

    def take(self, source: Any, cells: Any, axis: int, out: Any) -> None:
        np.take(source, cells, axis, out)


def test_other_array_modules_repeat_in_one_copy() -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.empty((4, 6))

    (step,) = repeat(Narrow(), x, y, [find_repeat(np.repeat(np.arange(n), 2)) for n in x.shape])  # type: ignore[misc]
    step()

    np.testing.assert_array_equal(y, np.repeat(np.repeat(x, 2, 0), 2, 1))


@pytest.mark.parametrize("xp", [np, Narrow()])
def test_a_gather_writes_the_cells_of_an_axis(xp: Any) -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.empty((2, 4))

    gather(xp, x, np.array([2, 0, 0, 1]), 1, y)()

    np.testing.assert_array_equal(y, x[:, [2, 0, 0, 1]])
