from __future__ import annotations

from typing import Any

import arrays
import numpy as np
import pytest
from arrays import EVERY, NUMBERS, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.errors import KernelError
from single_node import onnx_reference, run_node

DTYPES = st.sampled_from(EVERY)
LENGTHS = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def random_rows(
    lengths: tuple[int, ...], shape: tuple[int, ...], seed: int, dtype: str = "int64"
) -> arrays.AnyArray:
    """Return rows of indices into axes of these lengths, some of them counted from the end."""
    rng = np.random.default_rng(seed)
    columns = [rng.integers(-length, length, shape) for length in lengths]
    return np.stack(columns, -1).astype(dtype)


def distinct_rows(lengths: tuple[int, ...], count: int, seed: int) -> arrays.AnyArray:
    """Return rows of indices no two of which name the same place."""
    places = np.random.default_rng(seed).permutation(int(np.prod(lengths)))[:count]
    return np.stack(np.unravel_index(places, lengths), -1).astype("int64")


@given(shape=LENGTHS, dtype=DTYPES, data=st.data(), seed=arrays.SEEDS)
@settings(max_examples=60)
def test_gather_nd_takes_what_each_row_of_indices_names(
    shape: tuple[int, ...], dtype: str, data: st.DataObject, seed: int
) -> None:
    batch = data.draw(st.integers(0, len(shape) - 1))
    depth = data.draw(st.integers(1, len(shape) - batch))
    count = data.draw(st.integers(0, 3))
    x = random_array(dtype, shape, seed)
    indices = random_rows(shape[batch : batch + depth], (*shape[:batch], count), seed)

    (y,) = run_node("GatherND", [x, indices], {"batch_dims": batch})

    assert y.shape == (*shape[:batch], count, *shape[batch + depth :])
    for place in np.ndindex(*shape[:batch], count):
        named = (*place[:-1], *indices[place])
        np.testing.assert_array_equal(y[place], x[named])


@pytest.mark.parametrize(("shape", "batch"), [((0,), 0), ((2, 0), 1), ((0, 3), 0)])
def test_a_tensor_without_elements_has_no_place(shape: tuple[int, ...], batch: int) -> None:
    """A plan for the largest lengths binds it; only to run it is refused."""
    x, indices = np.zeros(shape, np.float32), np.zeros((2, 1), np.int64)
    with pytest.raises(KernelError, match=f"index 0 is outside axis {batch} of length 0"):
        run_node("GatherND", [x, indices], {"batch_dims": batch})


@pytest.mark.parametrize("index", [-4, 3])
@pytest.mark.parametrize("op", ["GatherND", "ScatterND"])
def test_rows_of_indices_outside_a_tensor_are_refused(op: str, index: int) -> None:
    inputs = [random_array("float32", (2, 3), 1), np.array([[0, 0], [1, index]])]
    if op == "ScatterND":
        inputs.append(random_array("float32", (2,), 1))

    with pytest.raises(KernelError, match=str(index)):
        run_node(op, inputs)


@given(shape=LENGTHS, dtype=DTYPES, data=st.data(), seed=arrays.SEEDS)
@settings(max_examples=60)
def test_scatter_nd_writes_where_each_row_of_indices_says(
    shape: tuple[int, ...], dtype: str, data: st.DataObject, seed: int
) -> None:
    depth = data.draw(st.integers(1, len(shape)))
    count = data.draw(st.integers(0, int(np.prod(shape[:depth]))))
    x = random_array(dtype, shape, seed)
    indices = distinct_rows(shape[:depth], count, seed)
    updates = random_array(dtype, (count, *shape[depth:]), seed + 1)

    (y,) = run_node("ScatterND", [x, indices, updates])

    wanted = x.copy()
    for row, update in zip(indices, updates, strict=True):
        wanted[tuple(row)] = update
    np.testing.assert_array_equal(y, wanted, strict=True)


def combined(how: str, old: Any, new: Any) -> Any:
    return {
        "add": lambda: old + new,
        "mul": lambda: old * new,
        "max": lambda: max(old, new),
        "min": lambda: min(old, new),
        "none": lambda: new,
    }[how]()


