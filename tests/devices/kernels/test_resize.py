from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from arrays import FLOATS, SEEDS, AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_node import runtime_node
from single_node import onnx_reference, run_node

FEW = settings(max_examples=60)
TOLERANCE = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-12}
TRANSFORMATIONS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
CONSTANT = (1, 2, 3)


class Case(NamedTuple):
    """Inputs and attributes of a Resize."""

    x: AnyArray
    roi: AnyArray | None
    scales: AnyArray | None
    sizes: AnyArray | None
    attributes: dict[str, Any]

    def run(self) -> AnyArray:
        inputs = [self.x, self.roi, self.scales, self.sizes]
        return run_node("Resize", inputs, self.attributes, constant=CONSTANT)[0]


@st.composite
def resizes(draw: st.DrawFn, mode: str, dtypes: tuple[str, ...] = FLOATS) -> Case:
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    attributes: dict[str, Any] = {"mode": mode}
    axes = list(range(len(shape)))
    if draw(st.booleans()):
        axes = draw(st.lists(st.sampled_from(axes), min_size=1, unique=True))
        attributes["axes"] = axes
    transformation = draw(st.sampled_from(TRANSFORMATIONS))
    attributes["coordinate_transformation_mode"] = transformation
    attributes["extrapolation_value"] = 11.0
    attributes["exclude_outside"] = draw(st.integers(0, 1))
    if mode == "nearest":
        roundings = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        attributes["nearest_mode"] = draw(st.sampled_from(roundings))
    else:
        attributes["antialias"] = draw(st.integers(0, 1))
        attributes["cubic_coeff_a"] = draw(st.sampled_from((-0.75, -0.5)))
    roi = scales = sizes = None
    if transformation == "tf_crop_and_resize":
        starts = [draw(st.sampled_from((0, 0.25, -0.5))) for _ in axes]
        roi = np.array([*starts, *(draw(st.sampled_from((1, 0.5, 1.25))) for _ in axes)], "f4")
    if draw(st.booleans()):
        choices = (0.3, 0.5, 0.6, 1, 1.5, 5 / 3, 2, 2.6, 3)
        scales = np.array([draw(st.sampled_from(choices)) for _ in axes], np.float32)
    else:
        sizes = np.array([draw(st.integers(1, 9)) for _ in axes])
        policies = ("stretch", "not_larger", "not_smaller")
        attributes["keep_aspect_ratio_policy"] = draw(st.sampled_from(policies))
    x = random_array(draw(st.sampled_from(dtypes)), shape, draw(SEEDS), 0, 100)
    return Case(x, roi, scales, sizes, attributes)


def widths(case: Case) -> dict[int, tuple[int, Fraction]]:
    """Return for each axis that is named its new length, whole and before rounding."""
    shape = case.x.shape
    axes = case.attributes.get("axes", range(len(shape)))
    if case.scales is not None:
        exact = {}
        for axis, scale in zip(axes, case.scales, strict=True):
            product = np.float32(shape[axis]) * scale
            whole = product == np.floor(product)
            width = Fraction(float(product)) if whole else shape[axis] * Fraction(float(scale))
            exact[axis] = (math.floor(product), width)
        return exact
    assert case.sizes is not None
    sizes = [int(size) for size in case.sizes]
    policy = case.attributes["keep_aspect_ratio_policy"]
    if policy == "stretch":
        return {axis: (size, Fraction(size)) for axis, size in zip(axes, sizes, strict=True)}
    ratios = [Fraction(size, shape[axis]) for axis, size in zip(axes, sizes, strict=True)]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    half = Fraction(1, 2)
    return {axis: (math.floor(ratio * shape[axis] + half), ratio * shape[axis]) for axis in axes}


def place(
    output: int,
    length: int,
    resized: int,
    width: Fraction,
    region: tuple[Fraction, Fraction],
    how: str,
) -> Fraction:
    """Return where an output lies in the input, exactly."""
    half = Fraction(1, 2)
    start, end = region
    centred = (output + half) * length / width - half
    if how == "half_pixel_symmetric":
        return Fraction(length, 2) * (1 - resized / width) + centred
    if how == "pytorch_half_pixel":
        return centred if resized > 1 else Fraction(0)
    if how == "align_corners":
        return Fraction(0) if width == 1 else output * Fraction(length - 1) / (width - 1)
    if how == "asymmetric":
        return output * length / width
    if how == "tf_crop_and_resize":
        if resized == 1:
            return half * (start + end) * (length - 1)
        return (start + output * (end - start) / (resized - 1)) * (length - 1)
    return centred


