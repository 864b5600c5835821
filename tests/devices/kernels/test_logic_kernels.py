from __future__ import annotations

import arrays
import numpy as np
import pytest
from arrays import EVERY, FLOATS, NUMBERS, AnyArray, operands, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from single_node import onnx_reference, run_node

FEW = settings(max_examples=25)

COMPARISONS = {
    "Equal": (*NUMBERS, "bool"),
    "Less": NUMBERS,
    "LessOrEqual": NUMBERS,
    "Greater": NUMBERS,
    "GreaterOrEqual": NUMBERS,
    "And": ("bool",),
    "Or": ("bool",),
    "Xor": ("bool",),
}


@pytest.mark.parametrize("op", COMPARISONS)
@given(data=st.data())
@FEW
def test_comparisons_broadcast_as_onnx_says(op: str, data: st.DataObject) -> None:
    inputs = data.draw(operands(COMPARISONS[op], low=-2, high=2))

    (y,) = run_node(op, inputs)

    np.testing.assert_array_equal(y, onnx_reference(op, inputs)[0], strict=True)


def test_comparisons_of_large_integers_are_exact() -> None:
    a = np.array([2**62, 2**62 + 1], "int64")

    (y,) = run_node("Equal", [a, a[::-1].copy()])

    assert not y.any()


@given(inputs=operands(("bool",), 1))
@FEW
def test_not_inverts(inputs: list[AnyArray]) -> None:
    (y,) = run_node("Not", inputs)

    np.testing.assert_array_equal(y, inputs[0] ^ True, strict=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_is_nan_finds_nan_only(dtype: str) -> None:
    (y,) = run_node("IsNaN", [np.array([np.nan, np.inf, -np.inf, 0, 1], dtype)])

    assert y.tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("positive", [False, True])
def test_is_inf_finds_the_infinities_asked_for(dtype: str, negative: bool, positive: bool) -> None:
    attributes = {"detect_negative": negative, "detect_positive": positive}

    (y,) = run_node("IsInf", [np.array([np.nan, np.inf, -np.inf, 0, 1], dtype)], attributes)

    assert y.tolist() == [False, positive, negative, False, False]


@given(
    dtype=st.sampled_from(EVERY),
    shapes=arrays.broadcastable(3),
    seed=arrays.SEEDS,
)
@settings(max_examples=100)
def test_where_selects_element_by_element(
    dtype: str, shapes: list[tuple[int, ...]], seed: int
) -> None:
    condition = random_array("bool", shapes[0], seed)
    x, y = (random_array(dtype, shape, seed + i) for i, shape in enumerate(shapes[1:], 1))

    (chosen,) = run_node("Where", [condition, x, y])

    np.testing.assert_array_equal(chosen, np.where(condition, x, y), strict=True)


def test_where_keeps_the_bits_of_nan_and_negative_zero() -> None:
    x, y = np.array([np.nan, -0.0], "float32"), np.array([1.0, 2.0], "float32")

    (chosen,) = run_node("Where", [np.array([True, True]), x, y])

    assert chosen.tobytes() == x.tobytes()
