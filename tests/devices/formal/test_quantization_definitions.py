"""Definitions and kernels of quantization and of quantized products, written apart, agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_definition import AnyArray, Both
from hypothesis import given, settings
from hypothesis import strategies as st

seeds = st.integers(0, 999)
bytes_ = st.sampled_from(["int8", "uint8"])
few = settings(max_examples=40)


def whole(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> AnyArray:
    """Return integers from all of the dtype's range."""
    bounds = np.iinfo(dtype)
    numbers: AnyArray = rng.integers(bounds.min, bounds.max, shape, endpoint=True).astype(dtype)
    return numbers


def powers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32") -> AnyArray:
    """Return powers of two, which no kernel rounds."""
    return (2.0 ** rng.integers(-4, 3, shape)).astype(dtype)


def granules(axis: int, block: int, per_tensor: bool) -> tuple[int, ...]:
    """Return the shape of scales for a tensor (4, 6)."""
    if per_tensor:
        return ()
    lengths = [4, 6]
    if not block:
        return (lengths[axis],)
    lengths[axis] = -(-lengths[axis] // block)
    return tuple(lengths)


@few
@given(
    seed=seeds,
    dtype=st.sampled_from(["int8", "uint8", "int16", "uint16"]),
    real=st.sampled_from(["float16", "float32"]),
    axis=st.integers(-2, 1),
    block=st.sampled_from([0, 2, 4]),
    per_tensor=st.booleans(),
    with_zero=st.booleans(),
)
def test_numbers_are_quantized_and_brought_back_alike(
    both: Both,
    seed: int,
    dtype: str,
    real: str,
    axis: int,
    block: int,
    per_tensor: bool,
    with_zero: bool,
) -> None:
    rng = np.random.default_rng(seed)
    shape = granules(axis, block, per_tensor)
    scale = powers(rng, shape, real)
    zero = whole(rng, dtype, shape) if with_zero else None
    granularity: dict[str, Any] = {"axis": axis, "block_size": block}
    x = (rng.standard_normal((4, 6)) * 40).astype(real)
    x[0, :4] = np.inf, -np.inf, 2.5, -0.5
    output: dict[str, Any] = {} if with_zero else {"output_dtype": dtype}
    assert both.agree("QuantizeLinear", x, scale, zero, **granularity, **output)
    assert both.agree("DequantizeLinear", whole(rng, dtype, (4, 6)), scale, zero, **granularity)


@few
@given(seed=seeds, size=st.integers(0, 9), offset=st.floats(-2, 2))
def test_the_range_of_numbers_is_found_alike(
    both: Both, seed: int, size: int, offset: float
) -> None:
    x = (np.random.default_rng(seed).standard_normal(size) + offset).astype(np.float32)
    assert both.agree("DynamicQuantizeLinear", x, n_outputs=3)


@pytest.mark.parametrize("x", [[0.0, 0.0], [3.0], [-1.0, -2.0]])
def test_ranges_on_one_side_of_zero_include_it(both: Both, x: list[float]) -> None:
    assert both.agree("DynamicQuantizeLinear", np.array(x, np.float32), n_outputs=3)


def one_or(rng: np.random.Generator, several: bool, count: int, dtype: str) -> AnyArray:
    return whole(rng, dtype, (count,) if several else ())


@few
@given(seed=seeds, left=bytes_, right=bytes_, by_row=st.booleans(), by_column=st.booleans())
def test_integer_products(
    both: Both, seed: int, left: str, right: str, by_row: bool, by_column: bool
) -> None:
    rng = np.random.default_rng(seed)
    a, b = whole(rng, left, (3, 4)), whole(rng, right, (4, 5))
    zeros = one_or(rng, by_row, 3, left), one_or(rng, by_column, 5, right)
    assert both.agree("MatMulInteger", a, b, *zeros)


@few
@given(seed=seeds, left=bytes_, right=bytes_, by_column=st.booleans())
def test_products_quantized_again(
    both: Both, seed: int, left: str, right: str, by_column: bool
) -> None:
    rng = np.random.default_rng(seed)
    columns = (5,) if by_column else ()
    assert both.agree(
        "QLinearMatMul",
        whole(rng, left, (3, 4)),
        powers(rng, ()),
        whole(rng, left, ()),
        whole(rng, right, (4, 5)),
        powers(rng, columns),
        whole(rng, right, columns),
        np.array(2.0**9, np.float32),
        whole(rng, "uint8", ()),
    )


@few
@given(seed=seeds, left=bytes_, right=bytes_, by_feature=st.booleans(), group=st.integers(1, 2))
def test_integer_convolutions(
    both: Both, seed: int, left: str, right: str, by_feature: bool, group: int
) -> None:
    rng = np.random.default_rng(seed)
    x, w = whole(rng, left, (2, 4, 4, 5)), whole(rng, right, (2, 4 // group, 2, 3))
    window: dict[str, Any] = {"pads": (0, 1, 1, 0), "strides": (1, 2), "group": group}
    zeros = whole(rng, left, ()), one_or(rng, by_feature, 2, right)
    assert both.agree("ConvInteger", x, w, *zeros, **window)
    scales = powers(rng, ()), powers(rng, zeros[1].shape)
    assert both.agree(
        "QLinearConv",
        *(x, scales[0], zeros[0]),
        *(w, scales[1], zeros[1]),
        *(np.array(2.0**10, np.float32), whole(rng, "int8", ())),
        whole(rng, "int16", (2,)).astype(np.int32),
        **window,
    )


@pytest.mark.parametrize(
    ("left", "right", "left_scales", "right_scales"),
    [
        ((2, 3), (3,), (2,), (1,)),
        ((2, 3), (3,), (2, 1), ()),
        ((3,), (3, 2), (1,), (2,)),
        ((3,), (4, 3, 2), (), (4, 1, 2)),
    ],
)
def test_products_with_vectors_have_a_scale_for_each_row_or_column(
    both: Both, left: Any, right: Any, left_scales: Any, right_scales: Any
) -> None:
    rng = np.random.default_rng(3)
    assert both.agree(
        "QLinearMatMul",
        whole(rng, "int8", left),
        powers(rng, left_scales),
        whole(rng, "int8", left_scales),
        whole(rng, "uint8", right),
        powers(rng, right_scales),
        whole(rng, "uint8", right_scales),
        np.array(2.0**9, np.float32),
        whole(rng, "uint8", ()),
    )
