from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from arrays import FLOATS, SEEDS, AnyArray, random_array, shapes
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_node import runtime_node
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


SPATIAL = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def parameters(shape: tuple[int, ...], dtype: str, seed: int) -> list[AnyArray]:
    channels = shape[1:2] or (1,)
    scale, bias, mean = (random_array(dtype, channels, seed + i, -2, 2) for i in range(3))
    return [scale, bias, mean, random_array(dtype, channels, seed + 3, 1, 3)]


def planes(x: AnyArray) -> AnyArray:
    channels = x.shape[1] if x.ndim > 1 else 1
    return x.astype(float).reshape(len(x), channels, math.prod(x.shape[2:]))


@pytest.mark.parametrize("constant", [(), (1, 2, 3, 4), (1, 4)])
@given(shape=SPATIAL, dtypes=st.tuples(*[st.sampled_from(FLOATS)] * 3), seed=SEEDS)
@FEW
def test_inference_normalizes_by_the_given_statistics(
    constant: tuple[int, ...], shape: tuple[int, ...], dtypes: tuple[str, str, str], seed: int
) -> None:
    x = random_array(dtypes[0], shape, seed)
    scale, bias, *_ = parameters(shape, dtypes[1], seed)
    *_, mean, variance = parameters(shape, dtypes[2], seed)

    (y,) = run_node(
        "BatchNormalization",
        [x, scale, bias, mean, variance],
        {"epsilon": 0.01},
        constant=constant,
    )

    factor = scale.astype(float) / np.sqrt(variance.astype(float) + 0.01)
    wanted = (planes(x) - mean.astype(float)[:, None]) * factor[:, None] + bias[:, None]
    tolerance = max(TOLERANCE[dtypes[0]], 1e-6 if "float32" in dtypes else 0)
    assert y.dtype == x.dtype
    np.testing.assert_allclose(planes(y), wanted, tolerance, 9 * tolerance)


@given(SPATIAL, st.sampled_from(FLOATS), st.sampled_from((0.0, 0.9)), SEEDS)
@FEW
def test_training_normalizes_by_the_batch_and_moves_the_running_statistics(
    shape: tuple[int, ...], dtype: str, momentum: float, seed: int
) -> None:
    x = random_array(dtype, shape, seed)
    scale, bias, mean, variance = parameters(shape, dtype, seed)

    y, running_mean, running_variance = run_node(
        "BatchNormalization",
        [x, scale, bias, mean, variance],
        {"training_mode": 1, "momentum": momentum, "epsilon": 0.01},
        3,
    )

    exact, tolerance = planes(x), TOLERANCE[dtype]
    now, spread = exact.mean(axis=(0, 2)), exact.var(axis=(0, 2))
    factor = scale / np.sqrt(spread + 0.01)
    wanted = (exact - now[:, None]) * factor[:, None] + bias[:, None]
    assert {y.dtype, running_mean.dtype, running_variance.dtype} == {np.dtype(dtype)}
    np.testing.assert_allclose(planes(y), wanted, tolerance, 9 * tolerance)
    for output, old, new in ((running_mean, mean, now), (running_variance, variance, spread)):
        wanted = old * momentum + new * (1 - momentum)
        np.testing.assert_allclose(output, wanted, tolerance, 9 * tolerance)


@given(shapes(min_rank=1), st.sampled_from(FLOATS), st.sampled_from((1, 2)), SEEDS, st.data())
@FEW
def test_lp_normalization_makes_the_norm_of_each_line_one(
    shape: tuple[int, ...], dtype: str, p: int, seed: int, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = random_array(dtype, shape, seed)

    (y,) = run_node("LpNormalization", [x], {"axis": axis, "p": p})

    norm = (np.abs(x.astype(float)) ** p).sum(axis=axis, keepdims=True) ** (1 / p)
    wanted = x.astype(float) / np.where(norm == 0, 1, norm)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, wanted, TOLERANCE[dtype], TOLERANCE[dtype])


@pytest.mark.parametrize(("p", "norm"), [(1, 7), (2, 5)])
def test_lp_normalization_of_zeros_yields_zeros(p: int, norm: int) -> None:
    x = np.array([[0, 0], [3, 4]], np.float32)

    (y,) = run_node("LpNormalization", [x], {"p": p})

    np.testing.assert_allclose(y, np.array([[0, 0], [3, 4]]) / norm, 1e-6)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
    st.sampled_from(FLOATS),
    SEEDS,
    st.data(),
)
@FEW
def test_mean_variance_normalization_standardizes_over_its_axes(
    shape: tuple[int, ...], dtype: str, seed: int, data: st.DataObject
) -> None:
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    signs = data.draw(st.lists(st.booleans(), min_size=len(axes), max_size=len(axes)))
    given_axes = [a - len(shape) * back for a, back in zip(axes, signs, strict=True)]
    x = random_array(dtype, shape, seed)
    exact = x.astype(float)
    deviation = exact.std(axis=tuple(axes), keepdims=True)
    if deviation.min() < 1e-3:  # then rounding is all there is
        x, exact = x[:0], exact[:0]

    (y,) = run_node("MeanVarianceNormalization", [x], {"axes": given_axes})

    if x.size:
        wanted = (exact - exact.mean(axis=tuple(axes), keepdims=True)) / (deviation + 1e-9)
        np.testing.assert_allclose(y, wanted, 9 * TOLERANCE[dtype], 9 * TOLERANCE[dtype])
    assert y.dtype == dtype


@given(
    st.tuples(st.integers(1, 2), st.integers(1, 7), st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from(FLOATS),
    st.integers(1, 5),
    SEEDS,
)
@FEW
def test_lrn_divides_by_the_energy_of_neighbouring_channels(
    shape: tuple[int, ...], dtype: str, size: int, seed: int
) -> None:
    x = random_array(dtype, shape, seed)
    attributes = {"alpha": 0.5, "beta": 0.6, "bias": 2.0, "size": size}

    (y,) = run_node("LRN", [x], attributes)

    exact = x.astype(float)
    energy = np.zeros_like(exact)
    for channel in range(shape[1]):
        low, high = channel - (size - 1) // 2, channel + -(-(size - 1) // 2)
        energy[:, channel] = (exact[:, max(low, 0) : high + 1] ** 2).sum(axis=1)
    assert y.dtype == dtype
    wanted = exact / (2 + 0.5 / size * energy) ** 0.6
    np.testing.assert_allclose(y, wanted, TOLERANCE[dtype], TOLERANCE[dtype])


def test_lrn_agrees_with_onnx_runtime() -> None:
    x = random_array("float32", (2, 7, 3, 4), 1)
    attributes = {"alpha": 0.3, "beta": 0.75, "bias": 1.5, "size": 3}

    (y,) = run_node("LRN", [x], attributes)

    np.testing.assert_allclose(y, runtime_node("LRN", [x], attributes)[0], 1e-5, 1e-6)
