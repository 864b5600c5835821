from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import plait as pl
import pytest
from arrays import FLOATS, SEEDS, AnyArray, random_array
from formal_node import formal_node
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plait.devices.kernels import pooling
from runtime_node import runtime_node
from single_node import run_node

FEW = settings(max_examples=40)
TOLERANCE = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}

Axis = list[list[int]]
"""The cells under each window along one axis, those outside of the input included."""


def windows(
    length: int, kernel: int, stride: int, dilation: int, begin: int, end: int, ceil_mode: int
) -> Axis:
    reach = (kernel - 1) * dilation + 1
    starts, start = [], -begin
    while start + reach <= length + end:
        starts.append(start)
        start += stride
    left_over = starts[-1] + reach < length + end
    if ceil_mode:
        starts = [start for start in (*starts, *[start] * left_over) if start < length]
    return [[first + tap * dilation for tap in range(kernel)] for first in starts]


def same_pads(length: int, reach: int, stride: int, auto_pad: str) -> tuple[int, int]:
    total = max(0, (math.ceil(length / stride) - 1) * stride + reach - length)
    small, large = total // 2, total - total // 2
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


@st.composite
def poolings(
    draw: st.DrawFn, below_kernel: bool = False
) -> tuple[tuple[int, ...], dict[str, Any], list[Axis], list[tuple[int, int]]]:
    """Draw a shape and attributes; return with them the windows and the pads along each axis."""
    rank = draw(st.integers(1, 3))
    auto_pad = draw(st.sampled_from(["NOTSET"] * 3 + ["VALID", "SAME_UPPER", "SAME_LOWER"]))
    ceil_mode = draw(st.integers(0, 1))
    axes, pads, numbers = [], [], []
    for _ in range(rank):
        length = draw(st.integers(1, 9 if rank == 1 else 5))
        kernel, stride, dilation = (draw(st.integers(1, most)) for most in (3, 3, 2))
        reach = (kernel - 1) * dilation + 1
        if auto_pad.startswith("SAME"):
            begin, end = same_pads(length, reach, stride, auto_pad)
        elif auto_pad == "VALID":
            begin = end = 0
        else:
            most = kernel - 1 if below_kernel else kernel
            begin, end = draw(st.integers(0, most)), draw(st.integers(0, most))
        assume(length + begin + end >= reach)
        axes.append(windows(length, kernel, stride, dilation, begin, end, ceil_mode))
        pads.append((begin, end))
        numbers.append((length, kernel, stride, dilation))
    lengths, kernel_shape, strides, dilations = map(list, zip(*numbers, strict=True))
    attributes: dict[str, Any] = {"kernel_shape": kernel_shape, "ceil_mode": ceil_mode}
    attributes["auto_pad"] = auto_pad
    if auto_pad == "NOTSET" and draw(st.booleans()) | any(map(any, pads)):
        attributes["pads"] = [pair[side] for side in (0, 1) for pair in pads]
    if draw(st.booleans()) | (set(strides) != {1}):
        attributes["strides"] = strides
    if draw(st.booleans()) | (set(dilations) != {1}):
        attributes["dilations"] = dilations
    shape = (draw(st.integers(0, 2)), draw(st.integers(1, 2)), *lengths)
    return shape, attributes, axes, pads


def pooled(
    x: AnyArray, axes: Sequence[Axis], reduce: Callable[[AnyArray, tuple[int, ...]], Any]
) -> AnyArray:
    """Return reduce(cells in the window, the output's place) for each window, in float64."""
    counts = tuple(map(len, axes))
    y = np.empty((*x.shape[:2], *counts))
    for place in np.ndindex(counts):
        under = [axis[index] for axis, index in zip(axes, place, strict=True)]
        inside = [
            [cell for cell in cells if 0 <= cell < length]
            for cells, length in zip(under, x.shape[2:], strict=True)
        ]
        cells = x.astype(float)[np.ix_(*map(range, x.shape[:2]), *inside)]
        y[(..., *place)] = reduce(cells.reshape(*x.shape[:2], math.prod(cells.shape[2:])), place)
    return y


def greatest(cells: AnyArray, place: Any) -> Any:
    return cells.max(axis=-1, initial=-np.inf)


@given(poolings(), st.sampled_from((*FLOATS, "int8", "uint8")), SEEDS)
@FEW
def test_max_pool_takes_the_greatest_cell_of_each_window(
    pooling: Any, dtype: str, seed: int
) -> None:
    shape, attributes, axes, _ = pooling
    x = random_array(dtype, shape, seed, -100, 100)

    (y,) = run_node("MaxPool", [x], attributes)

    least = -np.inf if y.dtype.kind == "f" else np.iinfo(y.dtype).min
    wanted = np.maximum(pooled(x, axes, greatest), least).astype(dtype)
    np.testing.assert_array_equal(y, wanted, strict=True)


