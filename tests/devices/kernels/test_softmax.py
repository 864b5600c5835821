from __future__ import annotations

import numpy as np
import pytest
from arrays import FLOATS, SEEDS, AnyArray, random_array, shapes
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.values.errors import ShapeError
from single_node import run_node

FEW = settings(max_examples=40)
TOLERANCE = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}


@st.composite
def tensors(draw: st.DrawFn) -> tuple[AnyArray, int]:
    """Draw a floating tensor and one of its axes, counted from either end."""
    shape = draw(shapes(min_rank=1))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return random_array(draw(st.sampled_from(FLOATS)), shape, draw(SEEDS)), axis


def distribution(x: AnyArray, axis: int) -> AnyArray:
    powers = np.exp(x.astype(float) - x.astype(float).max(axis=axis, keepdims=True, initial=-1e9))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


@given(tensors())
@FEW
def test_softmax_makes_a_distribution_of_each_line(drawn: tuple[AnyArray, int]) -> None:
    x, axis = drawn

    (y,) = run_node("Softmax", [x], {"axis": axis})

    assert y.dtype == x.dtype
    np.testing.assert_allclose(y, distribution(x, axis), 2e-6, TOLERANCE[x.dtype.name])


@given(tensors())
@FEW
def test_log_softmax_is_the_logarithm_of_softmax(drawn: tuple[AnyArray, int]) -> None:
    x, axis = drawn

    (y,) = run_node("LogSoftmax", [x], {"axis": axis})

    tolerance = TOLERANCE[x.dtype.name]
    assert y.dtype == x.dtype
    np.testing.assert_allclose(y, np.log(distribution(x, axis)), tolerance, tolerance)


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_large_numbers_does_not_overflow(axis: int) -> None:
    x = np.array([[1e30, -1e30], [1e30, 1e30]], np.float32)

    (y,) = run_node("Softmax", [x], {"axis": axis})

    wanted = np.array([[1, 0], [0.5, 0.5]]) if axis == 1 else np.array([[0.5, 0], [0.5, 1]])
    np.testing.assert_array_equal(y, wanted)


def test_log_softmax_of_a_large_offset_keeps_its_precision() -> None:
    x = np.array([1e6, 1e6 + 1], np.float32)

    (y,) = run_node("LogSoftmax", [x])

    np.testing.assert_allclose(y, [-np.log1p(np.e), -np.log1p(1 / np.e)], 1e-6)


def test_softmax_gives_masked_places_nothing() -> None:
    x = np.array([[0, -np.inf, 0], [-np.inf, 3, -np.inf]], np.float32)

    (y,) = run_node("Softmax", [x])

    np.testing.assert_array_equal(y, [[0.5, 0, 0.5], [0, 1, 0]])


@given(tensors())
@FEW
def test_hardmax_picks_the_first_of_the_greatest(drawn: tuple[AnyArray, int]) -> None:
    x, axis = np.rint(drawn[0] / 3), drawn[1]  # many ties

    (y,) = run_node("Hardmax", [x], {"axis": axis})

    wanted = np.zeros_like(x)
    if x.size:
        first = np.expand_dims(np.argmax(x, axis), axis)
        np.put_along_axis(wanted, first, 1, axis)
    np.testing.assert_array_equal(y, wanted, strict=True)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_of_integers_is_refused(op: str) -> None:
    with pytest.raises(ShapeError, match="must be a float"):
        run_node(op, [np.arange(3)])


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_along_an_axis_that_is_not_there_is_refused(op: str) -> None:
    with pytest.raises(ShapeError, match="axis 2 is outside a tensor of rank 2"):
        run_node(op, [np.ones((2, 3), np.float32)], {"axis": 2})
