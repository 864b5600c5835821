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

LOWEST = -(2**31)
ANY = st.one_of(st.integers(-9, 9), st.integers(LOWEST, 2**31 - 1))


def run(op: str, x: Int32s, **attributes: Any) -> Int32s:
    (y,) = run_node(f"cvm.{op}", [x], attributes)
    assert y.dtype == np.int32
    return y


@pytest.mark.parametrize("op", ["sum", "max"])
@settings(max_examples=40, deadline=None)
@given(
    x=hnp.arrays(np.int32, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5), elements=ANY),
    keepdims=st.booleans(),
    exclude=st.booleans(),
    data=st.data(),
)
def test_reductions_go_over_the_listed_axes_or_the_others(
    op: str, x: Int32s, keepdims: bool, exclude: bool, data: Any
) -> None:
    axes = data.draw(st.lists(st.integers(0, x.ndim - 1), unique=True))
    signed = [axis - x.ndim if data.draw(st.booleans()) else axis for axis in axes]
    y = run(op, x, axis=signed, keepdims=keepdims, exclude=exclude)

    reduced = set(range(x.ndim)) if not axes else set(axes)
    if exclude and axes:
        reduced = set(range(x.ndim)) - reduced
    groups: dict[tuple[int, ...], list[int]] = {}
    for index in np.ndindex(*x.shape):
        kept = tuple(i for axis, i in enumerate(index) if axis not in reduced)
        groups.setdefault(kept, []).append(int(x[index]))
    found = [(sum(g) + 2**31) % 2**32 - 2**31 if op == "sum" else max(g) for g in groups.values()]
    assert y.reshape(-1).tolist() == found
    if keepdims:
        assert y.shape == tuple(1 if axis in reduced else n for axis, n in enumerate(x.shape))
    else:
        assert y.shape == (
            tuple(n for axis, n in enumerate(x.shape) if axis not in reduced) or (1,)
        )


def test_the_maximum_of_negative_numbers_is_negative() -> None:
    x = np.array([[-5, -3], [-9, LOWEST]], np.int32)
    assert run("max", x).tolist() == [-3]
    assert run("max", x, axis=(1,)).tolist() == [-3, -9]


def test_a_kept_axis_of_length_one_between_others_is_indexed_right() -> None:
    x = np.arange(60, dtype=np.int32).reshape(4, 3, 1, 5)
    assert run("sum", x, axis=(3,)).reshape(-1).tolist() == [10 + 25 * i for i in range(12)]


def pooled(x: Int32s, y: Int32s, **attributes: Any) -> Int32s:
    """Return the maxima of windows cell by cell; what lies outside does not count."""
    (high, wide), (down, right) = attributes["pool_size"], attributes["strides"]
    top, left = (*attributes["padding"], attributes["padding"][0])[:2]
    found = np.full(y.shape, LOWEST, np.int64)
    height, width = x.shape[2:]
    for i, j in itertools.product(range(y.shape[2]), range(y.shape[3])):
        for h, w in itertools.product(range(high), range(wide)):
            row, column = i * down - top + h, j * right - left + w
            if 0 <= row < height and 0 <= column < width:
                found[:, :, i, j] = np.maximum(found[:, :, i, j], x[:, :, row, column])
    return found.astype(np.int32)


@settings(max_examples=50, deadline=None)
@given(
    x=hnp.arrays(
        np.int32, st.tuples(*[st.integers(1, 2)] * 2, *[st.integers(3, 8)] * 2), elements=ANY
    ),
    pool=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    ceil_mode=st.booleans(),
    data=st.data(),
)
def test_max_pool2d_takes_the_largest_cell_of_each_window(
    x: Int32s, pool: tuple[int, int], strides: tuple[int, int], ceil_mode: bool, data: Any
) -> None:
    both = data.draw(st.booleans())
    padding = [data.draw(st.integers(0, min(pool) - 1))] if both else [p - 1 for p in pool]
    attributes = {"pool_size": pool, "strides": strides, "padding": padding}
    pads = padding * 2 if both else padding
    rooms = [n + 2 * p - k for n, p, k in zip(x.shape[2:], pads, pool, strict=True)]
    counts = [-(-r // s) if ceil_mode else r // s for r, s in zip(rooms, strides, strict=True)]
    starts = [c * s - p for c, s, p in zip(counts, strides, pads, strict=True)]
    if any(start >= n for start, n in zip(starts, x.shape[2:], strict=True)):
        ceil_mode, counts = False, [r // s for r, s in zip(rooms, strides, strict=True)]
    y = run("max_pool2d", x, **attributes, ceil_mode=ceil_mode)
    assert y.shape[2:] == tuple(count + 1 for count in counts)
    np.testing.assert_array_equal(y, pooled(x, y, **attributes))