@given(poolings(), st.integers(0, 1), SEEDS)
@FEW
def test_max_pool_says_where_the_first_greatest_cell_lies(
    pooling: Any, storage_order: int, seed: int
) -> None:
    shape, attributes, axes, _ = pooling
    x = random_array("int8", shape, seed, 0, 3)  # many ties
    order = "F" if storage_order else "C"
    number = np.arange(math.prod(shape[2:])).reshape(shape[2:], order=order)  # type: ignore[call-overload]

    y, indices = run_node("MaxPool", [x], {**attributes, "storage_order": storage_order}, 2)

    for place in np.ndindex(y.shape):
        under = [axis[index] for axis, index in zip(axes, place[2:], strict=True)]
        inside = [
            [c for c in cells if 0 <= c < n] for cells, n in zip(under, shape[2:], strict=True)
        ]
        if not all(inside):
            continue
        block = x[place[:2]][np.ix_(*inside)]
        first = int(np.argmax(block))
        plane = place[0] * shape[1] + place[1]
        wanted = plane * number.size + number[np.ix_(*inside)].ravel()[first]
        assert indices[place] == wanted
        assert y[place] == block.max()


def test_a_window_with_a_nan_has_no_maximum() -> None:
    x = np.array([[[1, np.nan, 3, 0, 4]]], np.float32)

    (y,) = run_node("MaxPool", [x], {"kernel_shape": [2]})

    np.testing.assert_array_equal(y[0, 0], [np.nan, np.nan, 3, 4])


@given(poolings(), st.sampled_from(FLOATS), st.integers(0, 1), SEEDS)
@FEW
def test_average_pool_divides_by_the_cells_that_count(
    pooling: Any, dtype: str, count_include_pad: int, seed: int
) -> None:
    shape, attributes, axes, pads = pooling
    x = random_array(dtype, shape, seed)

    def mean(cells: AnyArray, place: Any) -> Any:
        count = 1
        for axis, index, length, (begin, end) in zip(axes, place, shape[2:], pads, strict=True):
            low, high = (-begin, length + end) if count_include_pad else (0, length)
            count *= sum(low <= cell < high for cell in axis[index])
        return cells.sum(axis=-1) / max(count, 1)

    (y,) = run_node("AveragePool", [x], {**attributes, "count_include_pad": count_include_pad})

    tolerance = TOLERANCE[dtype]
    wanted = pooled(x, axes, mean)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=9 * tolerance)


@given(poolings(), st.sampled_from(FLOATS), st.integers(1, 3), SEEDS)
@FEW
def test_lp_pool_takes_the_norm_of_each_window(pooling: Any, dtype: str, p: int, seed: int) -> None:
    shape, attributes, axes, _ = pooling
    x = random_array(dtype, shape, seed)

    (y,) = run_node("LpPool", [x], {**attributes, "p": p})

    wanted = pooled(x, axes, lambda cells, place: (np.abs(cells) ** p).sum(axis=-1) ** (1 / p))
    assert y.dtype == dtype
    np.testing.assert_allclose(y, wanted, rtol=5 * TOLERANCE[dtype], atol=TOLERANCE[dtype])


def runtime_is_right(
    shape: tuple[int, ...], attributes: dict[str, Any], axes: Sequence[Axis]
) -> bool:
    """Windows that hold no cell, and SAME with dilations or gaps, are wrong or refused there."""
    pairs = list(zip(axes, shape[2:], strict=True))
    if not all(
        any(0 <= cell < length for cell in window) for axis, length in pairs for window in axis
    ):
        return False
    gaps = any(axis[-1][-1] < length - 1 for axis, length in pairs)
    return not attributes["auto_pad"].startswith("SAME") or not (gaps or "dilations" in attributes)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@given(pooling=poolings(below_kernel=True), count_include_pad=st.integers(0, 1), seed=SEEDS)
@settings(max_examples=25)
def test_pooling_agrees_with_onnx_runtime(
    op: str, pooling: Any, count_include_pad: int, seed: int
) -> None:
    shape, attributes, axes, _ = pooling
    assume(runtime_is_right(shape, attributes, axes))
    x = random_array("float32", shape, seed)
    if op == "AveragePool":
        attributes = {**attributes, "count_include_pad": count_include_pad}

    (y,) = run_node(op, [x], attributes)

    (wanted,) = runtime_node(op, [x], attributes)
    assert y.shape == wanted.shape
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


def test_indices_that_nobody_names_are_not_written() -> None:
    builder = pl.GraphBuilder()
    x = builder.input("x", "float32", (1, 1, 4))
    y, _ = builder.op("MaxPool", x, kernel_shape=[2], outputs=["y", ""])
    builder.output("y", y)

    found = pl.run(builder.build(), {"x": np.array([[[1, 3, 2, 0]]], "f4")}, devices=["cpu"])

    np.testing.assert_array_equal(found["y"], [[[3, 3, 2]]])


OP = "MaxPoolGradient"


def test_a_maximum_of_several_windows_gets_the_sum() -> None:
    dy, indices = np.array([[[1.0, 2, 4]]]), np.array([[[1, 1, 3]]])
    shape = np.array([1, 1, 4])
    (found,) = run_node(OP, [dy, indices, shape], {"kernel_shape": (2,)}, constant={2})
    assert found.tolist() == [[[0, 3, 0, 4]]]


