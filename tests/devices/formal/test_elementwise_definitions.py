"""Elementwise definitions and kernels, written apart, agree on every kind of number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_definition import Both
from numpy.typing import NDArray
from plait.devices.formal import activation, elementwise, logic

AnyArray = NDArray[Any]

DTYPES = ("bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64")
UNARY = (*elementwise.UNARY, *activation.ACTIVATIONS, "Not", "IsNaN", "Identity")
SEVERAL = (*elementwise.BINARY, *elementwise.VARIADIC, *logic.BINARY)


def numbers(dtype: str) -> AnyArray:
    """Return infinities, NaN, zeros and ones of both signs, halves, and the ends of the range.

    Not the very ends of floats: where sums overflow on the way, a definition does not.
    """
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.array([False, True])
    if kind.kind in "iu":
        ends = np.iinfo(kind)
        near = range(-3 if kind.kind == "i" else 0, 8)
        return np.array([ends.min, ends.min + 1, ends.max - 1, ends.max, *near], kind)
    parts = [0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.3, 100.0, np.inf, np.finfo(kind).tiny]
    return np.array([*parts, *(-part for part in parts), np.nan], kind)


def pairs(a: AnyArray, b: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return all pairs, as two vectors."""
    return np.repeat(a, b.size), np.tile(b, a.size)


@pytest.mark.parametrize("op", UNARY)
def test_one_input(both: Both, op: str) -> None:
    taken = [dtype for dtype in DTYPES if both.agree(op, numbers(dtype))]
    assert taken


@pytest.mark.parametrize("op", SEVERAL)
def test_two_inputs(both: Both, op: str) -> None:
    taken = [dtype for dtype in DTYPES if both.agree(op, *pairs(*[numbers(dtype)] * 2))]
    assert taken


@pytest.mark.parametrize("op", [*elementwise.VARIADIC, "Where"])
def test_three_inputs_are_broadcast(both: Both, op: str) -> None:
    a = np.array([[1], [-2]], np.float64)
    b, c = np.array([3, 0, np.nan]), np.array([[[5]], [[0.5]]])
    assert both.agree(op, a > 0 if op == "Where" else a, b, c)


@pytest.mark.parametrize("fmod", [False, True])
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_mod(both: Both, dtype: str, fmod: bool) -> None:
    assert both.agree("Mod", *pairs(*[numbers(dtype)] * 2), fmod=fmod)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_shifts(both: Both, dtype: str, direction: str) -> None:
    assert both.agree("BitShift", *pairs(*[numbers(dtype)] * 2), direction=direction)


@pytest.mark.parametrize("exponents", ["int8", "int64", "float32", "float64"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_powers_of_floats(both: Both, dtype: str, exponents: str) -> None:
    assert both.agree("Pow", *pairs(numbers(dtype), numbers(exponents)))


@pytest.mark.parametrize("exponents", ["int8", "int64"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_powers_of_integers(both: Both, dtype: str, exponents: str) -> None:
    assert both.agree("Pow", *pairs(numbers(dtype), numbers(exponents)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float32", "float64"])
def test_prelu(both: Both, dtype: str) -> None:
    slopes = numbers(dtype)
    assert both.agree("PRelu", *pairs(numbers(dtype), slopes[np.isfinite(slopes)]))


@pytest.mark.parametrize("target", [*DTYPES, "complex64"])
@pytest.mark.parametrize("dtype", [*DTYPES, "complex64"])
def test_casts(both: Both, dtype: str, target: str) -> None:
    """But for floats that no integer of the target is near, of which ONNX says nothing."""
    x = numbers("float32").astype(dtype) if dtype == "complex64" else numbers(dtype)
    if np.dtype(target).kind in "iu" and x.dtype.kind in "fc":
        x = x[np.isfinite(x) & (x.real > -1 if target[0] == "u" else True)]
    assert both.agree("Cast", x, to=target)
    assert both.agree("CastLike", x, np.zeros(1, target))


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("positive", [False, True])
def test_infinities(both: Both, negative: bool, positive: bool) -> None:
    x = numbers("float32")
    assert both.agree("IsInf", x, detect_negative=negative, detect_positive=positive)


@pytest.mark.parametrize("low", [None, -2, 3])
@pytest.mark.parametrize("high", [None, -3, 2])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32"])
def test_clip(both: Both, dtype: str, low: int | None, high: int | None) -> None:
    bounds = [None if bound is None else np.array(bound, dtype) for bound in (low, high)]
    assert both.agree("Clip", numbers(dtype), *bounds)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("LeakyRelu", {"alpha": -0.5}),
        ("ThresholdedRelu", {"alpha": -1.0}),
        ("HardSigmoid", {"alpha": 0.5, "beta": 0.25}),
        ("Swish", {"alpha": 1.5}),
        ("Elu", {"alpha": 2.0}),
        ("Celu", {"alpha": 0.5}),
        ("Selu", {"alpha": 2.0, "gamma": 3.0}),
        ("Gelu", {"approximate": "tanh"}),
        ("Shrink", {"bias": 0.25, "lambd": 1.5}),
    ],
)
def test_activations_with_attributes(both: Both, op: str, attributes: dict[str, Any]) -> None:
    taken = [dtype for dtype in DTYPES if both.agree(op, numbers(dtype), **attributes)]
    assert {"float16", "float32", "float64"} <= set(taken)
