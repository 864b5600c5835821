from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import SEEDS, AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.errors import KernelError
from single_node import onnx_reference, run_node

MODES = ("avg", "max")
TRANSFORMATIONS = ("half_pixel", "output_half_pixel")


@st.composite
def attributes(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "coordinate_transformation_mode": draw(st.sampled_from(TRANSFORMATIONS)),
        "mode": draw(st.sampled_from(MODES)),
        "output_height": draw(st.integers(1, 3)),
        "output_width": draw(st.integers(1, 3)),
        "sampling_ratio": draw(st.integers(0, 2)),
        "spatial_scale": draw(st.sampled_from((0.25, 0.7, 1.0))),
    }


def align(x: AnyArray, rois: AnyArray, owners: AnyArray, **given: Any) -> AnyArray:
    (y,) = run_node("RoiAlign", [x, rois, owners], given)
    return y


@settings(max_examples=40)
@given(st.data(), attributes(), SEEDS)
def test_roi_align_gives_what_onnx_says(
    data: st.DataObject, given: dict[str, Any], seed: int
) -> None:
    batch, height, width = (data.draw(st.integers(1, 4)) for _ in range(3))
    x = random_array("float32", (batch, 2, height, width), seed)
    count = data.draw(st.integers(1, 4))
    # Corners are in no order: regions may be upside down, and reach out of the image.
    rois = random_array("float32", (count, 4), seed + 1, -4, 12)
    owners = random_array("int64", (count,), seed + 2, 0, batch - 1)
    (wanted,) = onnx_reference("RoiAlign", [x, rois, owners], given)
    np.testing.assert_allclose(align(x, rois, owners, **given), wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_regions_on_cells_show_the_cells(mode: str) -> None:
    x = np.abs(random_array("float64", (2, 3, 4, 5), 1))
    rois, owners = np.array([[0.0, 0, 5, 4], [0, 0, 5, 4]]), np.array([1, 0])
    given = {"output_height": 4, "output_width": 5, "sampling_ratio": 1, "mode": mode}
    np.testing.assert_allclose(align(x, rois, owners, **given), x[::-1], 1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_regions_far_outside_are_zero_whatever_the_cells_are(mode: str) -> None:
    x = np.full((1, 1, 3, 3), np.inf, np.float32)
    rois = np.array([[-50, -50, -40, -40], [0, 90, 2, 92], [np.nan] * 4], "float32")
    y = align(x, rois, np.zeros(3, np.int64), output_height=2, mode=mode, sampling_ratio=2)
    np.testing.assert_array_equal(y, np.zeros((3, 1, 2, 1)))


def test_many_regions_are_pooled_block_by_block() -> None:
    x = random_array("float32", (3, 40, 6, 6), 2)
    rois = random_array("float32", (60, 4), 3, 0, 6)
    owners = random_array("int64", (60,), 4, 0, 2)
    given = {"output_height": 5, "output_width": 7}
    whole = align(x, rois, owners, **given)
    for region in (0, 31, 59):
        alone = align(x, rois[[region]], owners[[region]], **given)
        np.testing.assert_array_equal(whole[[region]], alone)


@pytest.mark.parametrize("mode", MODES)
def test_many_channels_are_pooled_a_few_samples_at_a_time(mode: str) -> None:
    x = random_array("float32", (1, 40_000, 2, 3), 7)
    rois, owners = random_array("float32", (2, 4), 8, -1, 3), np.zeros(2, np.int64)
    whole = align(x, rois, owners, mode=mode, sampling_ratio=3)
    few = align(x[:, ::9_999], rois, owners, mode=mode, sampling_ratio=3)
    np.testing.assert_allclose(whole[:, ::9_999], few, 1e-5, 1e-5)


def test_halves_are_computed_as_singles() -> None:
    x, rois = random_array("float16", (1, 2, 5, 5), 5), random_array("float16", (3, 4), 6, 0, 5)
    owners = np.zeros(3, np.int64)
    found = align(x, rois, owners, output_width=3)
    wide = align(x.astype(np.float32), rois.astype(np.float32), owners, output_width=3)
    np.testing.assert_array_equal(found, wide.astype(np.float16))


def test_no_regions_are_nothing() -> None:
    x, rois = np.ones((1, 2, 3, 3), np.float32), np.ones((0, 4), np.float32)
    assert align(x, rois, np.zeros(0, np.int64)).shape == (0, 2, 1, 1)


@pytest.mark.parametrize("owner", [-1, 2])
def test_a_region_of_no_image_is_an_error(owner: int) -> None:
    x, rois = np.ones((2, 1, 3, 3), np.float32), np.ones((1, 4), np.float32)
    with pytest.raises(KernelError, match=rf"\[{owner}\] are not in \[0, 2\)"):
        align(x, rois, np.array([owner]))
