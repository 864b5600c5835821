from __future__ import annotations

import numpy as np
import pytest
from arrays import FLOATS, SEEDS, random_array, shapes
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_node import runtime_node
from single_node import run_node

FEW = settings(max_examples=40)
TOLERANCE = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-12}


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
