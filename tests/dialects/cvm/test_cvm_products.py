from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.kernels.registry import Step
from plait.dialects.cvm.kernels.neural import WIDE, ExactProduct
from single_node import run_node

Int32s = np.ndarray[Any, np.dtype[np.int32]]

RANGES = [(-127, 127), (-4000, 4000), (-(2**31), 2**31 - 1)]
"""What float32, float64 and int64 are taken for."""


def integers(seed: int, shape: Sequence[int], low: int, high: int) -> Int32s:
    return np.random.default_rng(seed).integers(low, high, shape, np.int32, endpoint=True)


def convolved(x: Int32s, w: Int32s, bias: Int32s | None, **attributes: Any) -> Int32s:
    """Return the sums window by window, in int64 that wraps."""
    (down, right), (top, left) = attributes["strides"], attributes["padding"]
    (row_step, column_step), groups = attributes["dilation"], attributes["groups"]
    framed = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (top, top), (left, left)))
    high, wide = (w.shape[2] - 1) * row_step + 1, (w.shape[3] - 1) * column_step + 1
    rows = range(0, framed.shape[2] - high + 1, down)
    columns = range(0, framed.shape[3] - wide + 1, right)
    y = np.zeros((len(x), len(w), len(rows), len(columns)), np.int64)
    features, depth = len(w) // groups, w.shape[1]
    for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
        window = framed[:, :, row : row + high : row_step, column : column + wide : column_step]
        for feature in range(len(w)):
            group = feature // features
            part = window[:, group * depth : (group + 1) * depth]
            y[:, feature, i, j] = (part * w[feature]).sum((1, 2, 3))
    if bias is not None:
        y += bias[:, None, None]
    return y.astype(np.int32)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), groups=st.integers(1, 3), seed=st.integers(0, 99))
def test_conv2d_sums_each_window(data: st.DataObject, groups: int, seed: int) -> None:
    small, pairs = st.integers(1, 3), st.tuples(st.integers(1, 3), st.integers(1, 3))
    depth, features, kernel = data.draw(small), groups * data.draw(small), data.draw(pairs)
    dilation = data.draw(pairs)
    window = {
        "strides": data.draw(pairs),
        "dilation": dilation,
        "padding": data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
        "groups": groups,
    }
    spatial = [(k - 1) * d + data.draw(small) for k, d in zip(kernel, dilation, strict=True)]
    low, high = data.draw(st.sampled_from(RANGES))
    x = integers(seed, (data.draw(small), groups * depth, *spatial), low, high)
    w = integers(seed + 1, (features, depth, *kernel), low, high)
    bias = integers(seed + 2, (features,), *RANGES[2]) if data.draw(st.booleans()) else None
    attributes = {"channels": features, "kernel_size": kernel, "use_bias": bias is not None}
    constant = (1,) if data.draw(st.booleans()) else ()

    (y,) = run_node(
        "cvm.conv2d",
        [x, w, bias][: 2 + (bias is not None)],
        {**attributes, **window},
        constant=constant,
    )
    np.testing.assert_array_equal(y, convolved(x, w, bias, **window))


@pytest.mark.parametrize("constant", [(), (1,)], ids=["computed", "constant"])
@pytest.mark.parametrize(("low", "high"), RANGES)
@pytest.mark.parametrize(
    ("channels", "features", "groups", "kernel", "stride"),
    [
        (64, 64, 1, 3, 1),  # what floats do by Winograd's method, which is not exact
        (24, 8, 1, 3, 1),
        (6, 6, 6, 3, 1),
        (6, 6, 6, 3, 2),
        (8, 16, 1, 1, 1),
    ],
)
def test_conv2d_is_exact_by_each_method(
    channels: int,
    features: int,
    groups: int,
    kernel: int,
    stride: int,
    low: int,
    high: int,
    constant: tuple[int, ...],
) -> None:
    x = integers(1, (1, channels, 14, 15), low, high)
    w = integers(2, (features, channels // groups, kernel, kernel), low, high)
    bias = integers(3, (features,), low, high)
    window = {
        "strides": (stride, stride),
        "padding": (kernel // 2, kernel // 2),
        "dilation": (1, 1),
        "groups": groups,
    }
    attributes = {"channels": features, "kernel_size": (kernel, kernel), **window}
    (y,) = run_node("cvm.conv2d", [x, w, bias], attributes, constant=constant)
    np.testing.assert_array_equal(y, convolved(x, w, bias, **window))


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 6)] * 3),
    seed=st.integers(0, 99),
    limits=st.sampled_from(RANGES),
    constant=st.sampled_from([(), (1,)]),
    use_bias=st.booleans(),
)
def test_dense_sums_each_row(
    shape: tuple[int, int, int],
    seed: int,
    limits: tuple[int, int],
    constant: tuple[int, ...],
    use_bias: bool,
) -> None:
    rows, length, units = shape
    x, w = integers(seed, (rows, length), *limits), integers(seed + 1, (units, length), *limits)
    bias = integers(seed + 2, (units,), *RANGES[2])
    wanted = [
        [sum(int(a) * int(b) for a, b in zip(row, unit, strict=True)) for unit in w] for row in x
    ]
    sums = np.array(wanted, object) + (bias.astype(object) if use_bias else 0)
    inputs = [x, w, bias] if use_bias else [x, w]
    attributes = {"units": units, "use_bias": use_bias}
    (y,) = run_node("cvm.dense", inputs, attributes, constant=constant)
    np.testing.assert_array_equal(y, ((sums + 2**31) % 2**32 - 2**31).astype(np.int32))


@pytest.mark.parametrize(
    ("x", "w", "dtype"),
    [
        (127, [[127] * 1040], "float32"),
        (127, [[127] * 1041], "float64"),  # 127·127·1041 > 2²⁴
        (1, [[2**24 - 1]], "float32"),
        (1, [[2**23, -(2**23)]], "float64"),
        (1, [[2**31 - 1]], "float64"),
        (-1, [[-(2**31)]], "int64"),
        (-(2**31), [[1]], "int64"),
        (0, [[-(2**31)]], "float32"),
        (1, [[1, 1], [2**24, 0]], "float64"),
    ],
)
@pytest.mark.parametrize("is_constant", [True, False])
def test_the_dtype_is_the_narrowest_that_is_exact(
    x: int, w: list[list[int]], dtype: str, is_constant: bool
) -> None:
    taken: list[str] = []

    def bind(dtype: np.dtype[Any]) -> Step:
        return lambda: taken.append(dtype.name)

    operands = np.array([[x]], np.int32), np.array(w, np.int32)
    step = ExactProduct(*operands, bind, is_constant)
    step()
    assert taken == [dtype]


def test_the_dtype_follows_the_operands_from_run_to_run() -> None:
    taken: list[np.dtype[Any]] = []
    x, w = np.array([[1]], np.int32), np.array([[2]], np.int32)
    step = ExactProduct(x, w, lambda dtype: lambda: taken.append(dtype), False)
    step()
    x[:] = w[:] = 2**31 - 1
    step()
    x[:] = w[:] = 3
    step()
    assert taken == [np.float32, WIDE, np.float32]


def test_floats_at_the_limit_lose_nothing() -> None:
    length = 1040
    x, w = np.full((1, length), 127, np.int32), np.full((2, length), 127, np.int32)
    x[0, -1], w[1] = 126, -127
    exact = 127 * 127 * (length - 1) + 126 * 127
    (y,) = run_node("cvm.dense", [x, w], {"units": 2, "use_bias": False})
    assert y.tolist() == [[exact, -exact]]
