"""Moving, cutting and rearranging elements by definition, against results worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from formal_node import formal_node


def integers(*values: int) -> Any:
    return np.array(values, "int64")


@pytest.mark.parametrize(
    ("mode", "pads", "wanted"),
    [
        ("wrap", (4, 2), [3, 1, 2, 3, 1, 2, 3, 1, 2]),
        ("wrap", (-1, 3), [2, 3, 2, 3, 2]),
        ("reflect", (4, 3), [1, 2, 3, 2, 1, 2, 3, 2, 1, 2]),
        ("reflect", (2, -2), [1, 1, 1]),
        ("edge", (2, 1), [1, 1, 1, 2, 3, 3]),
        ("edge", (-2, 2), [3, 3, 3]),
        ("constant", (1, 2), [9, 1, 2, 3, 9, 9]),
        ("constant", (-1, -1), [2]),
        ("constant", (-4, 3), [9, 9]),
    ],
)
def test_pad_cuts_then_continues(mode: str, pads: tuple[int, int], wanted: list[int]) -> None:
    inputs = [np.array([1, 2, 3], "int32"), integers(*pads), np.array(9, "int32")]

    (y,) = formal_node("Pad", inputs, {"mode": mode}, constant={1})

    assert y.tolist() == wanted


def test_pad_leaves_axes_alone_that_are_not_named() -> None:
    x = np.array([[1, 2], [3, 4]], "float32")

    (y,) = formal_node("Pad", [x, integers(0, 1), None, integers(-1)], constant={1, 3})

    assert y.tolist() == [[1, 2, 0], [3, 4, 0]]


@pytest.mark.parametrize(
    ("start", "end", "step", "wanted"),
    [
        (-1, -100, -2, [5, 3, 1]),
        (100, 0, -3, [5, 2]),
        (-100, -200, -1, [0]),
        (4, 1, -1, [4, 3, 2]),
        (1, -1, 2, [1, 3]),
        (-2, 100, 1, [4, 5]),
        (3, 3, 1, []),
        (2, 4, -1, []),
    ],
)
def test_slice_clamps_both_ends(start: int, end: int, step: int, wanted: list[int]) -> None:
    x = np.arange(6, dtype="int8")
    inputs = [x, *(integers(value) for value in (start, end, 0, step))]

    (y,) = formal_node("Slice", inputs, constant={1, 2, 3, 4})

    assert y.tolist() == wanted


def test_slice_cuts_the_axes_that_are_named() -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], "int8")
    inputs = [x, integers(1, 1), integers(0, 2), integers(1, -2), integers(-1, 1)]

    (y,) = formal_node("Slice", inputs, constant={1, 2, 3, 4})

    assert y.tolist() == [[5]]


def test_split_makes_the_last_part_smaller() -> None:
    parts = formal_node("Split", [np.arange(7, dtype="int8")], {"num_outputs": 3}, 3)

    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]


def test_split_takes_the_sizes_given() -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], "int8")

    parts = formal_node("Split", [x, integers(0, 2, 1)], {"axis": -1}, 3, {1})

    assert [part.tolist() for part in parts] == [[[], []], [[1, 2], [4, 5]], [[3], [6]]]


def test_concat_goes_on_where_the_part_before_ends() -> None:
    parts = [np.array(part, "int8") for part in ([[1], [2]], [[3, 4], [5, 6]])]

    (y,) = formal_node("Concat", parts, {"axis": -1})

    assert y.tolist() == [[1, 3, 4], [2, 5, 6]]


def test_expand_repeats_both_ways() -> None:
    x = np.array([[1], [2]], "int8")

    (y,) = formal_node("Expand", [x, integers(2, 1, 3)], constant={1})

    assert y.tolist() == [[[1, 1, 1], [2, 2, 2]]] * 2


def test_transpose_moves_each_axis_to_where_perm_names_it() -> None:
    x = np.arange(6, dtype="int8").reshape(1, 2, 3)

    (y,) = formal_node("Transpose", [x], {"perm": [2, 0, 1]})

    assert y.tolist() == [[[0, 3]], [[1, 4]], [[2, 5]]]


def test_tile_repeats_the_whole() -> None:
    (y,) = formal_node("Tile", [np.array([[1, 2]], "int8"), integers(2, 2)], constant={1})

    assert y.tolist() == [[1, 2, 1, 2]] * 2


@pytest.mark.parametrize(
    ("upper", "k", "wanted"),
    [
        (True, 0, [[1, 2, 3], [0, 5, 6]]),
        (True, 1, [[0, 2, 3], [0, 0, 6]]),
        (False, -1, [[0, 0, 0], [4, 0, 0]]),
        (False, 1, [[1, 2, 0], [4, 5, 6]]),
    ],
)
def test_trilu_keeps_one_side_of_a_diagonal(upper: bool, k: int, wanted: Any) -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], "int8")

    (y,) = formal_node("Trilu", [x, np.array(k)], {"upper": upper}, constant={1})

    assert y.tolist() == wanted


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("DCR", [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]),
        ("CRD", [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
    ],
)
def test_blocks_become_channels_and_back(mode: str, wanted: Any) -> None:
    x = np.arange(8, dtype="int8").reshape(1, 8, 1, 1)
    attributes = {"blocksize": 2, "mode": mode}

    (y,) = formal_node("DepthToSpace", [x], attributes)
    (back,) = formal_node("SpaceToDepth", [np.array([wanted], "int8")], attributes)

    assert y[0].tolist() == wanted
    np.testing.assert_array_equal(back, x)


def test_eye_like_marks_a_diagonal() -> None:
    (y,) = formal_node("EyeLike", [np.zeros((2, 3))], {"k": 1, "dtype": "int8"})

    assert y.dtype == np.int8
    assert y.tolist() == [[0, 1, 0], [0, 0, 1]]


def test_reverse_sequence_turns_the_start_of_each_sequence() -> None:
    x = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]], "int8")
    attributes = {"batch_axis": 0, "time_axis": 1}

    (y,) = formal_node("ReverseSequence", [x, integers(3, 4, 1)], attributes)

    assert y.tolist() == [[3, 2, 1, 4], [8, 7, 6, 5], [1, 2, 3, 4]]


def test_range_rounds_each_element_once() -> None:
    inputs = [np.array(value, "float16") for value in (2048, 2052, 0.5)]

    (y,) = formal_node("Range", inputs, constant={0, 1, 2})

    # From 2048 on, float16 holds even numbers only; halves go to multiples of four.
    assert y.tolist() == [2048, 2048, 2048, 2050, 2050, 2050, 2052, 2052]


def test_constant_of_shape_keeps_large_integers() -> None:
    attributes = {"value": 2**63 - 1, "dtype": "int64"}

    (y,) = formal_node("ConstantOfShape", [integers(1, 2)], attributes, constant={0})

    assert y.tolist() == [[2**63 - 1] * 2]


@pytest.mark.parametrize(
    ("shape", "allowzero", "wanted"),
    [((0, -1), 0, (2, 12)), ((-1, 0, 2), 0, (4, 3, 2)), ((4, 6), 1, (4, 6))],
)
def test_reshape_keeps_a_length_for_zero(
    shape: tuple[int, ...], allowzero: int, wanted: tuple[int, ...]
) -> None:
    x = np.arange(24, dtype="int8").reshape(2, 3, 4)

    (y,) = formal_node("Reshape", [x, integers(*shape)], {"allowzero": allowzero}, constant={1})

    assert y.shape == wanted
    assert y.reshape(-1).tolist() == list(range(24))


@pytest.mark.parametrize(
    ("shape", "target", "wanted"),
    [((2, 0), (0, 3), (0, 3)), ((0, 4, 6), (0, -1, 3), (0, 8, 3)), ((0, 4), (-1, 2), (0, 2))],
)
def test_zero_stands_for_itself_with_allowzero(
    shape: tuple[int, ...], target: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    inputs = [np.zeros(shape), integers(*target)]

    (y,) = formal_node("Reshape", inputs, {"allowzero": 1}, constant={1})

    assert y.shape == wanted


@pytest.mark.parametrize(("start", "end", "wanted"), [(0, None, [2, 3, 4]), (-2, -1, [3])])
def test_shape_tells_some_lengths(start: int, end: int | None, wanted: list[int]) -> None:
    attributes = {"start": start} if end is None else {"start": start, "end": end}

    (y,) = formal_node("Shape", [np.zeros((2, 3, 4))], attributes)

    assert y.tolist() == wanted


def test_size_counts_elements() -> None:
    assert formal_node("Size", [np.zeros((2, 3, 4))])[0].tolist() == 24


@pytest.mark.parametrize(("axis", "wanted"), [(0, (1, 24)), (-1, (6, 4)), (3, (24, 1))])
def test_flatten_parts_the_axes(axis: int, wanted: tuple[int, int]) -> None:
    x = np.arange(24, dtype="int8").reshape(2, 3, 4)

    (y,) = formal_node("Flatten", [x], {"axis": axis})

    assert y.shape == wanted
    assert y.reshape(-1).tolist() == list(range(24))


def test_squeeze_and_unsqueeze_count_axes_from_both_ends() -> None:
    (y,) = formal_node("Squeeze", [np.zeros((1, 2, 1)), integers(-1)], constant={1})
    (z,) = formal_node("Squeeze", [np.zeros((1, 2, 1))])
    (w,) = formal_node("Unsqueeze", [np.zeros((2, 3)), integers(-1, 1)], constant={1})

    assert (y.shape, z.shape, w.shape) == ((1, 2), (2,), (2, 1, 3, 1))
