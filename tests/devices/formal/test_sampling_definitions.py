"""Definitions of operators that read between cells, or keep a state, and their kernels, agree."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from by_definition import AnyArray, Both
from hypothesis import given, settings
from hypothesis import strategies as st

seeds = st.integers(0, 999)
few = settings(max_examples=25)


def normal(seed: int, *shape: int, dtype: str = "float64") -> AnyArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@few
@given(
    seed=seeds,
    spatial=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    align_corners=st.booleans(),
    mode=st.sampled_from(["nearest", "linear", "cubic"]),
    padding_mode=st.sampled_from(["zeros", "border", "reflection"]),
)
def test_grids_are_sampled_alike(
    both: Both, seed: int, spatial: list[int], align_corners: bool, mode: str, padding_mode: str
) -> None:
    rank = len(spatial)
    x = normal(seed, 2, 2, *spatial)
    grid = normal(seed + 1, 2, *(2,) * rank, rank)
    assert both.agree(
        "GridSample",
        x,
        grid,
        align_corners=align_corners,
        mode=mode,
        padding_mode=padding_mode,
    )


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_places_that_are_no_finite_numbers(
    both: Both, mode: str, padding: str, align_corners: bool, dtype: str
) -> None:
    odd = [-np.inf, np.inf, np.nan, 9, 0.5]
    grid = np.array([[[list(place) for place in product(odd, odd)]]], np.float32)
    for rows in (1, 3):
        x = np.arange(1, 1 + 4 * rows, dtype=dtype).reshape(1, 1, rows, 4)
        assert both.agree(
            "GridSample", x, grid, align_corners=align_corners, mode=mode, padding_mode=padding
        )


@few
@given(seed=seeds, spatial=st.lists(st.integers(1, 4), min_size=2, max_size=3), align=st.booleans())
def test_affine_grids(both: Both, seed: int, spatial: list[int], align: bool) -> None:
    theta = normal(seed, 2, len(spatial), len(spatial) + 1)
    size = np.array([2, 1, *spatial])
    assert both.agree("AffineGrid", theta, size, constant=(1,), align_corners=align)


@few
@given(
    seed=seeds,
    half_pixel=st.booleans(),
    mode=st.sampled_from(["avg", "max"]),
    ratio=st.integers(0, 2),
)
def test_regions(both: Both, seed: int, half_pixel: bool, mode: str, ratio: int) -> None:
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.uniform(-2, 8, (3, 2, 2)), axis=1).reshape(3, 4)
    assert both.agree(
        "RoiAlign",
        normal(seed, 2, 2, 4, 5),
        corners,
        rng.integers(0, 2, 3),
        coordinate_transformation_mode="half_pixel" if half_pixel else "output_half_pixel",
        mode=mode,
        output_height=2,
        output_width=3,
        sampling_ratio=ratio,
        spatial_scale=0.75,
    )


@few
@given(seed=seeds, stride=st.integers(1, 2), dilation=st.integers(1, 2), masked=st.booleans())
def test_deformed_convolutions(
    both: Both, seed: int, stride: int, dilation: int, masked: bool
) -> None:
    height, width = (3 - dilation) // stride + 1, (5 - dilation) // stride + 1
    assert both.agree(
        "DeformConv",
        normal(seed, 2, 4, 4, 5),
        normal(seed + 1, 2, 2, 2, 2),
        normal(seed + 2, 2, 2 * 4 * 2, height, width),
        normal(seed + 3, 2),
        normal(seed + 4, 2, 2 * 4, height, width) if masked else None,
        strides=(stride,) * 2,
        dilations=(dilation,) * 2,
        pads=(0, 1, 0, 0),
        group=2,
        offset_group=2,
    )


@few
@given(
    seed=seeds,
    rule=st.sampled_from(["linear", "gated", "delta", "gated_delta"]),
    per_row=st.booleans(),
    shared_beta=st.booleans(),
    past=st.booleans(),
)
def test_linear_attention(
    both: Both, seed: int, rule: str, per_row: bool, shared_beta: bool, past: bool
) -> None:
    batch, steps, queries, keys, depth, width = 2, 3, 4, 2, 3, 2
    gates: list[Any] = [None, None]
    if "gated" in rule:
        gates[0] = normal(seed, batch, steps, keys * (depth if per_row else 1))
    if "delta" in rule:
        gates[1] = normal(seed + 1, batch, steps, 1 if shared_beta else keys)
    assert both.agree(
        "LinearAttention",
        normal(seed + 2, batch, steps, queries * depth),
        normal(seed + 3, batch, steps, keys * depth),
        normal(seed + 4, batch, steps, keys * width),
        normal(seed + 5, batch, keys, depth, width) if past else None,
        *gates,
        n_outputs=2,
        q_num_heads=queries,
        kv_num_heads=keys,
        update_rule=rule,
    )


@few
@given(
    seed=seeds,
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    parts=st.integers(1, 2),
    asked=st.none() | st.integers(1, 7),
    inverse=st.booleans(),
    onesided=st.booleans(),
    data=st.data(),
)
def test_fourier_transforms(
    both: Both,
    seed: int,
    shape: list[int],
    parts: int,
    asked: int | None,
    inverse: bool,
    onesided: bool,
    data: st.DataObject,
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    if onesided:
        parts = 2 if inverse else 1
        shape[axis] += 1
    length = None if asked is None else np.array(asked)
    assert both.agree(
        "DFT",
        normal(seed, *shape, parts),
        length,
        np.array(axis),
        constant=(1, 2),
        inverse=inverse,
        onesided=onesided,
    )


@few
@given(seed=seeds, step=st.integers(1, 3), windowed=st.booleans(), onesided=st.booleans())
def test_short_time_fourier_transforms(
    both: Both, seed: int, step: int, windowed: bool, onesided: bool
) -> None:
    window = normal(seed + 1, 4) if windowed else None
    length = None if windowed else np.array(4)
    inputs = (normal(seed, 2, 9, 1), np.array(step), window, length)
    assert both.agree("STFT", *inputs, constant=(1, 3), onesided=onesided)


@pytest.mark.parametrize("bins", [1, 4, 10])
def test_mel_filters(both: Both, bins: int) -> None:
    numbers = [np.array(n) for n in (bins, 64, 8000, 20.0, 4000.0)]
    assert both.agree("MelWeightMatrix", *numbers, constant=(0, 1, 2), output_datatype="float64")


@few
@given(
    seed=seeds,
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    pad=st.integers(0, 1),
    dtype=st.sampled_from(["float64", "int32"]),
)
def test_images_from_columns(
    both: Both, seed: int, stride: int, dilation: int, pad: int, dtype: str
) -> None:
    counts = [(n + 2 * pad - dilation - 1) // stride + 1 for n in (4, 5)]
    x = (9 * normal(seed, 2, 2 * 4, int(np.prod(counts)))).astype(dtype)
    assert both.agree(
        "Col2Im",
        x,
        np.array([4, 5]),
        np.array([2, 2]),
        constant=(1, 2),
        strides=(stride,) * 2,
        dilations=(dilation,) * 2,
        pads=(pad,) * 4,
    )


@given(seed=seeds, order=st.integers(1, 4))
def test_determinants(both: Both, seed: int, order: int) -> None:
    x = np.random.default_rng(seed).integers(-3, 4, (2, order, order))
    assert both.agree("Det", x + 0.5 * np.eye(order))
    assert both.agree("Cofactors", x.astype(float))
