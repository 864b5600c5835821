"""Resize by its definition, against results worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from formal_node import formal_node


def resized(
    x: Any,
    *,
    sizes: list[int] | None = None,
    scales: list[float] | None = None,
    roi: list[float] | None = None,
    **attributes: Any,
) -> Any:
    """Return Resize(x) as nested lists; x is float64 unless it is an array."""
    inputs = [
        np.asarray(x, None if isinstance(x, np.ndarray) else "float64"),
        None if roi is None else np.array(roi, "float32"),
        None if scales is None else np.array(scales, "float32"),
        None if sizes is None else np.array(sizes),
    ]
    (y,) = formal_node("Resize", inputs, attributes, constant={1, 2, 3})
    return y.tolist()


@pytest.mark.parametrize(("exclude_outside", "wanted"), [(0, 0.89453125), (1, 19 / 22)])
def test_cubic_borders_repeat_the_last_cell_or_leave_it_out(
    exclude_outside: int, wanted: float
) -> None:
    # The first output lies at -1/4. Keys' weights with a = -3/4 at the distances 7/4, 3/4, 1/4
    # and 5/4 are -9/256, 67/256, 225/256 and -27/256.
    y = resized([1, 2, 4, 8], sizes=[8], mode="cubic", exclude_outside=exclude_outside)

    assert y[0] == pytest.approx(wanted, rel=1e-15)


def test_cubic_coefficient_shapes_the_curve() -> None:
    # At 3/4, with a = -1/2: weights -3/128, 29/128, 111/128 and -9/128 of cells -1, 0, 1 and 2.
    y = resized([0, 128, 0, 0], sizes=[8], mode="cubic", cubic_coeff_a=-0.5)

    assert y[2] == pytest.approx(111, rel=1e-15)


@pytest.mark.parametrize(("exclude_outside", "wanted"), [(0, [5, 19]), (1, [40 / 7, 128 / 7])])
def test_antialiasing_stretches_the_filter(exclude_outside: int, wanted: list[float]) -> None:
    # At 1/2 the weights of cells -1 to 2 are 1/8, 3/8, 3/8 and 1/8.
    y = resized(
        [0, 8, 16, 24], sizes=[2], mode="linear", antialias=1, exclude_outside=exclude_outside
    )

    assert y == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize(
    ("nearest_mode", "wanted"),
    [
        ("floor", [10, 10, 20, 20]),
        ("ceil", [10, 20, 20, 20]),
        ("round_prefer_floor", [10, 10, 20, 20]),
        ("round_prefer_ceil", [10, 20, 20, 20]),
    ],
)
def test_nearest_rounds_halves_as_told(nearest_mode: str, wanted: list[float]) -> None:
    y = resized(
        [10, 20],
        scales=[2],
        nearest_mode=nearest_mode,
        coordinate_transformation_mode="asymmetric",
    )

    assert y == wanted


@pytest.mark.parametrize(
    ("transformation", "x", "to", "wanted"),
    [
        ("half_pixel", [5, 7, 9], {"sizes": [1]}, [7]),
        ("pytorch_half_pixel", [5, 7, 9], {"sizes": [1]}, [5]),
        ("align_corners", [1, 2, 3], {"sizes": [5]}, [1, 1.5, 2, 2.5, 3]),
        ("align_corners", [1, 2, 3, 4], {"scales": [0.625]}, [1, 3]),
        ("asymmetric", [1, 2], {"sizes": [4]}, [1, 1.5, 2, 2]),
        ("half_pixel_symmetric", [0, 3, 6], {"scales": [1.5]}, [0, 2, 4, 6]),
    ],
)
def test_each_transformation_has_its_own_places(
    transformation: str, x: list[float], to: Any, wanted: list[float]
) -> None:
    y = resized(x, mode="linear", coordinate_transformation_mode=transformation, **to)

    assert y == pytest.approx(wanted, rel=1e-15)


def test_what_a_region_shows_outside_is_the_extrapolation_value() -> None:
    y = resized(
        [[0, 10, 20, 30]],
        sizes=[3],
        roi=[0.5, 1.25],
        axes=[1],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=-7.0,
    )

    assert y == [[15, 26.25, -7]]


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("not_larger", [[0, 0, 1, 2, 2, 3], [0, 0, 1, 2, 2, 3], [4, 4, 5, 6, 6, 7]]),
        ("not_smaller", [[0, 0, 1, 1, 2, 2, 3, 3]] * 2 + [[4, 4, 5, 5, 6, 6, 7, 7]] * 2),
    ],
)
def test_a_policy_keeps_the_proportions(policy: str, wanted: list[list[float]]) -> None:
    y = resized([[0, 1, 2, 3], [4, 5, 6, 7]], sizes=[4, 6], keep_aspect_ratio_policy=policy)

    assert y == wanted


def test_a_scale_that_makes_a_whole_length_stands_for_that_ratio() -> None:
    # 10/6 in float32 is a little less, so that place 3 would be a little more, rounded up to 4.
    y = resized(
        [0, 1, 2, 3, 4, 5],
        scales=[10 / 6],
        nearest_mode="ceil",
        coordinate_transformation_mode="asymmetric",
    )

    assert y == [0, 1, 2, 2, 3, 3, 4, 5, 5, 5]


def test_integers_are_rounded_and_stay_in_range() -> None:
    x = np.array([0, 255, 255, 0], "uint8")

    y = resized(x, sizes=[8], mode="cubic")

    # The curve starts at -27/256 · 255, and reaches (225 + 67)/256 · 255 in the middle.
    assert y[0] == 0
    assert y[3:5] == [255, 255]
    assert resized(np.array([0, 1], "int32"), sizes=[4], mode="linear") == [0, 0, 1, 1]


def test_a_cell_without_weight_is_not_read() -> None:
    y = resized([1, np.nan, 3, np.inf], sizes=[4], mode="linear")

    np.testing.assert_array_equal(y, [1, np.nan, 3, np.inf])


def test_boolean_cells_are_copied() -> None:
    assert resized(np.array([True, False]), sizes=[4]) == [True, True, False, False]
