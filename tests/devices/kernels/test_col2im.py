from __future__ import annotations

from typing import Any

import arrays
import numpy as np
import pytest
from arrays import EVERY, random_array
from convolutions import per_axis
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.values.errors import ShapeError
from single_node import onnx_reference, run_node

TOLERANCE = {"float16": 2e-2, "float32": 1e-5}


@st.composite
def blocks(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int], list[int], dict[str, Any]]:
    """Draw the shape of columns, the image's and the block's, and the attributes."""
    rank = draw(st.integers(1, 3))
    block = draw(per_axis(rank, st.integers(1, 3)))
    strides, dilations = (draw(per_axis(rank, st.integers(1, 3))) for _ in range(2))
    begins, ends = (draw(per_axis(rank, st.integers(0, 2))) for _ in range(2))
    image, counts = [], []
    for size, stride, dilation, pads in zip(
        block, strides, dilations, map(sum, zip(begins, ends, strict=True)), strict=True
    ):
        extent = (size - 1) * dilation + 1
        image.append(draw(st.integers(max(1, extent - pads), extent + 4)))
        counts.append((image[-1] + pads - extent) // stride + 1)
    batch, channels = draw(st.integers(0, 2)), draw(st.integers(1, 2))
    shape = (batch, channels * int(np.prod(block)), int(np.prod(counts)))
    attributes = {"strides": strides, "dilations": dilations, "pads": (*begins, *ends)}
    return shape, image, list(block), attributes


@given(case=blocks(), dtype=st.sampled_from(EVERY), seed=arrays.SEEDS)
@settings(max_examples=100)
def test_col2im_adds_the_cells_that_lie_on_each_other(case: Any, dtype: str, seed: int) -> None:
    shape, image, block, attributes = case
    x = random_array(dtype, shape, seed, -3, 3)

    (y,) = run_node("Col2Im", [x, np.array(image), np.array(block)], attributes, constant=(1, 2))

    if not x.size:
        assert y.shape == (0, shape[1] // int(np.prod(block)), *image)
        return
    wide = x.astype("float64") if dtype in TOLERANCE else x
    (wanted,) = onnx_reference("Col2Im", [wide, np.array(image), np.array(block)], attributes)
    assert y.dtype == dtype
    tolerance = TOLERANCE.get(dtype, 1e-12)
    np.testing.assert_allclose(y, wanted, tolerance, tolerance)


def test_col2im_refuses_columns_of_another_image() -> None:
    image, block = np.array([4, 4]), np.array([2, 2])

    for shape in ((1, 4, 8), (1, 5, 9)):
        with pytest.raises(ShapeError, match="not made of columns"):
            run_node("Col2Im", [np.ones(shape, np.float32), image, block], constant=(1, 2))
