from __future__ import annotations

import itertools
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from single_node import run_node

Int32s = np.ndarray[Any, np.dtype[np.int32]]

SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)


def numbered(shape: tuple[int, ...]) -> Int32s:
    return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)


def run(op: str, *inputs: Int32s, **attributes: Any) -> Int32s:
    (y,) = run_node(f"cvm.{op}", inputs, attributes)
    assert y.dtype == np.int32
    return y


@settings(max_examples=20, deadline=None)
@given(shape=SHAPES, repeats=st.integers(1, 3), data=st.data())
def test_repeat_repeats_each_place(shape: tuple[int, ...], repeats: int, data: Any) -> None:
    axis, x = data.draw(st.integers(-len(shape), len(shape) - 1)), numbered(shape)
    y = run("repeat", x, repeats=repeats, axis=axis)
    np.testing.assert_array_equal(y, np.repeat(x, repeats, axis))


@settings(max_examples=20, deadline=None)
@given(shape=SHAPES, reps=st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_tile_repeats_the_whole(shape: tuple[int, ...], reps: list[int]) -> None:
    x = numbered(shape)
    np.testing.assert_array_equal(run("tile", x, reps=reps), np.tile(x, reps))


@pytest.mark.parametrize(
    ("shape", "wanted"), [((5,), (5, 1)), ((2, 3), (2, 3)), ((2, 3, 4), (2, 12))]
)
def test_flatten_keeps_the_first_axis(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    x = numbered(shape)
    np.testing.assert_array_equal(run("flatten", x), x.reshape(wanted))


@settings(max_examples=20, deadline=None)
@given(shape=SHAPES, lengths=st.lists(st.integers(1, 3), min_size=1, max_size=3), data=st.data())
def test_concatenate_joins(shape: tuple[int, ...], lengths: list[int], data: Any) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    parts: list[Int32s] = []
    for length in lengths:
        part = list(shape)
        part[axis] = length
        parts.append(numbered(tuple(part)) + 100 * len(parts))
    y = run("concatenate", *parts, axis=axis)
    np.testing.assert_array_equal(y, np.concatenate(parts, axis))


@pytest.mark.parametrize(
    ("axis", "count", "wanted"),
    [(0, 1, (1, 2, 3)), (2, 2, (2, 3, 1, 1)), (-1, 1, (2, 3, 1)), (-3, 3, (1, 1, 1, 2, 3))],
)
def test_expand_dims_counts_from_behind_the_last_axis(
    axis: int, count: int, wanted: tuple[int, ...]
) -> None:
    x = numbered((2, 3))
    y = run("expand_dims", x, axis=axis, num_newaxis=count)
    np.testing.assert_array_equal(y, x.reshape(wanted))


def test_reshape_and_squeeze_keep_the_order() -> None:
    x = numbered((2, 1, 6))
    np.testing.assert_array_equal(run("reshape", x, shape=(3, -1)), x.reshape(3, 4))
    np.testing.assert_array_equal(run("squeeze", x), x.reshape(2, 6))


@settings(max_examples=20, deadline=None)
@given(shape=SHAPES, data=st.data())
def test_transpose_orders_axes(shape: tuple[int, ...], data: Any) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    signed = [axis - len(shape) if data.draw(st.booleans()) else axis for axis in axes]
    x = numbered(shape)
    np.testing.assert_array_equal(run("transpose", x, axes=signed), np.transpose(x, axes))


def test_transpose_reverses_by_default() -> None:
    x = numbered((2, 3, 4))
    np.testing.assert_array_equal(run("transpose", x), x.T)


@pytest.mark.parametrize(
    ("begin", "end", "stride", "wanted"),
    [
        ((0,), (1,), (), [0]),
        ((1,), (3,), (), [1, 2]),
        ((), (), (), [0, 1, 2, 3]),
        ((0,), (9,), (3,), [0, 3]),
        ((-3,), (-1,), (), [1, 2]),
        ((-9,), (2,), (), [0, 1]),
        ((3,), (-5,), (-1,), [3, 2, 1, 0]),
        ((9,), (-9,), (-2,), [3, 1]),
        ((3,), (-3,), (-1,), [3, 2]),
    ],
)
def test_a_strided_slice_takes_the_places_between_clamped_ends(
    begin: tuple[int, ...], end: tuple[int, ...], stride: tuple[int, ...], wanted: list[int]
) -> None:
    y = run("strided_slice", numbered((4,)), begin=begin, end=end, stride=stride)
    assert y.tolist() == wanted


@settings(max_examples=40, deadline=None)
@given(shape=SHAPES, data=st.data())
def test_a_strided_slice_walks_until_the_end(shape: tuple[int, ...], data: Any) -> None:
    begins, ends, strides, places = [], [], [], []
    for length in shape:
        stride = data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
        step = 1 if stride > 0 else -1
        first, last = sorted(
            data.draw(st.lists(st.integers(0, length - 1), min_size=2, max_size=2))
        )
        begin, end = (first, last + 1) if step > 0 else (last, first - 1)
        if data.draw(st.booleans()) and begin >= 0:
            begin -= length
        if end < 0 or (end < length and data.draw(st.booleans())):
            end = end - length if end >= 0 else -length - 1
        begins.append(begin)
        ends.append(end)
        strides.append(stride)
        places.append(
            list(range(first, last + 1, stride) if step > 0 else range(last, first - 1, stride))
        )
    x = numbered(shape)
    y = run("strided_slice", x, begin=begins, end=ends, stride=strides)
    np.testing.assert_array_equal(y, x[np.ix_(*places)])


def test_slice_like_cuts_the_listed_axes() -> None:
    x, like = numbered((4, 5, 6)), np.zeros((2, 3, 6), np.int32)
    np.testing.assert_array_equal(run("slice_like", x, like), x[:2, :3])
    np.testing.assert_array_equal(run("slice_like", x, like, axis=(0,)), x[:2])
    np.testing.assert_array_equal(run("slice_like", x, like[:, :, 0], axis=(-2,)), x[:, :3])


@settings(max_examples=30, deadline=None)
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=3, max_side=4),
    indices=hnp.arrays(
        np.int32,
        hnp.array_shapes(min_dims=1, max_dims=2, max_side=3),
        elements=st.one_of(st.integers(-3, 9), st.sampled_from([-(2**31), 2**31 - 1])),
    ),
    data=st.data(),
)
def test_take_clamps_indices(shape: tuple[int, ...], indices: Int32s, data: Any) -> None:
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    x = numbered(shape) + 10
    y = run("take", x, indices, axis=axis)
    if axis is None:
        wanted = np.array([x.reshape(-1)[min(max(int(i), 0), x.size - 1)] for i in indices.flat])
        np.testing.assert_array_equal(y, wanted.reshape(indices.shape))
    else:
        places = [min(max(int(i), 0), shape[axis] - 1) for i in indices.flat]
        rows = np.moveaxis(x, axis, 0)[places]
        wanted = np.moveaxis(rows, 0, axis % len(shape)).reshape(y.shape)
        np.testing.assert_array_equal(y, wanted)


def test_lut_takes_the_indices_first() -> None:
    indices, table = np.array([[2, -1], [0, 7]], np.int32), np.array([[10, 20, 30]], np.int32)
    assert run("lut", indices, table, in_dim=3).tolist() == [[30, 10], [10, 30]]


def test_upsampling_repeats_rows_and_columns() -> None:
    x = numbered((2, 2, 2, 3))
    y = run("upsampling", x, scale=3)
    for n, c, h, w in itertools.product(range(2), range(2), range(6), range(9)):
        assert y[n, c, h, w] == x[n, c, h // 3, w // 3]
