from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import arrays
import numpy as np
import pytest
from arrays import FLOATS, NUMBERS, SIGNED_INTEGERS, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.kernels.blocks import BLOCK
from single_node import onnx_reference, run_node

Formula = Callable[..., float]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softplus(x: float) -> float:
    return max(x, 0) + math.log1p(math.exp(-abs(x)))


def elu(x: float, alpha: float = 1.0) -> float:
    return x if x >= 0 else alpha * math.expm1(x)


def gelu(x: float, approximate: str = "none") -> float:
    if approximate == "tanh":
        return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / 2 * (1 + math.erf(x / math.sqrt(2)))


FORMULAS: dict[str, tuple[Formula, list[dict[str, Any]]]] = {
    "Relu": (lambda x: max(x, 0), [{}]),
    "LeakyRelu": (
        lambda x, alpha=0.01: x if x >= 0 else alpha * x,
        [{}, {"alpha": 0.25}, {"alpha": 0}, {"alpha": 3}, {"alpha": -0.5}],
    ),
    "ThresholdedRelu": (lambda x, alpha=1.0: x if x > alpha else 0, [{}, {"alpha": -2.0}]),
    "HardSigmoid": (
        lambda x, alpha=0.2, beta=0.5: max(0, min(1, alpha * x + beta)),
        [{}, {"alpha": 0.5, "beta": 0.25}],
    ),
    "HardSwish": (lambda x: x * max(0, min(1, x / 6 + 0.5)), [{}]),
    "Softsign": (lambda x: x / (1 + abs(x)), [{}]),
    "Sigmoid": (sigmoid, [{}]),
    "Swish": (lambda x, alpha=1.0: x * sigmoid(alpha * x), [{}, {"alpha": 1.5}]),
    "Elu": (elu, [{}, {"alpha": 2.0}]),
    "Celu": (
        lambda x, alpha=1.0: max(0, x) + min(0, alpha * math.expm1(x / alpha)),
        [{}, {"alpha": 2.0}],
    ),
    "Selu": (
        lambda x, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875: (
            gamma * elu(x, alpha)
        ),
        [{}, {"alpha": 2.0, "gamma": 0.5}],
    ),
    "Softplus": (softplus, [{}]),
    "Mish": (lambda x: x * math.tanh(softplus(x)), [{}]),
    "Gelu": (gelu, [{}, {"approximate": "tanh"}]),
    "Erf": (math.erf, [{}]),
    "Shrink": (
        lambda x, bias=0.0, lambd=0.5: x + bias if x < -lambd else x - bias if x > lambd else 0,
        [{}, {"bias": 1.5, "lambd": 1.5}],
    ),
}

CASES = [(op, attributes) for op, (_, listed) in FORMULAS.items() for attributes in listed]
TOLERANCE = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-14}


@pytest.mark.parametrize(("op", "attributes"), CASES)
@given(dtype=st.sampled_from(FLOATS), shape=arrays.shapes(max_rank=3), seed=arrays.SEEDS)
@settings(max_examples=20)
def test_activations_follow_their_formulas(
    op: str, attributes: dict[str, Any], dtype: str, shape: tuple[int, ...], seed: int
) -> None:
    x = random_array(dtype, shape, seed)

    (y,) = run_node(op, [x], attributes)

    formula = FORMULAS[op][0]
    wanted = [formula(float(v), **attributes) for v in x.reshape(-1)]
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(y, np.reshape(wanted, shape), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("op", "attributes"), CASES)
def test_activations_agree_across_blocks(op: str, attributes: dict[str, Any], dtype: str) -> None:
    x = random_array(dtype, (2 * BLOCK + 7,), 3)

    (y,) = run_node(op, [x], attributes)

    for part in (slice(0, 5), slice(BLOCK - 3, BLOCK + 3), slice(-7, None)):
        (piece,) = run_node(op, [x[part]], attributes)
        tolerance = TOLERANCE[dtype]  # SIMD and scalar code may differ in the last place
        np.testing.assert_allclose(y[part], piece, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("op", "attributes"), [case for case in CASES if case[0] != "Shrink"])
def test_activations_hand_nan_on(op: str, attributes: dict[str, Any], dtype: str) -> None:
    (y,) = run_node(op, [np.array([np.nan, 1.0], dtype)], attributes)

    assert np.isnan(y).tolist() == [True, False]


LIMITS = {
    "Relu": (0, np.inf),
    "LeakyRelu": (-np.inf, np.inf),
    "ThresholdedRelu": (0, np.inf),
    "HardSigmoid": (0, 1),
    "Sigmoid": (0, 1),
    "Elu": (-1, np.inf),
    "Celu": (-1, np.inf),
    "Softplus": (0, np.inf),
    "Erf": (-1, 1),
    "Shrink": (-np.inf, np.inf),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", LIMITS)
def test_activations_reach_their_limits_at_infinity(op: str, dtype: str) -> None:
    (y,) = run_node(op, [np.array([-np.inf, np.inf], dtype)])

    assert y.tolist() == list(LIMITS[op])


def test_leaky_relu_without_a_slope_follows_its_formula_at_infinity() -> None:
    (y,) = run_node("LeakyRelu", [np.array([-np.inf, -1, np.inf], "float32")], {"alpha": 0.0})

    np.testing.assert_array_equal(y, [np.nan, 0, np.inf])


def test_sigmoid_keeps_its_digits_far_from_zero() -> None:
    x = np.array([-80, -40, -20], "float32")

    (y,) = run_node("Sigmoid", [x])

    np.testing.assert_allclose(y, [sigmoid(float(v)) for v in x], rtol=1e-5)


@pytest.mark.parametrize(("dtype", "units"), [("float32", 4), ("float64", 3)])
def test_erf_is_right_to_a_few_units_in_the_last_place(dtype: str, units: int) -> None:
    magnitudes = np.concatenate([np.linspace(0, 7, 20001), np.logspace(-30, 1, 5001)])
    x = np.concatenate([-magnitudes, magnitudes]).astype(dtype)

    (y,) = run_node("Erf", [x])

    wanted = np.array([math.erf(v) for v in x.tolist()])
    assert (np.abs(y - wanted) <= units * np.spacing(np.abs(wanted).astype(dtype))).all()
    assert (np.abs(y) <= 1).all()


@pytest.mark.parametrize("dtype", SIGNED_INTEGERS)
@pytest.mark.parametrize("size", [3, 5000])
def test_relu_takes_signed_integers(dtype: str, size: int) -> None:
    x = random_array(dtype, (size,), 3)

    (y,) = run_node("Relu", [x])

    assert y.tolist() == [max(v, 0) for v in x.tolist()]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_shrink_takes_all_numbers(dtype: str) -> None:
    x = random_array(dtype, (50,), 1)

    (y,) = run_node("Shrink", [x], {"bias": 1.0, "lambd": 2.0})

    np.testing.assert_array_equal(
        y, onnx_reference("Shrink", [x], {"bias": 1.0, "lambd": 2.0})[0].astype(dtype)
    )


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("slope", [(), (1,), (4,), (3, 1), (2, 3, 4)])
def test_prelu_broadcasts_its_slope(dtype: str, slope: tuple[int, ...]) -> None:
    inputs = [random_array(dtype, (2, 3, 4), 1), random_array(dtype, slope, 2)]

    (y,) = run_node("PRelu", inputs)

    x, slopes = inputs[0], np.broadcast_to(inputs[1], (2, 3, 4))
    wanted = [v if v >= 0 else v * s for v, s in zip(x.flat, slopes.flat, strict=True)]
    assert y.reshape(-1).tolist() == wanted
