"""Scales and zero points: 0 is exact, and what is in a range is off by half a step at most."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plait.scheduler.quantization.quantized import (
    choose_parameters,
    find_least_scale,
    quantize_bias,
    quantize_weights,
)
from plait.scheduler.quantization.ranges import Range

EDGES = st.floats(-1e4, 1e4, width=32)


@given(low=EDGES, high=EDGES, dtype=st.sampled_from(["uint8", "int8"]))
def test_what_is_in_the_range_is_off_by_half_a_step_at_most(
    low: float, high: float, dtype: str
) -> None:
    low, high = sorted((low, high))
    scale, zero = choose_parameters(Range(low, high), dtype)
    limits = np.iinfo(dtype)
    x = np.linspace(min(low, 0), max(high, 0), 99)
    rounded = np.clip(np.rint(x / scale) + zero, limits.min, limits.max)
    error = np.abs((rounded - zero) * np.float64(scale) - x)
    step = np.float64(scale)
    inside = (x > (limits.min - float(zero)) * step) & (x < (limits.max - float(zero)) * step)
    assert (error[inside] <= step * 0.5001).all()
    assert (error <= step * 1.0001).all()  # the zero point is rounded too, which moves the ends


def test_zero_is_an_integer() -> None:
    scale, zero = choose_parameters(Range(0.5, 2.0), "uint8")
    assert (zero, scale) == (0, np.float32(2 / 255))


def test_a_range_of_zero_alone_has_a_scale_to_divide_by() -> None:
    scale, zero = choose_parameters(Range(0.0, 0.0), "int8")
    assert (float(scale), int(zero)) == (1.0, -128)


def test_weights_have_a_scale_for_each_feature() -> None:
    w = np.array([[1.27, -0.1], [0.0, 0.0], [254.0, 2.0]], np.float32)
    made = quantize_weights(w, 0)
    np.testing.assert_allclose(made.scale, [0.01, 1, 2])
    np.testing.assert_array_equal(made.value, [[127, -10], [0, 0], [127, 1]])
    assert not made.zero.any()


def test_one_scale_serves_all_weights_without_an_axis() -> None:
    made = quantize_weights(np.array([[1.0, -127.0]], np.float32), None)
    assert made.scale.shape == ()
    np.testing.assert_array_equal(made.value, [[1, -127]])


def test_a_bias_far_greater_than_its_weights_is_still_held() -> None:
    """A feature without weights is all bias; small weights must not make its steps too small."""
    w, bias = np.array([[0.0], [1e-9]], np.float32), np.array([0.3, 700.0], np.float32)
    step = np.asarray(np.float32(0.5))
    made = quantize_weights(w, 0, find_least_scale(bias, step, 0))
    integers = quantize_bias(bias, step, made.scale)
    assert integers.value.dtype == np.int32
    np.testing.assert_allclose(integers.value * integers.scale.astype(float), bias, rtol=1e-6)
