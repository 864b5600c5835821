"""Ranges: all that was seen, or all but rare elements, in one piece or over many items."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.values.tensor import Array
from plait.scheduler.quantization.ranges import KEPT, METHODS, Method, MinMax, Range


def observed(method: Method, *arrays: Array) -> Range:
    observer = METHODS[method]()
    for array in arrays:
        observer.see(array)
    return observer.range()


def sample(count: int = 100_000, outlier: float | None = None) -> Array:
    values = np.random.default_rng(0).normal(0, 1, count).astype(np.float32)
    return values if outlier is None else np.append(values, np.float32(outlier))


@settings(max_examples=30)
@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=5), min_size=1, max_size=5))
def test_all_that_was_seen_and_zero_are_within(items: list[list[float]]) -> None:
    everything = [0.0, *(value for item in items for value in item)]
    found = observed("minmax", *(np.array(item, np.float32) for item in items))
    assert found == (min(everything), max(everything))


@pytest.mark.parametrize("method", METHODS)
def test_no_range_is_wider_than_what_was_seen(method: Method) -> None:
    values = sample(1000)
    low, high = observed(method, values)
    assert values.min() <= low < 0 < high <= values.max()


@pytest.mark.parametrize("method", METHODS)
def test_items_may_come_in_any_sizes(method: Method) -> None:
    """Bins double when a later item goes beyond them, so steps of a bin are what may differ."""
    values = sample(20_000)
    values[-1] = values[0] = 3 * np.abs(values).max()
    whole = observed(method, values)
    parts = observed(method, values[1:100], np.zeros((0, 3), np.float32), values[100:], values[:1])
    assert whole == pytest.approx(parts, rel=0.1)


def test_one_outlier_is_cut_off_by_percentiles() -> None:
    low, high = observed("percentile", sample(outlier=60.0))
    assert -6 < low < -3
    assert 3 < high < 6


def test_percentiles_cut_off_the_share_that_they_say() -> None:
    values = sample(200_000)
    low, high = observed("percentile", values)
    beyond = np.mean((values < low) | (values > high))
    assert beyond == pytest.approx(1 - KEPT, rel=0.3)


def test_least_squares_are_found() -> None:
    """Against rounding itself, tried for many ranges."""
    values = sample(20_000, outlier=12.0)

    def loss(edge: float) -> float:
        step = 2 * edge / 255
        rounded = np.clip(np.rint(values / step), -128, 127) * step
        return float(np.square(rounded - values).sum())

    best = min(np.linspace(1, 12, 200), key=loss)
    _, high = observed("mse", np.append(values, np.float32(-12.0)))
    assert loss(high) < 1.2 * loss(best)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_show(method: Method, bad: float) -> None:
    found = observed(method, sample(10), np.array([1, bad], np.float32), sample(10))
    assert not all(map(math.isfinite, found))


@pytest.mark.parametrize("method", METHODS)
def test_zeros_alone_have_no_range(method: Method) -> None:
    assert observed(method, np.zeros(5, np.float32)) == (0, 0)


def test_an_observer_that_saw_nothing_knows_zero() -> None:
    assert MinMax().range() == (0, 0)