def test_halves_are_added_in_single_precision() -> None:
    dy = np.array([[[2048, 1, 1]]], "float16")  # 2048 + 1 is 2048 in halves
    indices, shape = np.array([[[2, 2, 2]]]), np.array([1, 1, 5])
    (found,) = run_node(OP, [dy, indices, shape], {"kernel_shape": (3,)}, constant={2})
    assert found.tolist() == [[[0, 0, 2050, 0, 0]]]


PLANES = st.tuples(
    st.integers(0, 3), st.integers(0, 3), st.lists(st.integers(1, 5), min_size=1, max_size=3)
).map(lambda drawn: (drawn[0], drawn[1], *drawn[2]))


@given(PLANES, st.sampled_from(FLOATS), SEEDS)
@FEW
def test_global_average_pool_takes_the_mean_of_each_plane(
    shape: tuple[int, ...], dtype: str, seed: int
) -> None:
    x = random_array(dtype, shape, seed)

    (y,) = run_node("GlobalAveragePool", [x])

    axes = tuple(range(2, len(shape)))
    wanted = x.astype(float).mean(axis=axes, keepdims=True)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, wanted, rtol=TOLERANCE[dtype], atol=9 * TOLERANCE[dtype])


def test_global_average_pool_of_half_precision_does_not_overflow() -> None:
    x = np.full((1, 1, 40, 40), 60000, np.float16)

    (y,) = run_node("GlobalAveragePool", [x])

    assert y.item() == np.float16(60000)


@given(PLANES, st.sampled_from(FLOATS), SEEDS)
@FEW
def test_global_max_pool_takes_the_greatest_cell_of_each_plane(
    shape: tuple[int, ...], dtype: str, seed: int
) -> None:
    x = random_array(dtype, shape, seed)

    (y,) = run_node("GlobalMaxPool", [x])

    axes = tuple(range(2, len(shape)))
    np.testing.assert_array_equal(y, x.max(axis=axes, keepdims=True), strict=True)


@given(PLANES, st.sampled_from(FLOATS), st.integers(1, 3), SEEDS)
@FEW
def test_global_lp_pool_takes_the_norm_of_each_plane(
    shape: tuple[int, ...], dtype: str, p: int, seed: int
) -> None:
    x = random_array(dtype, shape, seed)

    (y,) = run_node("GlobalLpPool", [x], {"p": p})

    axes = tuple(range(2, len(shape)))
    wanted = (np.abs(x.astype(float)) ** p).sum(axis=axes, keepdims=True) ** (1 / p)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, wanted, rtol=5 * TOLERANCE[dtype])


def unpool_attributes(rank: int) -> dict[str, Any]:
    return {"kernel_shape": [2] * rank, "strides": [2] * rank}


@pytest.mark.parametrize("spatial", [(6,), (4, 6), (2, 4, 4)])
def test_max_unpool_puts_maxima_back_to_where_max_pool_found_them(
    spatial: tuple[int, ...],
) -> None:
    x = np.random.default_rng(1).permutation(6 * int(np.prod(spatial))).astype(np.float32)
    x = x.reshape(2, 3, *spatial)
    attributes = unpool_attributes(len(spatial))
    pooled, indices = run_node("MaxPool", [x], attributes, 2)

    (y,) = run_node("MaxUnpool", [pooled, indices], attributes)

    np.testing.assert_array_equal(y, np.where(np.isin(x, pooled), x, 0), strict=True)


def test_max_unpool_adds_margins_up_to_the_given_shape() -> None:
    x = np.array([[[[5, 6], [7, 8]]]], np.float32)
    indices = np.array([[[[5, 7], [13, 15]]]])
    shape = np.array([1, 1, 5, 5])

    (y,) = run_node("MaxUnpool", [x, indices, shape], unpool_attributes(2), constant=[2])

    wanted = np.zeros((5, 5))
    wanted[1, 1], wanted[1, 3], wanted[3, 1], wanted[3, 3] = 5, 6, 7, 8
    np.testing.assert_array_equal(y[0, 0], wanted)


def check(x: AnyArray, attributes: dict[str, Any]) -> None:
    found, wanted = (run("MaxPool", [x], attributes, 2) for run in (run_node, formal_node))
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])


@pytest.mark.parametrize("block", [1, 50, 100, 1000])
@pytest.mark.parametrize("storage_order", [0, 1])
def test_planes_are_taken_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch, block: int, storage_order: int
) -> None:
    monkeypatch.setattr(pooling, "BLOCK", block)
    x = np.random.default_rng(0).integers(0, 5, (2, 3, 7, 6)).astype("float32")
    attributes = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    check(x, {**attributes, "storage_order": storage_order})


@pytest.mark.parametrize("dtype", ["float64", "int16"])
def test_a_window_may_have_more_cells_than_a_byte_counts(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 90, (1, 2, 20, 19)).astype(dtype)
    check(x, {"kernel_shape": [17, 16]})


def test_a_window_of_padding_alone_names_the_first_cell_of_its_plane() -> None:
    x = np.arange(1.0, 5).reshape(1, 2, 2)
    check(x, {"kernel_shape": [2], "pads": [2, 0]})
