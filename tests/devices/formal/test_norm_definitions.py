"""Normalizations and softmax by definition, against results worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from formal_node import formal_node

NAN, INF = math.nan, math.inf


def array(*values: Any) -> Any:
    return np.array(values, "float64")


def test_softmax_along_an_axis() -> None:
    x = np.log(array([1, 1], [3, 1]))

    (y,) = formal_node("Softmax", [x], {"axis": 0})

    np.testing.assert_allclose(y, [[0.25, 0.5], [0.75, 0.5]], 1e-15)


@pytest.mark.parametrize(
    ("x", "wanted"),
    [
        ([1000, 1000], [0.5, 0.5]),
        ([-INF, 7], [0, 1]),
        ([-INF, -INF], [NAN, NAN]),
        ([1, NAN], [NAN, NAN]),
        ([NAN, 1], [NAN, NAN]),
        ([INF, 1], [NAN, NAN]),
    ],
)
def test_softmax_of_extremes(x: list[float], wanted: list[float]) -> None:
    np.testing.assert_array_equal(formal_node("Softmax", [array(*x)])[0], wanted)


def test_log_softmax_of_extremes() -> None:
    (y,) = formal_node("LogSoftmax", [array([1000, 0], [7, -INF])])

    assert y.tolist() == [[0, -1000], [0, -INF]]


def test_hardmax_picks_the_first_of_the_greatest() -> None:
    (y,) = formal_node("Hardmax", [array([1, 3, 3], [NAN, 9, NAN], [-INF, -INF, -INF])])

    assert y.tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize(("p", "wanted"), [(1, [3 / 7, -4 / 7]), (2, [0.6, -0.8])])
def test_lp_normalization_divides_by_the_norm_but_zeros_by_one(p: int, wanted: list[float]) -> None:
    (y,) = formal_node("LpNormalization", [array([3, 0], [-4, 0])], {"axis": 0, "p": p})

    np.testing.assert_allclose(y.T, array(wanted, [0, 0]), 1e-15)


def test_batch_normalization_uses_the_statistics_given() -> None:
    x, statistics = array([[1, 2], [3, 4]]), [array(10, 100), array(5, 6), array(1, 2), array(3, 8)]

    (y,) = formal_node("BatchNormalization", [x, *statistics], {"epsilon": 1.0})

    np.testing.assert_allclose(y[0], array([5, 10], [6 + 100 / 3, 6 + 200 / 3]), 1e-15)


def test_training_moves_the_running_statistics() -> None:
    inputs = [array([1], [5]), array(2), array(10), array(10), array(2)]
    attributes = {"training_mode": 1, "epsilon": 0.0, "momentum": 0.75}

    y, mean, variance = formal_node("BatchNormalization", inputs, attributes, 3)

    assert y.tolist() == [[8], [12]]
    assert (mean.tolist(), variance.tolist()) == ([8.25], [2.5])


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("InstanceNormalization", {}), ("GroupNormalization", {"num_groups": 2})],
)
def test_each_plane_has_statistics_of_its_own(op: str, attributes: dict[str, int]) -> None:
    x = array([[1, 3], [10, 30]], [[7, 5], [0, -2]])

    (y,) = formal_node(op, [x, array(1, 3), array(10, 20)], {"epsilon": 0.0, **attributes})

    assert y.tolist() == [[[9, 11], [17, 23]], [[11, 9], [23, 17]]]


def test_neighbouring_channels_form_a_group() -> None:
    inputs = [array([[1], [3], [10], [30]]), array(1, 2, 3, 4), array(10, 10, 10, 10)]

    (y,) = formal_node("GroupNormalization", inputs, {"epsilon": 0.0, "num_groups": 2})

    assert y[0, :, 0].tolist() == [9, 12, 7, 14]


def test_layer_normalization_tells_what_it_measured() -> None:
    x, scale, bias = array([[1, 3], [5, 7]]), array([1], [10]), array(0, 100)

    y, mean, inverse = formal_node(
        "LayerNormalization", [x, scale, bias], {"axis": 1, "epsilon": 20.0}, 3
    )

    # Mean 4, variance (9 + 1 + 1 + 9)/4 = 5, deviation √(5 + 20).
    np.testing.assert_allclose(y[0], array([-0.6, 99.8], [2, 106]), 1e-15)
    assert mean.dtype == np.float32
    assert mean.tolist() == [[[4]]]
    np.testing.assert_allclose(inverse, [[[0.2]]], 1e-7)


def test_rms_normalization_does_not_centre() -> None:
    inputs = [array([3, 4], [0, 5]), array(10, 100)]

    (y,) = formal_node("RMSNormalization", inputs, {"epsilon": 12.5})

    np.testing.assert_allclose(y, [[6, 80], [0, 100]], 1e-15)


def test_mean_variance_normalization_measures_over_its_axes() -> None:
    x = array([[1, 10], [3, 30]])

    (y,) = formal_node("MeanVarianceNormalization", [x], {"axes": [0, 1]})

    np.testing.assert_allclose(y, [[[-1, -1], [1, 1]]], 1e-8)
    assert abs(y[0, 0, 0]) < 1  # the deviation is taken to be 1e-9 larger


@pytest.mark.parametrize(
    ("size", "wanted"),
    [(1, [1 / 2, 2 / 5, 3 / 10]), (2, [1 / 6, 2 / 14, 3 / 10]), (3, [1 / 6, 2 / 15, 3 / 14])],
)
def test_lrn_counts_more_channels_behind_than_before(size: int, wanted: list[float]) -> None:
    x = array([[1], [2], [3]])

    (y,) = formal_node("LRN", [x], {"size": size, "alpha": float(size), "beta": 1.0})

    np.testing.assert_allclose(y[0, :, 0], wanted, 1e-15)


def test_lrn_raises_to_beta() -> None:
    attributes = {"size": 1, "alpha": 3.0, "beta": 0.5, "bias": 4.0}

    (y,) = formal_node("LRN", [array([[2]])], attributes)

    assert y.item() == 0.5
