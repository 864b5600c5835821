"""Numbers in three views, each the nearest that it can hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.core.parameters import (
    FLT_MAX,
    INT_MAX,
    INT_MIN,
    Number,
    Parameter,
    Parameters,
    to_float32,
    to_int32,
)

numbers = st.floats(allow_nan=False)


@given(numbers)
def test_integers_saturate_and_lose_their_fraction(value: float) -> None:
    clipped = min(max(value, float(INT_MIN)), float(INT_MAX))
    assert to_int32(value) == int(np.trunc(clipped))


@given(numbers)
def test_floats_saturate_on_both_sides_and_are_32_bits_wide(value: float) -> None:
    found = to_float32(value)
    assert math.isfinite(found)
    assert found == float(np.float32(found))
    with np.errstate(over="ignore"):
        nearest = float(np.float32(value))
    assert found == nearest or (math.isinf(nearest) and abs(found) == FLT_MAX)
    assert math.copysign(1, found) == math.copysign(1, value)


@pytest.mark.parametrize(
    ("value", "int32", "float32"),
    [
        (0.0, 0, 0.0),
        (-1.5, -1, -1.5),
        (2.0**31, INT_MAX, 2.0**31),
        (-(2.0**31), INT_MIN, -(2.0**31)),
        (1e39, INT_MAX, FLT_MAX),
        (-1e39, INT_MIN, -FLT_MAX),
        (math.inf, INT_MAX, FLT_MAX),
        (-math.inf, INT_MIN, -FLT_MAX),
        (1e-50, 0, 0.0),
    ],
)
def test_views_at_their_limits(value: float, int32: int, float32: float) -> None:
    number = Number.of(value)
    assert (number.double, number.int32, number.float32) == (value, int32, float32)


def test_what_is_no_number_is_zero_as_an_integer() -> None:
    number = Number.of(math.nan)
    assert number.int32 == 0
    assert math.isnan(number.float32)


@given(st.integers(INT_MIN, INT_MAX))
def test_an_integer_of_32_bits_is_exact_as_an_integer_and_as_a_double(value: int) -> None:
    number = Number.of(value)
    assert (number.int32, number.double) == (value, value)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_32_bit_float_is_exact_as_a_float_and_as_a_double(value: float) -> None:
    number = Number.of(np.float32(value))
    assert (number.float32, number.double) == (value, value)


def test_an_integer_beyond_all_doubles_is_refused() -> None:
    with pytest.raises(pl.OperatorError, match="too large for a double"):
        Number.of(10**400)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"),
        (True, "bool"),
        ("same", "string"),
        (1, "number"),
        (0.5, "number"),
        ([True, False], "array of bools"),
        (("a", "b"), "array of strings"),
        (np.array([1, 2]), "array of numbers"),
        ([1, 2.5], "array of numbers"),
    ],
)
def test_a_parameter_knows_its_kind(value: Any, kind: str) -> None:
    assert Parameters.of({"a": value})["a"].kind == kind


@pytest.mark.parametrize("value", [[], [None], [1, "a"], [[1]], {"b": 1}, object(), 1j])
def test_other_values_are_refused_by_name(value: Any) -> None:
    with pytest.raises(pl.OperatorError, match="parameter 'pads' must be"):
        Parameters.of({"pads": value})


def test_parameters_are_found_by_one_name_or_two() -> None:
    found = Parameters.of({"pad_left": 1, "mode": "same"})
    assert found.joined("pad", "left") is found["pad_left"]
    assert found["mode"] == Parameter("mode", "same")
    assert (list(found), len(found)) == (["pad_left", "mode"], 2)
    assert found.get("stride") is None


def test_a_copy_is_equal_and_its_own() -> None:
    found = Parameters.of({"a": [1, 2]})
    copied = Parameters(found.values())
    assert dict(copied) == dict(found)
    assert copied is not found