@pytest.mark.parametrize("how", ["add", "mul", "max", "min"])
@given(shape=LENGTHS, dtype=st.sampled_from(("int32", "float32", "float64")), seed=arrays.SEEDS)
@settings(max_examples=30)
def test_scatter_nd_combines_every_update_of_a_place(
    how: str, shape: tuple[int, ...], dtype: str, seed: int
) -> None:
    x = random_array(dtype, shape, seed)
    indices = random_rows(shape, (7,), seed)
    updates = random_array(dtype, (7,), seed + 1, -3, 3)

    (y,) = run_node("ScatterND", [x, indices, updates], {"reduction": how})

    wanted = x.copy()
    for row, update in zip(indices, updates, strict=True):
        wanted[tuple(row)] = combined(how, wanted[tuple(row)], update)
    np.testing.assert_array_equal(y, wanted, strict=True)


@pytest.mark.parametrize("how", ["none", "add", "mul", "max", "min"])
@given(shape=LENGTHS, data=st.data(), seed=arrays.SEEDS)
@settings(max_examples=30)
def test_scatter_elements_writes_along_an_axis(
    how: str, shape: tuple[int, ...], data: st.DataObject, seed: int
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    place, rng = axis % len(shape), np.random.default_rng(seed)
    part = tuple(data.draw(st.integers(0, length)) for length in shape)
    x = random_array("float32", shape, seed)
    if how == "none":  # which of two updates of one place stays is not said
        along = np.argsort(rng.random(shape), place)[tuple(slice(n) for n in part)]
    else:
        along = rng.integers(-shape[place], shape[place], part)
    updates = random_array("float32", part, seed + 1, -3, 3)

    (y,) = run_node("ScatterElements", [x, along, updates], {"axis": axis, "reduction": how})

    wanted = x.copy()
    for cell in np.ndindex(part):
        target = (*cell[:place], along[cell], *cell[place + 1 :])
        wanted[target] = combined(how, wanted[target], updates[cell])
    np.testing.assert_array_equal(y, wanted, strict=True)


def test_scatter_elements_refuses_an_index_outside_the_axis() -> None:
    x, updates = random_array("float32", (3, 4), 1), random_array("float32", (1, 1), 1)

    with pytest.raises(KernelError, match="4"):
        run_node("ScatterElements", [x, np.array([[4]]), updates], {"axis": 1})


@pytest.mark.parametrize("mode", ["linear", "circular"])
@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple),
    dtype=DTYPES,
    data=st.data(),
    seed=arrays.SEEDS,
)
@settings(max_examples=40)
def test_tensor_scatter_writes_from_each_samples_index_on(
    mode: str, shape: tuple[int, ...], dtype: str, data: st.DataObject, seed: int
) -> None:
    axis = data.draw(st.integers(1, len(shape) - 1))
    length, count = shape[axis], data.draw(st.integers(0, shape[axis]))
    highest = length - count if mode == "linear" else 2 * length
    starts = np.random.default_rng(seed).integers(0, highest, shape[0], endpoint=True)
    given_starts = starts if data.draw(st.booleans()) else None
    cache = random_array(dtype, shape, seed)
    update = random_array(dtype, (*shape[:axis], count, *shape[axis + 1 :]), seed + 1)

    (y,) = run_node("TensorScatter", [cache, update, given_starts], {"axis": axis, "mode": mode})

    wanted = cache.copy()
    for cell in np.ndindex(update.shape):
        start = 0 if given_starts is None else given_starts[cell[0]]
        wanted[(*cell[:axis], (start + cell[axis]) % length, *cell[axis + 1 :])] = update[cell]
    np.testing.assert_array_equal(y, wanted, strict=True)


@pytest.mark.parametrize("start", [-1, 4])
def test_tensor_scatter_refuses_to_write_outside_the_cache(start: int) -> None:
    cache, update = random_array("float32", (1, 5, 2), 1), random_array("float32", (1, 2, 2), 2)

    with pytest.raises(KernelError, match=str(start) if start < 0 else "5"):
        run_node("TensorScatter", [cache, update, np.array([start])])


