from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from convolutions import Case, cases, conv_transposed, convolved
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plait.devices.kernels import conv_transpose
from single_node import onnx_reference, run_node

TOLERANCE: Mapping[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


@given(cases(transposed=True), st.booleans())
@settings(max_examples=60)
def test_conv_transpose_is_its_definition(case: Case, constant: bool) -> None:
    case = case.cast("float32")
    weights = (1, 2) if constant else ()
    (y,) = run_node("ConvTranspose", case.inputs, case.attributes, constant=weights)
    np.testing.assert_allclose(y, conv_transposed(case), **TOLERANCE)


@given(cases(transposed=True), st.sampled_from([1, 30, 200]))
@settings(max_examples=30)
def test_conv_transpose_works_in_bands(case: Case, limit: int) -> None:
    case = case.cast("float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv_transpose, "BLOCK", limit)
        (y,) = run_node("ConvTranspose", case.inputs, case.attributes)
    np.testing.assert_allclose(y, conv_transposed(case), **TOLERANCE)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2), st.data())
@settings(max_examples=40)
def test_windows_that_do_not_overlap_are_written_once(
    kernel: int, gap: int, pad: int, extra: int, data: st.DataObject
) -> None:
    stride = kernel + gap - 1
    pads = (min(pad, kernel - 1), 0)
    random = np.random.default_rng(data.draw(st.integers(0, 100)))
    case = Case(
        random.standard_normal((2, 3, 5), np.float32),
        random.standard_normal((3, 2, kernel), np.float32),
        random.standard_normal(2, np.float32),
        {
            "group": 1,
            "strides": (stride,),
            "dilations": (1,),
            "pads": pads,
            "output_padding": (extra,),
        },
    )
    (y,) = run_node("ConvTranspose", case.inputs, case.attributes)
    np.testing.assert_allclose(y, conv_transposed(case), **TOLERANCE)


@given(cases())
@settings(max_examples=30)
def test_it_is_the_adjoint_of_a_convolution(case: Case) -> None:
    """⟨conv(x), g⟩ = ⟨x, conv_transpose(g)⟩, for any g: what makes it a convolution's gradient."""
    case = Case(case.x, case.w, None, case.attributes)
    y = convolved(case)
    g = np.random.default_rng(1).standard_normal(y.shape)
    attributes = {**case.attributes, "output_padding": None}
    rank = case.x.ndim - 2
    attributes["output_padding"] = tuple(_unread(case, y, axis) for axis in range(rank))
    (back,) = run_node("ConvTranspose", [g, case.w], attributes)
    assert back.shape == case.x.shape
    np.testing.assert_allclose(np.vdot(y, g), np.vdot(case.x, back), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 5e-3), ("float64", 1e-12)])
@given(case=cases(transposed=True), constant=st.booleans())
@settings(max_examples=20)
def test_conv_transpose_keeps_the_dtype(
    dtype: str, tolerance: float, case: Case, constant: bool
) -> None:
    case = case.cast(dtype)
    weights = (1, 2) if constant else ()
    (y,) = run_node("ConvTranspose", case.inputs, case.attributes, constant=weights)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, conv_transposed(case), rtol=tolerance, atol=10 * tolerance)


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]),
    st.integers(0, 2),
)
def test_auto_pad_is_that_of_onnx(kernel: int, stride: int, auto_pad: str, smaller: int) -> None:
    assume(kernel >= stride)  # else no padding is left to split, and the reference shifts
    x, w = np.arange(4, dtype="f")[None, None], np.arange(1, kernel + 1, dtype="f")[None, None]
    attributes: dict[str, Any] = {"auto_pad": auto_pad, "strides": (stride,)}
    if smaller and auto_pad != "VALID":
        attributes["output_shape"] = (3 * stride + kernel - smaller,)
    (wanted,) = onnx_reference("ConvTranspose", [x, w], attributes)
    (y,) = run_node("ConvTranspose", [x, w], attributes)
    np.testing.assert_array_equal(y, wanted)


def test_cells_beyond_all_windows_are_the_bias() -> None:
    x, w, b = np.ones((1, 1, 2), "f"), np.ones((1, 1, 2), "f"), np.full(1, 0.5, "f")
    (y,) = run_node("ConvTranspose", [x, w, b], {"output_shape": (6,), "strides": (2,)})
    np.testing.assert_array_equal(y, [[[1.5, 1.5, 1.5, 1.5, 0.5, 0.5]]])


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4)])
def test_conv_transpose_of_nothing_is_the_bias(shape: tuple[int, ...]) -> None:
    inputs = [np.zeros(shape, "f"), np.zeros((shape[1], 2, 3), "f"), np.arange(2, dtype="f")]
    (y,) = run_node("ConvTranspose", inputs)
    wanted = np.broadcast_to(np.arange(2)[:, None], (shape[0], 2, 6))
    np.testing.assert_array_equal(y, wanted)


def _unread(case: Case, y: np.ndarray[Any, Any], axis: int) -> int:
    """How many of the padded input's last cells no window of the convolution reads."""
    attributes, rank = case.attributes, case.x.ndim - 2
    pads, dilation = attributes["pads"], attributes["dilations"][axis]
    padded = case.x.shape[2 + axis] + pads[axis] + pads[rank + axis]
    last = (y.shape[2 + axis] - 1) * attributes["strides"][axis]
    return int(padded - last - (case.w.shape[2 + axis] - 1) * dilation - 1)
