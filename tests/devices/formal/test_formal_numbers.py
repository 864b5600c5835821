"""The numbers of definitions: exact integers, doubles that follow IEEE 754, and their rounding."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.errors import DeviceError
from plait.devices.formal import ieee
from plait.devices.formal.registry import at, broadcast_at, indices, per_element, table
from plait.devices.formal.results import EXTENSIONS, check_fits, round_to_float, to_dtype
from plait.graph.values.dtypes import dtype_of
from plait.graph.values.tensor import TensorSpec

WIDTHS = (8, 16, 32, 64)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.25, -3.0, 2.0, 1e300, -1e300, math.inf, -math.inf, math.nan)
DIGITS = {"float16": 11, "float32": 24, "float64": 53}


def same(a: Any, b: Any) -> bool:
    """True when two floats are equal, both NaN included, and zeros of one sign."""
    return bool(a == b and math.copysign(1, a) == math.copysign(1, b)) or bool(a != a and b != b)


# Indices


def test_indices_run_through_an_array_in_the_order_of_its_bytes() -> None:
    assert list(indices((2, 3))) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert list(indices(())) == [()]
    assert list(indices((2, 0))) == []


def test_a_table_is_a_function_of_the_index() -> None:
    assert table((2, 2), lambda i, j: 10 * i + j).tolist() == [[0, 1], [10, 11]]
    assert table((), lambda: 2**100).tolist() == 2**100
    assert table((0, 3), lambda i, j: 0).shape == (0, 3)


def test_elements_are_exact_python_numbers() -> None:
    assert type(at(np.array([0.1], np.float32), 0)) is float
    assert at(np.array([127], np.int8), 0) + 1 == 128
    assert at(np.array(True)) is True


@given(st.sampled_from([(), (1,), (3,), (1, 3), (2, 1), (2, 3)]))
def test_a_broadcast_element_is_that_of_the_repeated_array(shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    repeated = np.broadcast_to(array, (2, 3))
    assert all(broadcast_at(array, index) == repeated[index] for index in indices((2, 3)))


def test_per_element_broadcasts() -> None:
    found = per_element(lambda a, b: a - b, np.array([[1], [2]]), np.array([1, 10]))
    assert found.tolist() == [[0, -9], [1, -8]]


# Arithmetic


@pytest.mark.parametrize("a", SPECIAL)
@pytest.mark.parametrize("b", SPECIAL)
def test_division_is_ieee_754s(a: float, b: float) -> None:
    with np.errstate(all="ignore"):
        assert same(ieee.divide(a, b), np.float64(a) / np.float64(b))


@pytest.mark.parametrize("x", SPECIAL)
@pytest.mark.parametrize("exponent", SPECIAL)
def test_powers_are_ieee_754s(x: float, exponent: float) -> None:
    with np.errstate(all="ignore"):
        assert same(ieee.power(x, exponent), np.power(np.float64(x), np.float64(exponent)))


@pytest.mark.parametrize("x", SPECIAL)
@pytest.mark.parametrize("name", ["exp", "expm1", "log", "sqrt"])
def test_functions_are_ieee_754s(name: str, x: float) -> None:
    with np.errstate(all="ignore"):
        wanted = getattr(np, name)(np.float64(x))
    assert same(getattr(ieee, name)(x), wanted) or math.isclose(getattr(ieee, name)(x), wanted)


@given(st.integers(), st.integers())
def test_the_truncating_quotient_is_the_fraction_cut(a: int, b: int) -> None:
    assert ieee.divide_truncating(a, b) == (math.trunc(Fraction(a, b)) if b else 0)


@given(st.lists(st.floats(-1e300, 1e300)))
def test_a_sum_is_rounded_once(values: list[float]) -> None:
    assert ieee.sum_exactly(values) == float(sum(map(Fraction, values), Fraction()))


def test_a_sum_of_infinities_is_what_adding_gives() -> None:
    assert ieee.sum_exactly([math.inf, 1.0]) == math.inf
    assert math.isnan(ieee.sum_exactly([math.inf, -math.inf]))
    assert ieee.sum_exactly([1e308, 1e308]) == math.inf
    assert ieee.sum_exactly([]) == 0
    assert ieee.sum_exactly([2**100, 1]) == 2**100 + 1


def test_an_extremum_of_nan_and_numbers_is_nan() -> None:
    assert math.isnan(ieee.largest([1.0, math.nan]))
    assert math.isnan(ieee.smallest([math.nan, 1.0]))
    assert (ieee.largest([1, 3, 2]), ieee.smallest([3, 1, 2])) == (3, 1)


# Results


@pytest.mark.parametrize("kind", ["int", "uint"])
@pytest.mark.parametrize("bits", WIDTHS)
@given(value=st.integers(-(2**70), 2**70))
def test_integers_keep_their_low_bits(kind: str, bits: int, value: int) -> None:
    found = to_dtype([value], np.dtype(f"{kind}{bits}"))
    assert found.dtype == f"{kind}{bits}"
    assert (int(found[0]) - value) % 2**bits == 0


@pytest.mark.parametrize("dtype", DIGITS)
@given(value=st.integers(-(2**70), 2**70))
def test_integers_are_rounded_once_to_floats(dtype: str, value: int) -> None:
    """A float is at most half a step away, and even where two are equally near."""
    rounded = round_to_float(value, DIGITS[dtype])
    step = 2 ** max(abs(value).bit_length() - DIGITS[dtype], 0)
    distance = abs(Fraction(rounded) - value)
    assert int(rounded) % step == 0
    assert distance < Fraction(step, 2) or (
        distance == Fraction(step, 2) and int(rounded) // step % 2 == 0
    )


def test_an_integer_is_not_rounded_by_way_of_a_double() -> None:
    value = 2**60 + 2**36 + 1  # to a double: a tie of float32s, which goes to 2**60
    assert to_dtype([value], np.dtype("float32")).tolist() == [float(2**60 + 2**37)]


def test_an_integer_beyond_all_floats_is_infinite() -> None:
    found = to_dtype([2**2000, -(2**2000)], np.dtype("float64"))
    assert found.tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@given(value=st.floats())
def test_floats_are_rounded_as_numpy_does(dtype: str, value: float) -> None:
    with np.errstate(all="ignore"):
        found, wanted = to_dtype([value], np.dtype(dtype)), np.array([value]).astype(dtype)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", EXTENSIONS)
@given(value=st.floats(width=32))
def test_floats_that_numpy_lacks_are_rounded_as_from_float32(name: str, value: float) -> None:
    pytest.importorskip("ml_dtypes")
    dtype = dtype_of(name)
    found, wanted = to_dtype([value], dtype), np.array([value], np.float32).astype(dtype)
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def test_a_double_becomes_bfloat16_without_becoming_a_float32_first() -> None:
    pytest.importorskip("ml_dtypes")
    dtype = dtype_of("bfloat16")
    above_a_tie = 1 + 2**-8 + 2**-30
    assert to_dtype([above_a_tie, -above_a_tie], dtype).tolist() == [1 + 2**-7, -1 - 2**-7]


def test_an_array_in_its_dtype_keeps_its_bits() -> None:
    signalling = np.array([0x7FA00001], np.uint32).view(np.float32)
    assert to_dtype(signalling, np.dtype("float32")) is signalling


@pytest.mark.parametrize("value", [0.5, math.nan, math.inf])
def test_an_integer_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(DeviceError, match="is not an integer"):
        to_dtype([value], np.dtype("int32"))


def test_nested_lists_become_arrays() -> None:
    found = to_dtype([[1, 0], [2, 3]], np.dtype(bool))
    assert found.tolist() == [[True, False], [True, True]]
    assert to_dtype(3, np.dtype("int8")).shape == ()
    assert to_dtype([1, 2.5], np.dtype("complex64")).tolist() == [1, 2.5]


def test_a_result_of_another_shape_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"shape \[2\] for int8\[3\]"):
        check_fits(np.zeros(2, np.int8), TensorSpec("int8", (3,)))


def test_an_empty_result_has_the_tensors_shape() -> None:
    assert check_fits(np.zeros(0, np.int8), TensorSpec("int8", (2, 0))).shape == (2, 0)


def test_a_bounded_result_lies_within_the_bounds() -> None:
    spec = TensorSpec("int8", (3, 4))
    assert check_fits(np.zeros((2, 4), np.int8), spec, exactly=False).shape == (2, 4)
    for shape in ((2, 5), (2,)):
        with pytest.raises(DeviceError, match="a definition returned the shape"):
            check_fits(np.zeros(shape, np.int8), spec, exactly=False)