def nearest(where: Fraction, length: int, rounding: str) -> AnyArray:
    """Return the weights of an output: 1 for one cell."""
    half = Fraction(1, 2)
    cell = {
        "floor": math.floor(where),
        "ceil": math.ceil(where),
        "round_prefer_floor": math.ceil(where - half),
        "round_prefer_ceil": math.floor(where + half),
    }[rounding]
    row = np.zeros(length)
    row[min(max(cell, 0), length - 1)] = 1
    return row


def weigh(where: Fraction, length: int, width: Fraction, attributes: dict[str, Any]) -> AnyArray:
    """Return the weights of an output by evaluating the filter at every cell, near or far."""
    stretch = max(length / width, Fraction(1)) if attributes["antialias"] else Fraction(1)
    far = math.ceil(2 * stretch) + 1
    cells = range(math.floor(where) - far, math.ceil(where) + far + 1)
    weights = {cell: bump(abs(float((cell - where) / stretch)), attributes) for cell in cells}
    if stretch > 1:
        total = sum(weights.values())
        weights = {cell: weight / total for cell, weight in weights.items()}
    if attributes["exclude_outside"]:
        weights = {cell: weight for cell, weight in weights.items() if 0 <= cell < length}
        total = sum(weights.values()) or 1
        weights = {cell: weight / total for cell, weight in weights.items()}
    row = np.zeros(length)
    for cell, weight in weights.items():
        row[min(max(cell, 0), length - 1)] += weight
    return row


def bump(distance: float, attributes: dict[str, Any]) -> float:
    if attributes["mode"] == "linear":
        return max(0.0, 1 - distance)
    a, d = attributes["cubic_coeff_a"], distance
    if d <= 1:
        return float((a + 2) * d**3 - (a + 3) * d**2 + 1)
    return float(a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a) if d < 2 else 0.0


