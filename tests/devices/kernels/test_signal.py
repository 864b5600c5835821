from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import SEEDS, AnyArray, random_array
from hypothesis import given
from hypothesis import strategies as st
from single_node import onnx_reference, run_node


def check(op: str, inputs: list[AnyArray | None], given: dict[str, Any], dtype: str) -> None:
    constant = {i for i, x in enumerate(inputs) if i and x is not None and x.dtype.kind == "i"}
    (found,) = run_node(op, inputs, given, constant=constant)
    (wanted,) = onnx_reference(op, inputs, given)
    tolerance = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}[dtype]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, tolerance, tolerance * 100)


@given(st.data(), st.sampled_from(("float16", "float32", "float64")), SEEDS)
def test_dft_gives_what_onnx_says(data: st.DataObject, dtype: str, seed: int) -> None:
    inverse, onesided = data.draw(st.booleans()), data.draw(st.booleans())
    parts = (2 if inverse else 1) if onesided else data.draw(st.integers(1, 2))
    shape = data.draw(st.lists(st.integers(2, 5), min_size=1, max_size=3))
    axis = data.draw(st.integers(0, len(shape) - 1))
    inputs: list[AnyArray | None] = [random_array(dtype, (*shape, parts), seed), None, None]
    if data.draw(st.booleans()):
        inputs[1] = np.array(data.draw(st.integers(1, 8)), data.draw(st.sampled_from(("i4", "i8"))))
    inputs[2] = np.array(axis - data.draw(st.sampled_from((0, len(shape) + 1))))
    check("DFT", inputs, {"inverse": int(inverse), "onesided": int(onesided)}, dtype)


def test_dft_runs_along_the_last_axis_but_that_of_parts_unless_told() -> None:
    x = random_array("float32", (3, 4, 2), 3)
    (found,) = run_node("DFT", [x])
    (wanted,) = run_node("DFT", [x, None, np.array(1)], constant={2})
    np.testing.assert_array_equal(found, wanted)


def test_dft_is_the_sum_that_defines_it() -> None:
    x = random_array("float64", (2, 6, 2), 1)
    (y,) = run_node("DFT", [x])
    turns = np.outer(np.arange(6), np.arange(6)) / 6
    wanted = (x[..., 0] + 1j * x[..., 1]) @ np.exp(-2j * np.pi * turns)
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], wanted, 1e-12, 1e-12)


@pytest.mark.parametrize("onesided", [0, 1])
def test_the_inverse_undoes_dft(onesided: int) -> None:
    x = random_array("float64", (3, 8, 2 - onesided), 2)
    (y,) = run_node("DFT", [x], {"onesided": onesided})
    (back,) = run_node("DFT", [y], {"onesided": onesided, "inverse": 1})
    np.testing.assert_allclose(back, x, 1e-12, 1e-12)


def test_a_batch_of_nothing_stays_nothing() -> None:
    (y,) = run_node("DFT", [np.zeros((0, 4, 1), np.float32)])
    assert y.shape == (0, 4, 2)


@given(st.data(), st.sampled_from(("float16", "float32", "float64")), SEEDS)
def test_stft_gives_what_onnx_says(data: st.DataObject, dtype: str, seed: int) -> None:
    onesided = data.draw(st.booleans())
    parts = 1 if onesided else data.draw(st.integers(1, 2))
    length = data.draw(st.integers(2, 12))
    frame = data.draw(st.integers(1, length))
    signal = random_array(dtype, (data.draw(st.integers(1, 2)), length, parts), seed)
    inputs: list[AnyArray | None] = [signal, np.array(data.draw(st.integers(1, 4))), None, None]
    if data.draw(st.booleans()):
        inputs[2] = random_array(dtype, (frame,), seed + 1)
    if data.draw(st.booleans()):
        inputs[3] = np.array(frame)
    check("STFT", inputs, {"onesided": int(onesided)}, dtype)


def mel(bins: int, length: int, rate: int, low: float, high: float, **given: Any) -> AnyArray:
    inputs: list[AnyArray | None] = [np.array(number) for number in (bins, length, rate)]
    inputs += [np.array(low), np.array(high)]
    (y,) = run_node("MelWeightMatrix", inputs, given, constant={0, 1})
    return y


@given(st.integers(1, 9), st.integers(8, 64), st.floats(1, 900), st.floats(1000, 3900))
def test_mel_weights_are_what_onnx_says(bins: int, length: int, low: float, high: float) -> None:
    inputs = [np.array(number) for number in (bins, length, 8000, low, high)]
    (wanted,) = onnx_reference("MelWeightMatrix", inputs, {"output_datatype": 11})
    found = mel(bins, length, 8000, low, high, output_datatype="float64")
    np.testing.assert_allclose(found, wanted, 1e-12)


@pytest.mark.parametrize("dtype", ["float16", "int32", "uint8"])
def test_mel_weights_may_be_of_another_dtype(dtype: str) -> None:
    exact = mel(8, 32, 8192, 0.0, 4096.0, output_datatype="float64")
    found = mel(8, 32, 8192, 0.0, 4096.0, output_datatype=dtype)
    assert found.dtype == dtype
    assert exact.max() == 1
    np.testing.assert_array_equal(found, exact.astype(dtype))
