from __future__ import annotations

from typing import Any

import arrays
import numpy as np
import onnx
import pytest
from arrays import AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.values.errors import ShapeError
from single_node import onnx_reference, run_node

QUANTIZED = ("int8", "uint8", "int16", "uint16")
SHAPES = arrays.shapes(min_rank=1, max_length=7)


def element_type(dtype: str) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def any_value(dtype: str, shape: tuple[int, ...], seed: int) -> AnyArray:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return np.asarray(rng.integers(info.min, info.max, shape, dtype, endpoint=True))


@st.composite
def granularities(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Draw a tensor's shape, its scale's, and the attributes that say how they go together."""
    shape = draw(SHAPES)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    how = draw(st.sampled_from(["tensor", "one", "axis", "block"]))
    if how in ("tensor", "one"):
        return shape, () if how == "tensor" else (1,), {"axis": axis}
    if how == "axis":
        return shape, (shape[axis],), {"axis": axis}
    block = draw(st.integers(1, 4))
    blocks = list(shape)
    blocks[axis] = -(-blocks[axis] // block)
    return shape, tuple(blocks), {"axis": axis, "block_size": block}


@given(
    granularity=granularities(),
    dtype=st.sampled_from(["float32", "float16"]),
    made=st.sampled_from(QUANTIZED),
    zero=st.booleans(),
    seed=arrays.SEEDS,
)
@settings(max_examples=150)
def test_quantize_rounds_quotients_and_adds_zero_points(
    granularity: Any, dtype: str, made: str, zero: bool, seed: int
) -> None:
    shape, scales, attributes = granularity
    x = random_array(dtype, shape, seed, -300, 300)
    scale = abs(random_array(dtype, scales, seed + 1)) + np.dtype(dtype).type(0.1)
    inputs = [x, scale, any_value(made, scales, seed + 2)] if zero else [x, scale]
    given = {} if zero else {"output_dtype": element_type(made)}

    (y,) = run_node(
        "QuantizeLinear", inputs, {**attributes, **({} if zero else {"output_dtype": made})}
    )

    (wanted,) = onnx_reference("QuantizeLinear", inputs, {**attributes, **given})
    np.testing.assert_array_equal(y, wanted, strict=True)


@pytest.mark.parametrize("made", QUANTIZED)
def test_quantize_rounds_halves_to_even_and_saturates(made: str) -> None:
    info = np.iinfo(made)
    x = np.array([-5, -3, -1, 0, 1, 3, 5, 1e9, -1e9, np.inf, -np.inf], np.float32)
    zero = np.array(info.max // 2, made)

    (y,) = run_node("QuantizeLinear", [x, np.array(2, np.float32), zero])

    near = [int(zero) + q for q in (-2, -2, 0, 0, 0, 2, 2)]
    assert y.tolist() == [*near, info.max, info.min, info.max, info.min]


def test_quantize_adds_an_odd_zero_point_after_rounding() -> None:
    (y,) = run_node(
        "QuantizeLinear",
        [np.array([0.5, 1.5, 2.5], np.float32), np.array(1, np.float32), np.array(3, np.uint8)],
    )

    assert y.tolist() == [3, 5, 5]


def test_quantize_divides_in_the_dtype_of_the_scale() -> None:
    x, scale = np.array([2049, 70000], np.float32), np.array([1], np.float16)

    (y,) = run_node("QuantizeLinear", [x, scale, np.array([0], np.uint16)])

    assert y.tolist() == [2048, 65535]  # 2049 lies between two neighbours in float16


def test_quantize_divides_in_the_precision_asked_for() -> None:
    x, scale = np.array([2049 / 2], np.float16), np.array([0.1], np.float16)

    coarse, fine = (
        run_node("QuantizeLinear", [x, scale, np.array([0], np.uint16)], {"precision": precision})[
            0
        ]
        for precision in ("float16", "float32")
    )

    assert coarse.item() == int(np.rint(x / scale).item())
    assert fine.item() == round(float(x.item()) / float(scale.item()))
    assert coarse.item() != fine.item()


def test_quantize_takes_integers_and_integer_scales() -> None:
    x = np.array([2**31 - 1, 7, -5, 3], np.int32)

    (y,) = run_node("QuantizeLinear", [x, np.array(2, np.int32), np.array(1, np.int16)])

    assert y.tolist() == [32767, 5, -1, 3]


@given(
    granularity=granularities(),
    dtype=st.sampled_from((*QUANTIZED, "int32")),
    scale_dtype=st.sampled_from(["float32", "float16"]),
    made=st.sampled_from(["float32", "float16", None]),
    zero=st.booleans(),
    seed=arrays.SEEDS,
)
@settings(max_examples=150)
def test_dequantize_multiplies_what_is_above_the_zero_point(
    granularity: Any, dtype: str, scale_dtype: str, made: str | None, zero: bool, seed: int
) -> None:
    shape, scales, attributes = granularity
    narrow = dtype == "int32"
    x = random_array(dtype, shape, seed, -9999, 9999) if narrow else any_value(dtype, shape, seed)
    scale = random_array(scale_dtype, scales, seed + 1, 0, 1)
    offset = np.zeros(scales, dtype) if narrow else any_value(dtype, scales, seed + 2)
    inputs = [x, scale, offset] if zero else [x, scale]
    given = {} if made is None else {"output_dtype": element_type(made)}

    (y,) = run_node("DequantizeLinear", inputs, {**attributes, "output_dtype": made})

    # A zero point of int32, which is 0, would make the reference multiply in float64.
    inputs = inputs[:2] if narrow else inputs
    with np.errstate(over="ignore"):
        (wanted,) = onnx_reference("DequantizeLinear", inputs, {**attributes, **given})
    np.testing.assert_array_equal(y, wanted, strict=True)


@given(
    shape=arrays.shapes(), low=st.integers(-200, 200), width=st.integers(0, 200), seed=arrays.SEEDS
)
@settings(max_examples=80)
def test_dynamic_quantize_covers_the_range_of_the_input(
    shape: tuple[int, ...], low: int, width: int, seed: int
) -> None:
    x = random_array("float32", shape, seed, low, low + width)
    if not x.any():
        return

    results = run_node("DynamicQuantizeLinear", [x], n_outputs=3)

    for found, wanted in zip(
        results, onnx_reference("DynamicQuantizeLinear", [x], n_outputs=3), strict=True
    ):
        np.testing.assert_array_equal(found, wanted, strict=True)


def test_a_single_number_may_be_a_scalar_or_a_vector_of_one() -> None:
    x, scale, zero = np.array([4, 6], np.uint8), np.array(0.5, np.float32), np.array([2], np.uint8)

    (y,) = run_node("DequantizeLinear", [x, scale, zero])

    assert y.tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(), (3,), (0,)])
def test_dynamic_quantize_of_nothing_but_zeros_has_a_scale_of_one(shape: tuple[int, ...]) -> None:
    y, scale, zero = run_node("DynamicQuantizeLinear", [np.zeros(shape, np.float32)], n_outputs=3)

    assert not y.any()
    assert (scale.item(), zero.item()) == (1, 0)


@pytest.mark.parametrize(
    ("x", "scale", "zero", "attributes", "told"),
    [
        ((4, 6), (4,), (4,), {}, "scale"),
        ((4, 6), (4, 3), (4, 3), {"block_size": 4}, "scale"),
        ((4, 6), (4, 6), (4, 6), {}, "scale"),
        ((4, 6), (6,), (), {}, "zero point"),
        ((4, 6), (6,), (6,), {"axis": 2}, "axis"),
        ((4, 6), (), (), {"output_dtype": "int8"}, "output_dtype"),
    ],
)
def test_scales_that_do_not_fit_are_refused(
    x: tuple[int, ...],
    scale: tuple[int, ...],
    zero: tuple[int, ...],
    attributes: dict[str, Any],
    told: str,
) -> None:
    inputs: list[AnyArray] = [
        np.ones(x, np.float32),
        np.ones(scale, np.float32),
        np.ones(zero, np.uint8),
    ]

    with pytest.raises(ShapeError, match=told):
        run_node("QuantizeLinear", inputs, attributes)


def test_only_small_integers_are_quantized_to() -> None:
    x, scale, zero = np.ones(3, np.float32), np.array(1, np.float32), np.array(0, np.int64)

    with pytest.raises(ShapeError, match="int64"):
        run_node("QuantizeLinear", [x, scale, zero])
