from __future__ import annotations

from itertools import pairwise

import arrays
import numpy as np
import pytest
from arrays import EVERY, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.errors import KernelError
from single_node import run_node

DTYPES = st.sampled_from(EVERY)
BOUNDS = st.integers(-7, 7) | st.sampled_from([2**31 - 1, 2**63 - 1, -(2**31), -(2**63)])
STEPS = st.sampled_from([-3, -2, -1, 1, 2, 3])


def sliced(length: int, start: int, end: int, step: int) -> list[int]:
    """Return the indices that a slice takes, by ONNX's words: shift, clamp, walk."""
    start, end = (bound + length if bound < 0 else bound for bound in (start, end))
    if step > 0:
        start, end = min(max(start, 0), length), min(max(end, 0), length)
    else:
        start, end = min(max(start, 0), length - 1), min(max(end, -1), length - 1)
    taken = []
    while start < end if step > 0 else start > end:
        taken.append(start)
        start += step
    return taken


@given(
    shape=arrays.shapes(max_rank=4),
    dtype=DTYPES,
    index=st.sampled_from(["int32", "int64"]),
    data=st.data(),
)
@settings(max_examples=150)
def test_slices_are_clamped_as_onnx_says(
    shape: tuple[int, ...], dtype: str, index: str, data: st.DataObject
) -> None:
    x = random_array(dtype, shape, 1)
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1)))) if shape else []
    bounds = {axis: (data.draw(BOUNDS), data.draw(BOUNDS), data.draw(STEPS)) for axis in axes}
    limits = np.iinfo(index)
    columns = [
        np.array([min(max(b[i], limits.min), limits.max) for b in bounds.values()], index)
        for i in range(3)
    ]
    named = [axis - len(shape) * data.draw(st.booleans()) for axis in axes]

    (y,) = run_node(
        "Slice",
        [x, *columns[:2], np.array(named, index), columns[2]],
        constant={1, 2, 3, 4},
    )

    wanted = x
    for axis, (start, end, step) in zip(axes, zip(*columns, strict=True), strict=True):
        taken = sliced(shape[axis], int(start), int(end), int(step))
        wanted = wanted.take(np.array(taken, int), axis)
    np.testing.assert_array_equal(y, wanted, strict=True)


def test_slice_without_axes_takes_the_first_ones() -> None:
    x = random_array("float32", (4, 5, 6), 1)

    (y,) = run_node("Slice", [x, np.array([1, 0]), np.array([3, -1])], constant={1, 2})

    np.testing.assert_array_equal(y, x[1:3, :-1], strict=True)


def test_a_backward_slice_from_before_the_beginning_takes_one_element() -> None:
    # Where ONNX differs from Python: the start is clamped to the first element.
    x = np.arange(5, dtype="float32")
    starts, ends, axes, steps = (np.array([value]) for value in (-100, -200, 0, -1))

    (y,) = run_node("Slice", [x, starts, ends, axes, steps], constant={1, 2, 3, 4})

    assert y.tolist() == [0]


@given(
    shape=arrays.shapes(min_rank=1),
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    dtype=DTYPES,
    data=st.data(),
)
@settings(max_examples=60)
def test_split_cuts_into_the_sizes_given(
    shape: tuple[int, ...], sizes: list[int], dtype: str, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    place = axis % len(shape)
    x = random_array(dtype, (*shape[:place], sum(sizes), *shape[place + 1 :]), 1)

    parts = run_node("Split", [x, np.array(sizes)], {"axis": axis}, len(sizes), {1})

    ends = np.cumsum([0, *sizes])
    for part, (begin, end) in zip(parts, pairwise(ends), strict=True):
        np.testing.assert_array_equal(part, x.take(np.arange(begin, end), place), strict=True)


@pytest.mark.parametrize(
    ("length", "parts", "sizes"),
    [(6, 3, [2, 2, 2]), (7, 3, [3, 3, 1]), (5, 4, [2, 2, 1, 0]), (0, 2, [0, 0]), (3, 1, [3])],
)
def test_split_makes_equal_parts_and_smaller_last_ones(
    length: int, parts: int, sizes: list[int]
) -> None:
    x = np.arange(length, dtype="float32")

    cut = run_node("Split", [x], {"num_outputs": parts}, parts)

    assert [part.size for part in cut] == sizes
    np.testing.assert_array_equal(np.concatenate(cut), x)


@given(
    shape=arrays.shapes(min_rank=1, max_rank=3),
    indices=arrays.shapes(max_rank=3),
    dtype=DTYPES,
    index=st.sampled_from(["int32", "int64"]),
    data=st.data(),
)
@settings(max_examples=80)
def test_gather_counts_negative_indices_from_the_end(
    shape: tuple[int, ...], indices: tuple[int, ...], dtype: str, index: str, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    place = axis % len(shape)
    shape = tuple(max(n, 1) if i == place else n for i, n in enumerate(shape))
    x = random_array(dtype, shape, 1)
    chosen = random_array(index, indices, 2, -shape[place], shape[place] - 1)

    (y,) = run_node("Gather", [x, chosen], {"axis": axis})

    wanted = x[(slice(None),) * place + (chosen,)]
    np.testing.assert_array_equal(y, wanted, strict=True)


def test_gather_of_many_rows_is_checked_and_copied_once() -> None:
    x = random_array("float32", (9, 100), 1)
    chosen = random_array("int64", (1000,), 2, -9, 8)

    (y,) = run_node("Gather", [x, chosen])

    np.testing.assert_array_equal(y, x[chosen], strict=True)


@pytest.mark.parametrize("count", [1, 20_000])
@pytest.mark.parametrize("index", [-4, 3])
@pytest.mark.parametrize("op", ["Gather", "GatherElements"])
def test_an_index_outside_the_data_is_an_error(op: str, index: int, count: int) -> None:
    chosen = np.zeros(count, "int64")
    chosen[-1] = index

    with pytest.raises(KernelError, match=rf"{index}"):
        run_node(op, [np.ones(3, "float32"), chosen])


@given(
    shape=arrays.shapes(min_rank=1, max_rank=4),
    dtype=DTYPES,
    index=st.sampled_from(["int32", "int64"]),
    data=st.data(),
)
@settings(max_examples=80)
def test_gather_elements_picks_along_one_axis(
    shape: tuple[int, ...], dtype: str, index: str, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    place = axis % len(shape)
    shape = tuple(max(n, 1) if i == place else n for i, n in enumerate(shape))
    wanted_shape = [data.draw(st.integers(0, 5 if i == place else n)) for i, n in enumerate(shape)]
    x = random_array(dtype, shape, 1)
    chosen = random_array(index, wanted_shape, 2, -shape[place], shape[place] - 1)

    (y,) = run_node("GatherElements", [x, chosen], {"axis": axis})

    assert y.shape == chosen.shape
    for position in np.ndindex(y.shape):
        source = list(position)
        source[place] = chosen[position]
        assert y[position] == x[tuple(source)]