def by_hand(case: Case) -> AnyArray:
    """Return what a Resize yields, in float64, by one dense matrix per axis."""
    y, attributes = case.x.astype(float), case.attributes
    how = attributes["coordinate_transformation_mode"]
    outside = np.zeros((), bool)
    for index, (axis, (resized, width)) in enumerate(widths(case).items()):
        length = case.x.shape[axis]
        region = (Fraction(0), Fraction(1))
        if case.roi is not None:
            region = (
                Fraction(float(case.roi[index])),
                Fraction(float(case.roi[len(case.roi) // 2 + index])),
            )
        places = [place(output, length, resized, width, region, how) for output in range(resized)]
        rows = [
            nearest(where, length, attributes["nearest_mode"])
            if attributes["mode"] == "nearest"
            else weigh(where, length, width, attributes)
            for where in places
        ]
        matrix = np.array(rows).reshape(resized, length)
        y = np.moveaxis(np.tensordot(matrix, y, (1, axis)), 0, axis)
        beyond = np.array([not 0 <= where <= length - 1 for where in places], bool)
        across = [1] * y.ndim
        across[axis] = resized
        outside = outside | beyond.reshape(across)
    if how == "tf_crop_and_resize":
        y = np.where(outside, attributes["extrapolation_value"], y)
    return y


@given(resizes("nearest", (*FLOATS, "uint8", "int64")))
@settings(max_examples=150)
def test_nearest_copies_the_cell_that_the_place_is_rounded_to(case: Case) -> None:
    y = case.run()

    np.testing.assert_array_equal(y, by_hand(case).astype(case.x.dtype), strict=True)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@given(data=st.data())
@FEW
def test_interpolation_weighs_the_cells_around(mode: str, data: st.DataObject) -> None:
    case = data.draw(resizes(mode))

    y = case.run()

    tolerance = TOLERANCE[case.x.dtype.name]
    assert y.dtype == case.x.dtype
    np.testing.assert_allclose(y, by_hand(case), tolerance, 100 * tolerance)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@given(data=st.data())
@settings(max_examples=30)
def test_interpolation_of_integers_rounds_and_clips(mode: str, data: st.DataObject) -> None:
    case = data.draw(resizes(mode, ("uint8", "int8", "int32")))

    y = case.run()

    limits = np.iinfo(case.x.dtype)
    wanted = np.clip(by_hand(case), limits.min, limits.max)
    assert y.dtype == case.x.dtype
    np.testing.assert_allclose(y, wanted, rtol=0, atol=0.501)


def test_cubic_interpolation_of_bytes_does_not_wrap_around() -> None:
    x = np.array([0, 255, 255, 0], np.uint8)
    scales = np.array([2], np.float32)

    (y,) = run_node("Resize", [x, None, scales], {"mode": "cubic"}, constant=CONSTANT)

    assert y[3:5].tolist() == [255, 255]  # the curve overshoots there
    assert y[0] == 0


@pytest.mark.parametrize(
    ("mode", "attributes"),
    [
        ("nearest", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        ("nearest", {}),
        ("linear", {}),
        ("linear", {"antialias": 1}),
        ("linear", {"coordinate_transformation_mode": "align_corners"}),
        ("cubic", {"coordinate_transformation_mode": "pytorch_half_pixel"}),
        ("cubic", {"antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5}),
    ],
)
@pytest.mark.parametrize("sizes", [(8, 10), (3, 2), (1, 1), (7, 3)])
def test_images_are_resized_as_by_onnx_runtime(
    mode: str, attributes: dict[str, Any], sizes: tuple[int, int]
) -> None:
    x = random_array("float32", (2, 3, 4, 5), 7)
    inputs = [x, None, None, np.array([2, 3, *sizes])]

    (y,) = run_node("Resize", inputs, {"mode": mode, **attributes}, constant=CONSTANT)

    (wanted,) = runtime_node("Resize", inputs, {"mode": mode, **attributes})
    np.testing.assert_allclose(y, wanted, 1e-4, 1e-5)


def test_align_corners_counts_in_lengths_before_rounding() -> None:
    # As in ONNX's own test of a downsampling by 0.6; ONNX Runtime has [1, 4] here.
    x, scales = np.array([1, 2, 3, 4], np.float32), np.array([0.6], np.float32)
    attributes = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}

    (y,) = run_node("Resize", [x, None, scales], attributes, constant=CONSTANT)

    np.testing.assert_allclose(y, [1, 1 + 3 / 1.4], 1e-5)
    (reference,) = onnx_reference("Resize", [x, None, scales], attributes)
    np.testing.assert_allclose(y, reference, 1e-5)


def test_a_resize_to_the_same_size_changes_nothing() -> None:
    x = random_array("float32", (2, 3), 1)

    (y,) = run_node(
        "Resize", [x, None, None, np.array([2, 3])], {"mode": "cubic"}, constant=CONSTANT
    )

    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize(("shape", "wanted"), [((0, 3), (0, 6)), ((1, 3), (0, 6))])
def test_axes_without_cells_stay_or_become_empty(
    mode: str, transformation: str, shape: tuple[int, int], wanted: tuple[int, int]
) -> None:
    inputs = [np.ones(shape, np.float32), np.array([0, 0, 1, 1], "f4"), np.array([0.4, 2], "f4")]
    attributes = {"mode": mode, "coordinate_transformation_mode": transformation}

    (y,) = run_node("Resize", inputs, attributes, constant=CONSTANT)

    assert y.shape == wanted


def test_infinities_stay_where_they_are() -> None:
    x = np.array([1, np.inf, 3, 4, 5, 6, 7, 8], np.float32)

    (y,) = run_node("Resize", [x, None, np.array([2], "f4")], {"mode": "linear"}, constant=CONSTANT)

    assert np.isfinite(y).tolist() == [True] * 1 + [False] * 4 + [True] * 11


def test_a_tie_is_one_though_no_float_is_the_width_before_rounding() -> None:
    x, sizes = np.arange(6.0).reshape(3, 2), np.array([5, 1])
    attributes = {
        "coordinate_transformation_mode": "half_pixel_symmetric",
        "keep_aspect_ratio_policy": "not_smaller",
    }

    (y,) = run_node("Resize", [x, None, None, sizes], attributes, constant=[3])

    # 2 cells become 10/3, that is 3: the middle one lies at 1/2.
    assert y[0].tolist() == [0, 0, 1]
