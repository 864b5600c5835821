from __future__ import annotations

import arrays
import numpy as np
import pytest
from arrays import NUMBERS
from hypothesis import given, settings
from hypothesis import strategies as st
from single_node import onnx_reference, run_node


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool"])
@given(shape=arrays.shapes())
@settings(max_examples=10)
def test_constant_of_shape_fills_with_one_value(dtype: str, shape: tuple[int, ...]) -> None:
    attributes = {"value": 1, "dtype": dtype}

    (y,) = run_node("ConstantOfShape", [np.array(shape, "int64")], attributes, constant={0})

    np.testing.assert_array_equal(y, np.ones(shape, dtype), strict=True)


def test_constant_of_shape_keeps_large_integers_exact() -> None:
    attributes = {"value": 2**62 + 1, "dtype": "int64"}

    (y,) = run_node("ConstantOfShape", [np.array([2])], attributes, constant={0})

    assert y.tolist() == [2**62 + 1] * 2


def test_constant_of_shape_is_float_zero_by_default() -> None:
    (y,) = run_node("ConstantOfShape", [np.array([2])], constant={0})

    np.testing.assert_array_equal(y, np.zeros(2, "float32"), strict=True)


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64"])
@given(start=st.integers(-20, 20), limit=st.integers(-20, 20), delta=st.integers(-5, 5))
@settings(max_examples=40)
def test_range_of_integers_is_pythons(dtype: str, start: int, limit: int, delta: int) -> None:
    delta = delta or 1
    inputs = [np.array(value, dtype) for value in (start, limit, delta)]

    (y,) = run_node("Range", inputs, constant={0, 1, 2})

    np.testing.assert_array_equal(y, np.array(range(start, limit, delta), dtype), strict=True)


def test_range_of_large_integers_is_exact() -> None:
    inputs = [np.array(value) for value in (2**62, 2**62 + 5, 2)]

    (y,) = run_node("Range", inputs, constant={0, 1, 2})

    assert y.tolist() == [2**62, 2**62 + 2, 2**62 + 4]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("start", "limit", "delta"), [(0, 1, 0.25), (1, -1, -0.5), (1, 0, 1)])
def test_range_of_floats_is_as_onnx_says(
    dtype: str, start: float, limit: float, delta: float
) -> None:
    inputs = [np.array(value, dtype) for value in (start, limit, delta)]

    (y,) = run_node("Range", inputs, constant={0, 1, 2})

    np.testing.assert_array_equal(y, onnx_reference("Range", inputs)[0].astype(dtype), strict=True)
