"""Reading and writing where indices say, by definition, against results worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from formal_node import formal_node
from plait.devices.errors import KernelError

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("reduction", "updates", "wanted"),
    [
        ("none", [10, 20, 30], [1, 20, 30]),
        ("add", [10, 20, 30], [1, 32, 33]),
        ("mul", [10, 20, 30], [1, 400, 90]),
        ("max", [10, -20, 2], [1, 10, 3]),
        ("min", [10, -20, 2], [1, -20, 2]),
        ("max", [NAN, 20, 30], [1, NAN, 30]),
        ("min", [NAN, -20, INF], [1, NAN, 3]),
    ],
)
@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_updates_of_one_place_are_combined_in_their_order(
    op: str, reduction: str, updates: list[float], wanted: list[float]
) -> None:
    places = np.array([1, 1, -1])
    inputs = [
        np.array([1, 2, 3], "float64"),
        places if op == "ScatterElements" else places.reshape(3, 1),
        np.array(updates, "float64"),
    ]

    (y,) = formal_node(op, inputs, {"reduction": reduction})

    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(
    ("dtype", "reduction", "old", "new", "wanted"),
    [
        ("uint8", "add", 200, 100, 300 - 256),
        ("int8", "mul", 100, -14, -1400 + 5 * 256),
        ("bool", "add", True, True, True),
        ("bool", "mul", True, False, False),
    ],
)
def test_combined_integers_wrap_around(
    dtype: str, reduction: str, old: int, new: int, wanted: int
) -> None:
    inputs = [np.array([old], dtype), np.array([0]), np.array([new], dtype)]

    (y,) = formal_node("ScatterElements", inputs, {"reduction": reduction})

    assert y.tolist() == [wanted]


def test_scatter_elements_writes_along_its_axis_only() -> None:
    inputs = [np.zeros((2, 3)), np.array([[2], [0]]), np.array([[5.0], [6.0]])]

    (y,) = formal_node("ScatterElements", inputs, {"axis": 1})

    assert y.tolist() == [[0, 0, 5], [6, 0, 0]]


def test_scatter_nd_adds_slices() -> None:
    inputs = [np.zeros((2, 2)), np.array([[1], [-1]]), np.array([[1.0, 2.0], [3.0, 4.0]])]

    (y,) = formal_node("ScatterND", inputs, {"reduction": "add"})

    assert y.tolist() == [[0, 0], [4, 6]]


@pytest.mark.parametrize(
    ("indices", "batch_dims", "wanted"),
    [
        ([[1], [0]], 1, [2, 3]),
        ([[1], [0]], 0, [[3, 4], [1, 2]]),
        ([[1, -2]], 0, [3]),
    ],
)
def test_gather_nd_reads_what_rows_name(
    indices: list[list[int]], batch_dims: int, wanted: Any
) -> None:
    data = np.array([[1, 2], [3, 4]], "float32")

    (y,) = formal_node("GatherND", [data, np.array(indices)], {"batch_dims": batch_dims})

    assert y.tolist() == wanted


def test_gather_puts_the_axes_of_the_indices_in_place_of_its_own() -> None:
    data = np.array([[1, 2, 3], [4, 5, 6]], "int16")

    (y,) = formal_node("Gather", [data, np.array([[2, -3], [0, 1]])], {"axis": 1})

    assert y.tolist() == [[[3, 1], [1, 2]], [[6, 4], [4, 5]]]


def test_gather_elements_reads_each_line_by_its_own_indices() -> None:
    data = np.array([[1, 2, 3], [4, 5, 6]], "int16")

    (y,) = formal_node("GatherElements", [data, np.array([[1, 0], [0, -1]])], {"axis": 0})

    assert y.tolist() == [[4, 2], [1, 5]]


@pytest.mark.parametrize("index", [-3, 2])
@pytest.mark.parametrize("op", ["Gather", "GatherElements", "ScatterElements"])
def test_an_index_outside_is_refused(op: str, index: int) -> None:
    inputs = [np.ones(2), np.array([index])]

    with pytest.raises(KernelError, match=f"index {index} is"):
        formal_node(op, [*inputs, np.ones(1)] if op == "ScatterElements" else inputs)


@pytest.mark.parametrize(
    ("mode", "start", "wanted"), [("circular", 5, [9, 2, 8]), ("linear", 1, [1, 8, 9])]
)
def test_tensor_scatter_writes_from_an_index_on(mode: str, start: int, wanted: list[float]) -> None:
    cache = np.array([[[1], [2], [3]]] * 2, "float32")
    update = np.array([[[8], [9]], [[6], [7]]], "float32")

    inputs = [cache, update, np.array([start, 0])]
    (y,) = formal_node("TensorScatter", inputs, {"mode": mode})

    assert y[..., 0].tolist() == [wanted, [6, 7, 3]]


@pytest.mark.parametrize("start", [-1, 2])
def test_tensor_scatter_does_not_write_outside(start: int) -> None:
    inputs = [np.zeros((1, 3, 1)), np.ones((1, 2, 1)), np.array([start])]

    with pytest.raises(KernelError, match="outside a cache of 3"):
        formal_node("TensorScatter", inputs)


def test_one_hot_counts_negative_indices_from_the_depth() -> None:
    indices, values = np.array([0, -1, 3, -4, 1]), np.array([7, 9], "int8")

    (y,) = formal_node("OneHot", [indices, np.array(3), values], {"axis": 0}, constant={1})

    assert y.tolist() == [[9, 7, 7, 7, 7], [7, 7, 7, 7, 9], [7, 9, 7, 7, 7]]


@pytest.mark.parametrize(
    ("largest", "places"), [(True, [1, 4, 2, 3, 0, 5]), (False, [5, 0, 2, 3, 4, 1])]
)
def test_top_k_puts_nan_above_all_and_the_first_of_equals_first(
    largest: bool, places: list[int]
) -> None:
    x = np.array([[1], [NAN], [3], [3], [INF], [-INF]], "float32")

    values, indices = formal_node(
        "TopK", [x, np.array([6])], {"axis": 0, "largest": largest}, 2, {1}
    )

    assert indices[:, 0].tolist() == places
    np.testing.assert_array_equal(values, x[places])


def test_top_k_of_large_integers_is_exact() -> None:
    x = np.array([2**62, 2**62 + 1, 2**62 - 1])

    values, _ = formal_node("TopK", [x, np.array([2])], {}, 2, {1})

    assert values.tolist() == [2**62 + 1, 2**62]
