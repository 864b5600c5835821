"""Convolution and pooling by their definitions, against results worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from formal_node import formal_node
from plait.devices.errors import KernelError


def line(*values: float, dtype: str = "float64") -> Any:
    """Return one channel of one sample."""
    return np.array([[values]], dtype)


def test_conv_reads_each_group_by_its_own_weights() -> None:
    x = np.array([[[1, 2, 3], [10, 20, 30]]], "float64")
    w = np.array([[[1, 10]], [[2, 1]]], "float64")
    b = np.array([100, 200], "float64")

    (y,) = formal_node("Conv", [x, w, b], {"group": 2, "pads": [1, 0]})

    assert y.tolist() == [[[110, 121, 132], [210, 240, 270]]]


def test_conv_sums_over_the_channels_of_a_group() -> None:
    x = np.array([1, 2, 3, 4], "float64").reshape(1, 4, 1)
    w = np.array([[1, 10], [1, 100], [5, 7]] * 2, "float64").reshape(6, 2, 1)

    (y,) = formal_node("Conv", [x, w], {"group": 2})

    assert y[0, :, 0].tolist() == [21, 201, 19, 43, 403, 43]


def test_conv_with_dilations_leaves_cells_out() -> None:
    x = np.arange(16, dtype="float32").reshape(1, 1, 4, 4)
    w = np.eye(2, dtype="float32").reshape(1, 1, 2, 2)

    (y,) = formal_node("Conv", [x, w], {"dilations": [2, 2]})

    assert y[0, 0].tolist() == [[10, 12], [18, 20]]


@pytest.mark.parametrize(
    ("auto_pad", "wanted"),
    [("SAME_UPPER", [21, 43, 5]), ("SAME_LOWER", [10, 32, 54]), ("VALID", [21, 43])],
)
def test_auto_pad_puts_the_odd_cell_to_one_side(auto_pad: str, wanted: list[float]) -> None:
    attributes = {"auto_pad": auto_pad, "strides": [2]}

    (y,) = formal_node("Conv", [line(1, 2, 3, 4, 5), line(1, 10)], attributes)

    assert y[0, 0].tolist() == wanted


@pytest.mark.parametrize(
    ("attributes", "wanted"),
    [
        ({}, [1, 10, 102, 20, 200]),
        ({"pads": [1, 0]}, [10, 102, 20, 200]),
        ({"pads": [1, 0], "output_padding": [1]}, [10, 102, 20, 200, 0]),
        ({"output_shape": [4]}, [10, 102, 20, 200]),
        ({"output_shape": [4], "auto_pad": "SAME_UPPER"}, [1, 10, 102, 20]),
        ({"output_shape": [6]}, [1, 10, 102, 20, 200, 0]),
        ({"auto_pad": "SAME_LOWER"}, [10, 102, 20, 200]),
    ],
)
def test_conv_transpose_adds_a_window_per_cell_and_crops(
    attributes: dict[str, Any], wanted: list[float]
) -> None:
    (y,) = formal_node(
        "ConvTranspose", [line(1, 2), line(1, 10, 100)], {"strides": [2], **attributes}
    )

    assert y[0, 0].tolist() == wanted


def test_conv_transpose_spreads_each_group_over_its_own_features() -> None:
    x = np.array([[[1, 2], [3, 4]]], "float64")
    w = np.array([[[1], [10]], [[5], [7]]], "float64")
    b = np.array([0, 0, 0, 1], "float64")

    (y,) = formal_node("ConvTranspose", [x, w, b], {"group": 2})

    assert y[0].tolist() == [[1, 2], [10, 20], [15, 20], [22, 29]]


def test_conv_transpose_with_dilations_leaves_gaps() -> None:
    (y,) = formal_node("ConvTranspose", [line(1, 2), line(1, 10)], {"dilations": [3]})

    assert y[0, 0].tolist() == [1, 2, 0, 10, 20]


@pytest.mark.parametrize(("count_include_pad", "wanted"), [(1, [2, 6, 4]), (0, [3, 6, 8])])
def test_cells_beyond_the_padding_never_count(count_include_pad: int, wanted: list[float]) -> None:
    attributes = {
        "kernel_shape": [3],
        "strides": [2],
        "pads": [1, 1],
        "ceil_mode": 1,
        "count_include_pad": count_include_pad,
    }

    (y,) = formal_node("AveragePool", [line(2, 4, 6, 8)], attributes)

    assert y[0, 0].tolist() == wanted


def test_ceil_mode_keeps_the_last_cells() -> None:
    attributes = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}

    (y,) = formal_node("AveragePool", [line(1, 2, 3, 4, 5)], attributes)

    assert y[0, 0].tolist() == [1.5, 3.5, 5]


@pytest.mark.parametrize(
    ("storage_order", "wanted"),
    [(0, [[[1, 1], [7, 7]], [[9, 11], [12, 13]]]), (1, [[[3, 3], [5, 5]], [[9, 15], [10, 13]]])],
)
def test_max_pool_counts_places_by_rows_or_by_columns(storage_order: int, wanted: Any) -> None:
    x = np.array([[[[1, 9, 3], [4, 5, 6], [7, 8, 2]], [[3, 1, 7], [3, 2, 0], [1, 1, 1]]]], "f4")

    y, indices = formal_node(
        "MaxPool", [x], {"kernel_shape": [2, 2], "storage_order": storage_order}, 2
    )

    assert y[0].tolist() == [[[9, 9], [8, 8]], [[3, 7], [3, 2]]]
    assert indices[0].tolist() == wanted


def test_max_pool_of_large_integers_is_exact() -> None:
    x = line(2**62, 2**62 + 1, 2**62 - 1, dtype="int64")

    (y,) = formal_node("MaxPool", [x], {"kernel_shape": [2]})

    assert y[0, 0].tolist() == [2**62 + 1, 2**62 + 1]


@pytest.mark.parametrize(("dtype", "least"), [("float32", -np.inf), ("int8", -128), ("uint8", 0)])
def test_the_greatest_of_padding_is_the_least_number(dtype: str, least: float) -> None:
    (y,) = formal_node("MaxPool", [line(5, dtype=dtype)], {"kernel_shape": [1], "pads": [1, 1]})

    assert y[0, 0].tolist() == [least, 5, least]


def test_max_pool_with_dilations_and_a_nan() -> None:
    x = line(1, 5, 2, 4, np.nan)

    y, indices = formal_node("MaxPool", [x], {"kernel_shape": [2], "dilations": [2]}, 2)

    np.testing.assert_array_equal(y[0, 0], [2, 5, np.nan])
    assert indices[0, 0].tolist() == [2, 1, 4]


@pytest.mark.parametrize(("p", "wanted"), [(1, [7, 4]), (2, [5, 4])])
def test_lp_pool_takes_norms(p: int, wanted: list[float]) -> None:
    (y,) = formal_node("LpPool", [line(3, -4, 0)], {"kernel_shape": [2], "p": p})

    np.testing.assert_allclose(y[0, 0], wanted, 1e-15)


@pytest.mark.parametrize(
    ("op", "attributes", "wanted"),
    [
        ("GlobalAveragePool", {}, [3, -1]),
        ("GlobalMaxPool", {}, [8, 1]),
        ("GlobalLpPool", {"p": 1}, [12, 6]),
        ("GlobalLpPool", {"p": 2}, [80**0.5, 14**0.5]),
    ],
)
def test_global_pooling_makes_one_cell_of_a_plane(
    op: str, attributes: dict[str, int], wanted: list[float]
) -> None:
    x = np.array([[[[0, 4], [0, 8]], [[-3, -2], [1, 0]]]], "float64")

    (y,) = formal_node(op, [x], attributes)

    assert y.shape == (1, 2, 1, 1)
    np.testing.assert_allclose(y[0, :, 0, 0], wanted, 1e-15)


def test_max_unpool_counts_in_the_tensor_that_was_pooled() -> None:
    x = np.array([[[[5, 6], [7, 8]]]], "float32")
    indices, shape = np.array([[[[0, 6], [8, 15]]]]), np.array([1, 1, 4, 5])
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}

    (y,) = formal_node("MaxUnpool", [x, indices, shape], attributes, constant={2})

    wanted = [[5, 0, 0, 0, 0], [0, 0, 6, 0, 0], [7, 0, 0, 0, 0], [0, 0, 0, 8, 0]]
    assert y[0, 0].tolist() == wanted


@pytest.mark.parametrize("index", [-1, 4])
def test_max_unpool_refuses_a_place_outside(index: int) -> None:
    inputs = [line(1, 2), np.array([[[0, index]]])]

    with pytest.raises(KernelError, match=f"element {index} is outside"):
        formal_node("MaxUnpool", inputs, {"kernel_shape": [2], "strides": [2]})
