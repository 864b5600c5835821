from __future__ import annotations

from typing import Any

import arrays
import numpy as np
import pytest
from arrays import EVERY, random_array
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from single_node import onnx_reference, run_node

DTYPES = st.sampled_from(EVERY)


def integers(*values: int) -> arrays.AnyArray:
    return np.array(values, "int64")


@given(
    shape=arrays.shapes(min_rank=1),
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    dtype=DTYPES,
    data=st.data(),
    seed=arrays.SEEDS,
)
@settings(max_examples=60)
def test_concat_joins_along_an_axis(
    shape: tuple[int, ...], lengths: list[int], dtype: str, data: st.DataObject, seed: int
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    place = axis % len(shape)
    inputs = [
        random_array(dtype, (*shape[:place], length, *shape[place + 1 :]), seed + i)
        for i, length in enumerate(lengths)
    ]

    (y,) = run_node("Concat", inputs, {"axis": axis})

    moved = [row for x in inputs for row in np.moveaxis(x, place, 0)]
    assert y.shape[place] == len(moved)
    for got, wanted in zip(np.moveaxis(y, place, 0), moved, strict=True):
        np.testing.assert_array_equal(got, wanted)


@given(shapes=arrays.broadcastable(2), dtype=DTYPES, seed=arrays.SEEDS)
@settings(max_examples=60)
def test_expand_broadcasts_both_ways(shapes: list[tuple[int, ...]], dtype: str, seed: int) -> None:
    x = random_array(dtype, shapes[0], seed)

    (y,) = run_node("Expand", [x, integers(*shapes[1])], constant={1})

    np.testing.assert_array_equal(y, np.broadcast_arrays(x, np.empty(shapes[1]))[0], strict=True)


@given(shape=arrays.shapes(max_rank=5, max_length=4), dtype=DTYPES, data=st.data())
@settings(max_examples=60)
def test_transpose_permutes_axes(shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    x = random_array(dtype, shape, 1)
    perm = data.draw(st.none() | st.permutations(range(len(shape))))

    (y,) = run_node("Transpose", [x], {} if perm is None else {"perm": perm})

    order = range(len(shape))[::-1] if perm is None else perm
    assert y.shape == tuple(shape[axis] for axis in order)
    for place in np.ndindex(y.shape):
        source = [0] * len(shape)
        for axis, index in zip(order, place, strict=True):
            source[axis] = index
        assert y[place] == x[tuple(source)]


@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128"])
@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((300, 70), (1, 0)),
        ((2, 200, 1, 130), (0, 3, 2, 1)),
        ((2, 3, 20, 30), (0, 2, 3, 1)),
        ((2, 20, 30, 3), (0, 3, 1, 2)),
        ((5, 6, 40, 64), (0, 2, 1, 3)),
        ((7, 300, 4), (2, 1, 0)),
    ],
)
def test_transpose_of_large_matrices_is_cut_into_pieces_that_fit(
    shape: tuple[int, ...], perm: tuple[int, ...], dtype: str
) -> None:
    x = random_array(dtype, shape, 1)

    (y,) = run_node("Transpose", [x], {"perm": perm})

    np.testing.assert_array_equal(y, np.einsum(x, range(x.ndim), perm), strict=True)


@given(shape=arrays.shapes(max_rank=3), dtype=DTYPES, data=st.data())
@settings(max_examples=60)
def test_tile_repeats_each_axis(shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    x = random_array(dtype, shape, 1)
    repeats = [data.draw(st.integers(0, 3)) for _ in shape]

    (y,) = run_node("Tile", [x, integers(*repeats)], constant={1})

    np.testing.assert_array_equal(
        y, onnx_reference("Tile", [x, integers(*repeats)])[0], strict=True
    )


MODES = ("constant", "edge", "reflect", "wrap")


@pytest.mark.parametrize("mode", MODES)
@given(
    shape=arrays.shapes(min_rank=1, max_rank=3, max_length=4),
    dtype=DTYPES,
    data=st.data(),
    seed=arrays.SEEDS,
)
@settings(max_examples=40)
def test_pad_makes_borders_of_any_width(
    mode: str, shape: tuple[int, ...], dtype: str, data: st.DataObject, seed: int
) -> None:
    if mode != "constant":
        shape = tuple(max(length, 1) for length in shape)
    x = random_array(dtype, shape, seed)
    pads = [(data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))) for _ in shape]
    flat = integers(*(before for before, _ in pads), *(after for _, after in pads))
    value = random_array(dtype, (), seed + 1) if data.draw(st.booleans()) else None

    (y,) = run_node("Pad", [x, flat, value], {"mode": mode}, constant={1})

    options: dict[str, Any] = {}
    if mode == "constant":
        options["constant_values"] = np.zeros((), dtype) if value is None else value
    np.testing.assert_array_equal(y, np.pad(x, pads, mode, **options), strict=True)  # type: ignore[call-overload]


@pytest.mark.parametrize("mode", MODES)
@given(length=st.integers(1, 6), before=st.integers(-5, 5), after=st.integers(-5, 5))
@settings(max_examples=40)
def test_negative_pads_cut_before_others_grow(
    mode: str, length: int, before: int, after: int
) -> None:
    left = length + min(before, 0) + min(after, 0)
    assume(left > 0)
    x = random_array("float32", (2, length), 1)

    (y,) = run_node(
        "Pad", [x, integers(before, after), None, integers(-1)], {"mode": mode}, 1, {1, 3}
    )

    cut = x[:, max(-before, 0) : length + min(after, 0)]
    wanted = np.pad(cut, [(0, 0), (max(before, 0), max(after, 0))], mode)  # type: ignore[call-overload]
    np.testing.assert_array_equal(y, wanted, strict=True)


def test_pad_of_a_cut_off_axis_is_all_border() -> None:
    (y,) = run_node("Pad", [np.ones(3, "float32"), integers(-5, 4)], constant={1})

    assert y.tolist() == [0, 0]


@given(
    shape=arrays.shapes(min_rank=2, max_rank=4),
    dtype=DTYPES,
    upper=st.booleans(),
    k=st.none() | st.integers(-7, 7),
)
@settings(max_examples=60)
def test_trilu_keeps_one_side_of_a_diagonal(
    shape: tuple[int, ...], dtype: str, upper: bool, k: int | None
) -> None:
    x = random_array(dtype, shape, 1)
    inputs = [x] if k is None else [x, np.array(k, "int64")]

    (y,) = run_node("Trilu", inputs, {"upper": upper})

    rows, columns = np.indices(shape[-2:])
    kept = columns - rows >= (k or 0) if upper else columns - rows <= (k or 0)
    np.testing.assert_array_equal(y, np.where(kept, x, np.zeros((), dtype)), strict=True)