@given(
    shape=arrays.shapes(max_rank=3),
    depth=st.integers(0, 5),
    indexed=st.sampled_from(NUMBERS),
    dtype=DTYPES,
    data=st.data(),
    seed=arrays.SEEDS,
)
@settings(max_examples=60)
def test_one_hot_marks_the_place_of_each_index(
    shape: tuple[int, ...], depth: int, indexed: str, dtype: str, data: st.DataObject, seed: int
) -> None:
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    indices = random_array(indexed, shape, seed, -7, 7)
    values = random_array(dtype, (2,), seed + 1)

    inputs = [indices, np.array(depth), values]
    (y,) = run_node("OneHot", inputs, {"axis": axis}, constant={1})

    last = np.moveaxis(y, axis, -1)
    assert last.shape == (*shape, depth)
    for cell in np.ndindex(shape):
        index = int(indices[cell])
        for place in range(depth):
            hot = place in (index, index + depth)
            assert last[(*cell, place)] == values[int(hot)]


@given(
    shape=arrays.shapes(min_rank=1, max_rank=3),
    dtype=st.sampled_from(NUMBERS),
    data=st.data(),
    seed=arrays.SEEDS,
)
@settings(max_examples=80)
def test_top_k_puts_the_lower_index_first_among_equals(
    shape: tuple[int, ...], dtype: str, data: st.DataObject, seed: int
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k, largest = data.draw(st.integers(0, shape[axis])), data.draw(st.booleans())
    x = random_array(dtype, shape, seed, -2, 2)
    if x.dtype.kind == "f":
        x = np.round(x)

    values, indices = run_node(
        "TopK", [x, np.array([k])], {"axis": axis, "largest": largest}, 2, {1}
    )

    lines = np.moveaxis(x, axis, -1)
    found, places = np.moveaxis(values, axis, -1), np.moveaxis(indices, axis, -1)
    assert indices.dtype == np.int64
    for cell in np.ndindex(lines.shape[:-1]):
        line = lines[cell].tolist()
        order = sorted(range(len(line)), key=lambda i: (-line[i] if largest else line[i], i))[:k]
        assert places[cell].tolist() == order
        assert found[cell].tolist() == [line[i] for i in order]


@pytest.mark.parametrize("largest", [False, True])
@given(
    shape=st.sampled_from([(40,), (2, 50), (33, 3), (2, 40, 2)]),
    values=st.sampled_from([5, 10_000_000]),
    k=st.integers(1, 4),
    n_nans=st.integers(0, 2),
    seed=arrays.SEEDS,
)
@settings(max_examples=40)
def test_top_k_finds_few_of_many_in_the_same_order(
    largest: bool,
    shape: tuple[int, ...],
    values: int,
    k: int,
    n_nans: int,
    seed: int,
) -> None:
    axis, rng = max(range(len(shape)), key=lambda i: shape[i]), np.random.default_rng(seed)
    x = rng.integers(0, values, shape).astype("float64")
    x.reshape(-1)[rng.integers(0, x.size, n_nans)] = np.nan

    _, found = run_node("TopK", [x, np.array([k])], {"axis": axis, "largest": largest}, 2, {1})

    ranks = np.where(np.isnan(x), np.inf, x) * (-1 if largest else 1)
    wanted = np.moveaxis(ranks, axis, -1).argsort(-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(np.moveaxis(found, axis, -1), wanted)


def test_top_k_counts_nan_as_largest() -> None:
    x = np.array([1, np.nan, np.inf, -np.inf], "float32")

    _, largest = run_node("TopK", [x, np.array([4])], {}, 2, {1})
    _, smallest = run_node("TopK", [x, np.array([4])], {"largest": False}, 2, {1})

    assert largest.tolist() == [1, 2, 0, 3]
    assert smallest.tolist() == [3, 0, 2, 1]


@pytest.mark.parametrize("largest", [False, True])
def test_top_k_agrees_with_onnx(largest: bool) -> None:
    x = np.random.default_rng(3).permutation(60).reshape(3, 4, 5).astype("float32")

    found = run_node("TopK", [x, np.array([2])], {"axis": 1, "largest": largest}, 2, {1})

    wanted = onnx_reference("TopK", [x, np.array([2])], {"axis": 1, "largest": int(largest)}, 2)
    for y, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(y, expected, strict=True)
