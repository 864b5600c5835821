from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from arrays import FLOATS, SEEDS, AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from single_node import run_node

FEW = settings(max_examples=40)
TOLERANCE = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-12}
EPSILONS = st.sampled_from((1e-5, 0.1))

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
PLANES = st.tuples(
    st.integers(0, 3), st.integers(1, 4), st.lists(st.integers(1, 4), max_size=3)
).map(lambda drawn: (drawn[0], drawn[1], *drawn[2]))


def standardized(x: AnyArray, axes: Sequence[int], epsilon: float) -> AnyArray:
    x = x.astype(float)
    mean = x.mean(axis=tuple(axes), keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=tuple(axes), keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + epsilon))


def assert_close(got: AnyArray, wanted: AnyArray, dtype: str) -> None:
    tolerance = TOLERANCE[dtype]
    assert got.dtype == dtype
    np.testing.assert_allclose(got, wanted, tolerance, 9 * tolerance)


@given(SHAPES, st.sampled_from(FLOATS), EPSILONS, SEEDS, st.data())
@FEW
def test_layer_normalization_standardizes_the_last_axes(
    shape: tuple[int, ...], dtype: str, epsilon: float, seed: int, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    first = axis % len(shape)
    x = random_array(dtype, shape, seed)
    scale, bias = (random_array(dtype, shape[first:], seed + i, -2, 2) for i in (1, 2))
    inputs = [x, scale, bias][: data.draw(st.integers(2, 3))]

    y, mean, inverse = run_node("LayerNormalization", inputs, {"axis": axis, "epsilon": epsilon}, 3)

    axes = range(first, len(shape))
    wanted = standardized(x, axes, epsilon) * scale + (bias if len(inputs) == 3 else 0)
    assert_close(y, wanted, dtype)
    exact = x.astype(float)
    assert_close(mean, exact.mean(axis=tuple(axes), keepdims=True), "float32")
    deviation = np.sqrt(exact.var(axis=tuple(axes), keepdims=True) + epsilon)
    np.testing.assert_allclose(inverse, 1 / deviation, 1e-5)
    assert inverse.dtype == np.float32


def test_layer_normalization_repeats_a_scale_of_length_one() -> None:
    x = random_array("float32", (2, 3, 4), 1)

    (y,) = run_node("LayerNormalization", [x, np.full((3, 1), 2, np.float32)], {"axis": 1})

    np.testing.assert_allclose(y, 2 * standardized(x, (1, 2), 1e-5), 1e-5, 1e-5)


def test_layer_normalization_of_a_large_offset_does_not_cancel() -> None:
    x = 1e4 + np.arange(8, dtype=np.float32).reshape(1, 8)

    (y,) = run_node("LayerNormalization", [x, np.ones(8, np.float32)])

    np.testing.assert_allclose(y, standardized(x, [1], 1e-5), 1e-3)


@given(SHAPES, st.sampled_from(FLOATS), st.sampled_from(FLOATS), EPSILONS, SEEDS, st.data())
@FEW
def test_rms_normalization_divides_by_the_root_mean_square(
    shape: tuple[int, ...],
    dtype: str,
    scale_dtype: str,
    epsilon: float,
    seed: int,
    data: st.DataObject,
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    first = axis % len(shape)
    x = random_array(dtype, shape, seed)
    scale = random_array(scale_dtype, shape[first:], seed + 1, -2, 2)

    (y,) = run_node("RMSNormalization", [x, scale], {"axis": axis, "epsilon": epsilon})

    exact = x.astype(float)
    squares = (exact**2).mean(axis=tuple(range(first, len(shape))), keepdims=True)
    wanted = exact / np.sqrt(squares + epsilon) * scale
    loosest = max(dtype, scale_dtype, key=lambda name: TOLERANCE[name])
    assert y.dtype == scale_dtype
    np.testing.assert_allclose(y, wanted, TOLERANCE[loosest], TOLERANCE[loosest])


@given(PLANES, st.sampled_from(FLOATS), EPSILONS, SEEDS)
@FEW
def test_instance_normalization_standardizes_each_plane(
    shape: tuple[int, ...], dtype: str, epsilon: float, seed: int
) -> None:
    x = random_array(dtype, shape, seed)
    scale, bias = (random_array(dtype, shape[1:2], seed + i, -2, 2) for i in (1, 2))

    (y,) = run_node("InstanceNormalization", [x, scale, bias], {"epsilon": epsilon})

    planes = x.reshape(*shape[:2], math.prod(shape[2:]))
    wanted = standardized(planes, [2], epsilon) * scale[:, None] + bias[:, None]
    assert_close(y, wanted.reshape(shape), dtype)


@given(st.integers(1, 3), st.integers(1, 3), PLANES, st.sampled_from(FLOATS), EPSILONS, SEEDS)
@FEW
def test_group_normalization_standardizes_each_group_of_channels(
    groups: int, size: int, planes: tuple[int, ...], dtype: str, epsilon: float, seed: int
) -> None:
    shape = (planes[0], groups * size, *planes[2:])
    x = random_array(dtype, shape, seed)
    scale, bias = (random_array(dtype, shape[1:2], seed + i, -2, 2) for i in (1, 2))

    (y,) = run_node(
        "GroupNormalization", [x, scale, bias], {"epsilon": epsilon, "num_groups": groups}
    )

    grouped = x.reshape(shape[0], groups, math.prod(shape[1:]) // groups)
    exact = standardized(grouped, [2], epsilon).reshape(*shape[:2], math.prod(shape[2:]))
    wanted = exact * scale[:, None] + bias[:, None]
    assert_close(y, wanted.reshape(shape), dtype)


@pytest.mark.parametrize("op", ["InstanceNormalization", "GroupNormalization"])
def test_normalizing_a_constant_yields_the_bias(op: str) -> None:
    x = np.full((2, 4, 3), 7, np.float32)
    bias = np.array([1, 2, 3, 4], np.float32)
    attributes = {"num_groups": 2} if op == "GroupNormalization" else {}

    (y,) = run_node(op, [x, np.ones(4, np.float32), bias], attributes)

    np.testing.assert_array_equal(y, np.broadcast_to(bias[:, None], x.shape))
