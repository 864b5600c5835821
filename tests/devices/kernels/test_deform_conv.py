from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import SEEDS, AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from single_node import onnx_reference, run_node


def arguments(
    batch: int,
    channels: int,
    features: int,
    kernel: tuple[int, int],
    spatial: tuple[int, int],
    given: dict[str, Any],
    seed: int,
    dtype: str = "float32",
) -> list[AnyArray]:
    """Return the input, the weights, offsets of up to two cells, the bias and the mask."""
    pads, strides = given.get("pads", (0,) * 4), given.get("strides", (1, 1))
    dilations, groups = given.get("dilations", (1, 1)), given.get("offset_group", 1)
    outputs = [
        (spatial[i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
        for i in range(2)
    ]
    taps = groups * kernel[0] * kernel[1]
    shapes: list[tuple[int, ...]] = [
        (batch, channels, *spatial),
        (features, channels // given.get("group", 1), *kernel),
        (batch, 2 * taps, *outputs),
        (features,),
        (batch, taps, *outputs),
    ]
    return [random_array(dtype, shape, seed + i, -2, 2) for i, shape in enumerate(shapes)]


@settings(max_examples=25)
@given(st.data(), SEEDS)
def test_deform_conv_gives_what_onnx_says(data: st.DataObject, seed: int) -> None:
    pair = st.tuples(st.integers(1, 2), st.integers(1, 2))
    group, offset_group = data.draw(pair)
    given: dict[str, Any] = {"group": group, "offset_group": offset_group}
    given["pads"] = data.draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    given |= {name: data.draw(pair) for name in ("strides", "dilations")}
    spatial = data.draw(st.tuples(st.integers(3, 4), st.integers(3, 4)))
    inputs: list[AnyArray | None] = [
        *arguments(data.draw(st.integers(1, 2)), 2, 2, data.draw(pair), spatial, given, seed)
    ]
    for absent in data.draw(st.sets(st.integers(3, 4))):
        inputs[absent] = None
    (found,) = run_node("DeformConv", inputs, given)
    (wanted,) = onnx_reference("DeformConv", inputs, given)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_without_offsets_it_is_a_convolution(dtype: str) -> None:
    given = {"group": 2, "pads": [1, 2, 0, 1], "strides": [2, 1], "dilations": [1, 2]}
    x, w, offset, bias, _ = arguments(2, 4, 6, (3, 2), (7, 6), given, 1, dtype)
    (found,) = run_node("DeformConv", [x, w, np.zeros_like(offset), bias], given)
    (wanted,) = run_node("Conv", [x, w, bias], given)
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


def test_whole_offsets_read_other_cells() -> None:
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    offset = np.zeros((1, 2, 3, 3), np.float32)
    offset[:, 0] = 1
    (y,) = run_node("DeformConv", [x, np.ones((1, 1, 1, 1), np.float32), offset])
    np.testing.assert_array_equal(y[0, 0], [[3, 4, 5], [6, 7, 8], [0, 0, 0]])


def test_the_mask_weighs_what_taps_read() -> None:
    x, w, offset, _, mask = arguments(1, 2, 3, (2, 2), (4, 4), {"offset_group": 2}, 2)
    given = {"offset_group": 2}
    (plain,) = run_node("DeformConv", [x, w, offset], given)
    (halved,) = run_node("DeformConv", [x, w, offset, None, np.full_like(mask, 0.5)], given)
    np.testing.assert_allclose(halved, plain / 2, 1e-5, 1e-6)


def test_halves_are_computed_as_singles() -> None:
    narrow = arguments(1, 2, 2, (2, 2), (4, 3), {}, 3, "float16")
    (found,) = run_node("DeformConv", narrow)
    (wide,) = run_node("DeformConv", [x.astype(np.float32) for x in narrow])
    np.testing.assert_array_equal(found, wide.astype(np.float16))


def test_an_empty_batch_is_nothing() -> None:
    (y,) = run_node("DeformConv", arguments(0, 2, 3, (2, 2), (4, 4), {}, 4))
    assert y.shape == (0, 3, 3, 3)
