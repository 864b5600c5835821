from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from arrays import SEEDS, AnyArray
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.kernels.sums import reduce_extremum, sum_over

OTHER = SimpleNamespace(**vars(np))
"""An array module that is not numpy, as far as kernels know."""

LARGE = {
    "rows": ((80, 6625), (1,)),
    "one row": ((1 << 19,), (0,)),
    "narrow rows": ((100_000, 4), (1,)),
    "columns": ((600, 700), (0,)),
    "short columns": ((20_000, 5, 3), (1,)),
    "two axes": ((60, 90, 80), (1, 2)),
    "axes apart": ((60, 90, 80), (0, 2)),
}


def reduced(array: AnyArray, axes: tuple[int, ...], step: Any, dtype: str) -> AnyArray:
    """Return what a step writes, twice over a poisoned buffer."""
    kept = tuple(1 if axis in axes else length for axis, length in enumerate(array.shape))
    y = np.empty(kept, dtype)
    bound = step(array, axes, y)
    for _ in range(2):
        y.fill(77)
        bound()
    return y


def check_sum(
    x: AnyArray, axes: tuple[int, ...], xp: Any, dtype: str, most_eps: float = 32
) -> None:
    y = reduced(x, axes, lambda *arguments: sum_over(xp, *arguments), dtype)
    wanted = x.sum(axes, np.longdouble, keepdims=True)
    scale = np.abs(x).sum(axes, np.longdouble, keepdims=True)
    assert (np.abs(y - wanted) <= most_eps * np.finfo(dtype).eps * scale).all()


def check_extremum(x: AnyArray, axes: tuple[int, ...], xp: Any, name: str) -> None:
    y = reduced(x, axes, lambda *arguments: reduce_extremum(xp, name, *arguments), x.dtype.name)
    np.testing.assert_array_equal(y, getattr(x, name)(axes, keepdims=True))


@st.composite
def shapes_and_axes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    axes = draw(st.sets(st.sampled_from(range(len(shape)))))
    return shape, tuple(sorted(axes))


@pytest.mark.parametrize("xp", [np, OTHER], ids=["numpy", "other"])
@given(shapes_and_axes(), st.sampled_from(["float16", "float32", "float64"]), SEEDS)
@settings(max_examples=60)
def test_sums_and_extrema_are_those_of_numpy(
    xp: Any, case: tuple[tuple[int, ...], tuple[int, ...]], dtype: str, seed: int
) -> None:
    shape, axes = case
    x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    check_sum(x, axes, xp, "float32" if dtype == "float16" else dtype)
    for name in ("max", "min"):
        check_extremum(x, axes, xp, name)


@pytest.mark.parametrize("xp", [np, OTHER], ids=["numpy", "other"])
@pytest.mark.parametrize("case", LARGE)
def test_large_ones_are_too(xp: Any, case: str) -> None:
    shape, axes = LARGE[case]
    x = np.random.default_rng(3).random(shape, np.float32)
    check_sum(x, axes, xp, "float32")
    check_extremum(x, axes, xp, "max")


def test_the_error_of_a_long_sum_does_not_grow_with_its_length() -> None:
    for length in (1 << 19, 1 << 22):
        x = np.random.default_rng(4).random((1, length), np.float32)
        check_sum(x, (1,), np, "float32", most_eps=2)


def test_integers_are_summed_in_their_own_width() -> None:
    x = np.full((3, 5), 100, np.int8)
    y = reduced(x, (1,), lambda *arguments: sum_over(np, *arguments), "int8")
    np.testing.assert_array_equal(y, np.full((3, 1), 500 % 256 - 256, np.int8))


def test_a_nan_stays_in_its_own_line() -> None:
    x = np.ones((4, 3, 5), np.float32)
    x[1, 2, 3] = np.nan
    y = reduced(x, (1,), lambda *arguments: sum_over(np, *arguments), "float32")
    assert np.flatnonzero(np.isnan(y)).tolist() == [8]
    peaks = reduced(x, (1,), lambda *arguments: reduce_extremum(np, "max", *arguments), "float32")
    assert np.flatnonzero(np.isnan(peaks)).tolist() == [8]
