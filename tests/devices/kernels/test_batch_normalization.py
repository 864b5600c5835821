from __future__ import annotations

import math

import numpy as np
import pytest
from arrays import FLOATS, SEEDS, AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from single_node import run_node

FEW = settings(max_examples=40)
TOLERANCE = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-12}
PLANES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def parameters(shape: tuple[int, ...], dtype: str, seed: int) -> list[AnyArray]:
    channels = shape[1:2] or (1,)
    scale, bias, mean = (random_array(dtype, channels, seed + i, -2, 2) for i in range(3))
    return [scale, bias, mean, random_array(dtype, channels, seed + 3, 1, 3)]


def planes(x: AnyArray) -> AnyArray:
    channels = x.shape[1] if x.ndim > 1 else 1
    return x.astype(float).reshape(len(x), channels, math.prod(x.shape[2:]))


@pytest.mark.parametrize("constant", [(), (1, 2, 3, 4), (1, 4)])
@given(shape=PLANES, dtypes=st.tuples(*[st.sampled_from(FLOATS)] * 3), seed=SEEDS)
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


@given(PLANES, st.sampled_from(FLOATS), st.sampled_from((0.0, 0.9)), SEEDS)
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
