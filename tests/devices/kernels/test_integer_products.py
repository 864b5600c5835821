"""Products of quantized tensors against products of Python's own or float64's exact integers.

Where results are rounded again, scales are powers of two and so round nothing themselves.
"""

from __future__ import annotations

from typing import Any

import arrays
import numpy as np
import pytest
from arrays import AnyArray
from convolutions import Case, cases, convolved, per_axis
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.kernels.registry import find_kernel
from plait.graph.values.errors import ShapeError
from single_node import onnx_reference, run_node, single_node_graph

BYTES = st.sampled_from(["int8", "uint8"])
GROUPS = st.sampled_from(["one", "each", "stack"])
CONSTANT = st.sampled_from([(), (1,), (1, 3), (3,), (3, 5), (3, 4, 5, 8), (2, 3, 5, 7)])


def any_byte(dtype: str, shape: Any, seed: int) -> AnyArray:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return np.asarray(rng.integers(info.min, info.max, shape, dtype, endpoint=True))


def power_of_two(dtype: str, shape: Any, seed: int) -> AnyArray:
    return np.asarray(np.exp2(np.random.default_rng(seed).integers(-5, 1, shape)), dtype)


def saturated(values: AnyArray, zero: AnyArray) -> AnyArray:
    info = np.iinfo(zero.dtype)
    return np.asarray(np.clip(np.rint(values) + zero, info.min, info.max), zero.dtype)


@st.composite
def products(draw: st.DrawFn) -> tuple[AnyArray, AnyArray, tuple[int, ...], tuple[int, ...]]:
    """Draw two factors, and the shapes of zero points per tensor, row or column."""
    depth, seed = draw(st.integers(0, 6)), draw(arrays.SEEDS)
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    stack = draw(st.sampled_from([(), (2,), (2, 3)]))
    a_shape = draw(st.sampled_from([(depth,), (rows, depth), (*stack, rows, depth)]))
    b_shape = draw(st.sampled_from([(depth,), (depth, columns), (*stack, depth, columns)]))
    a_zero = draw(st.sampled_from(_zero_shapes(a_shape, (*a_shape[:-1], 1), a_shape[-2:-1])))
    across = (*b_shape[:-2], 1, b_shape[-1])
    b_zero = draw(st.sampled_from(_zero_shapes(b_shape, across, b_shape[-1:])))
    a, b = any_byte(draw(BYTES), a_shape, seed), any_byte(draw(BYTES), b_shape, seed + 1)
    return a, b, a_zero, b_zero


def _zero_shapes(
    factor: tuple[int, ...], whole: tuple[int, ...], vector: tuple[int, ...]
) -> list[tuple[int, ...]]:
    single: list[tuple[int, ...]] = [(), (1,)]
    return single if len(factor) < 2 else [*single, whole, vector]


def centred_product(a: AnyArray, a_zero: AnyArray, b: AnyArray, b_zero: AnyArray) -> AnyArray:
    """Return the exact product; a vector of zero points of a has one for each row."""
    rows = a_zero.reshape(-1, 1) if a_zero.ndim == 1 and a_zero.size > 1 else a_zero
    left, right = (
        x.astype(np.int64) - (zero.reshape(()) if zero.size == 1 else zero)
        for x, zero in ((a, rows), (b, b_zero))
    )
    exact: AnyArray = left @ right
    return exact


@given(product=products(), zeros=st.sampled_from(["both", "left", "none"]), constant=CONSTANT)
@settings(max_examples=120)
def test_matmul_integer_is_the_exact_product(
    product: Any, zeros: str, constant: tuple[int, ...]
) -> None:
    a, b, *shapes = product
    a_zero, b_zero = (
        any_byte(x.dtype.name, shape, 3) for x, shape in zip((a, b), shapes, strict=True)
    )
    given_zeros = {"both": [a_zero, b_zero], "left": [a_zero], "none": []}[zeros]
    read = [a, b, *given_zeros]

    (y,) = run_node("MatMulInteger", read, constant=[i for i in constant if i < len(read)])

    a_zero, b_zero = (*given_zeros, *[np.zeros((), np.int8)] * 2)[:2]
    wanted = centred_product(a, a_zero, b, b_zero).astype(np.int32)
    np.testing.assert_array_equal(y, wanted, strict=True)


@given(
    product=products(),
    scale=st.sampled_from(["float32", "float16"]),
    made=BYTES,
    constant=CONSTANT,
    seed=arrays.SEEDS,
)
@settings(max_examples=120)
def test_qlinear_matmul_rounds_the_scaled_product(
    product: Any, scale: str, made: str, constant: tuple[int, ...], seed: int
) -> None:
    a, b, *shapes = product
    a_zero, b_zero = (
        any_byte(x.dtype.name, shape, seed) for x, shape in zip((a, b), shapes, strict=True)
    )
    a_scale, b_scale = (power_of_two(scale, shape, seed) for shape in shapes)
    y_scale, y_zero = power_of_two(scale, (), seed) * 64, any_byte(made, (), seed + 1)
    read = [a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero]

    (y,) = run_node("QLinearMatMul", read, constant=[i for i in constant if i < len(read)])

    exact = centred_product(a, a_zero, b, b_zero).astype(float)
    by_row = a_scale.reshape(()) if a_scale.size == 1 else a_scale
    if by_row.ndim == 1 and b.ndim > 1:
        by_row = by_row.reshape(-1, 1)
    if by_row.ndim > 1 and b.ndim == 1:
        by_row = by_row[..., 0]
    by_column = b_scale.reshape(()) if b_scale.size == 1 else b_scale
    if by_column.ndim > 1 and a.ndim == 1:
        by_column = by_column[..., 0, :]
    wanted = saturated(exact * by_row.astype(float) * by_column / float(y_scale), y_zero)
    np.testing.assert_array_equal(y, wanted, strict=True)


def test_qlinear_matmul_agrees_with_the_reference_where_nothing_is_between() -> None:
    a, b = any_byte("uint8", (5, 7), 1), any_byte("int8", (7, 4), 2)
    scales = [np.array(s, np.float32) for s in (0.0061, 0.0073, 0.19)]
    zeros = [np.array(117, np.uint8), np.array(-3, np.int8), np.array(4, np.int8)]
    read = [a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2]]

    (y,) = run_node("QLinearMatMul", read)

    np.testing.assert_array_equal(y, onnx_reference("QLinearMatMul", read)[0], strict=True)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("depth", [257, 259, 40_000])
def test_products_of_the_largest_bytes_stay_exact(depth: int, sign: int) -> None:
    a, b = np.full((1, depth), 255, np.uint8), np.full((depth, 1), 255, np.uint8)
    a[0, 0] = 254
    a_zero = np.array(0, np.uint8)
    if sign < 0:
        a, a_zero = 255 - a, np.array(255, np.uint8)

    (y,) = run_node("MatMulInteger", [a, b, a_zero, np.array(0, np.uint8)])

    exact = sign * (255 * 255 * (depth - 1) + 254 * 255)
    assert y.item() == (exact + 2**31) % 2**32 - 2**31


def computed_in(op: str, read: list[AnyArray | None], constant: tuple[int, ...]) -> str:
    graph = single_node_graph(op, read, None, 1, constant)
    node, found = graph.nodes[0], find_kernel(op, "cpu")
    assert found is not None
    assert found.scratch is not None
    return found.scratch(graph.call(node), graph.output_specs(node))[0].dtype.name


def test_small_constant_weights_are_multiplied_in_float32() -> None:
    a, small = any_byte("uint8", (2, 1000), 1), np.ones((1000, 3), np.int8)

    assert computed_in("MatMulInteger", [a, small], ()) == "float64"
    assert computed_in("MatMulInteger", [a, small], (1,)) == "float32"


def of_bytes(case: Case, x: str, w: str, seed: int) -> Case:
    return Case(
        any_byte(x, case.x.shape, seed), any_byte(w, case.w.shape, seed + 1), None, case.attributes
    )


def exact_sums(case: Case, x_zero: AnyArray, w_zero: AnyArray) -> AnyArray:
    """Return the convolution of centred bytes, in float64, which has room for it."""
    per_feature = w_zero.reshape((-1,) + (1,) * (case.w.ndim - 1)).astype(float)
    x = case.x.astype(float) - x_zero.reshape(()).astype(float)
    return convolved(Case(x, case.w.astype(float) - per_feature, None, case.attributes))


@given(
    case=cases() | cases(depthwise=True) | cases(strides=st.just(1), kernels=st.just(1)),
    dtypes=per_axis(2, BYTES),  # type: ignore[arg-type]
    per_feature=st.booleans(),
    n_inputs=st.integers(2, 4),
    constant=CONSTANT,
    seed=arrays.SEEDS,
)
@settings(max_examples=100)
def test_conv_integer_is_the_exact_convolution(
    case: Case,
    dtypes: tuple[str, str],
    per_feature: bool,
    n_inputs: int,
    constant: tuple[int, ...],
    seed: int,
) -> None:
    case = of_bytes(case, *dtypes, seed)
    x_zero = any_byte(dtypes[0], (), seed + 2)
    w_zero = any_byte(dtypes[1], len(case.w) if per_feature else (), seed + 3)
    read = [case.x, case.w, x_zero, w_zero][:n_inputs]
    fixed = [i for i in constant if i < n_inputs]

    (y,) = run_node("ConvInteger", read, case.attributes, constant=fixed)

    x_zero, w_zero = (*read[2:], *[np.zeros((), np.int8)] * 2)[:2]
    np.testing.assert_array_equal(y, exact_sums(case, x_zero, w_zero).astype(np.int32), strict=True)


@given(
    case=cases(),
    dtypes=per_axis(3, BYTES),  # type: ignore[arg-type]
    per_feature=st.booleans(),
    bias=st.sampled_from([None, 100, 2**30]),
    constant=CONSTANT,
    seed=arrays.SEEDS,
)
@settings(max_examples=100)
def test_qlinear_conv_rounds_the_scaled_convolution(
    case: Case,
    dtypes: tuple[str, str, str],
    per_feature: bool,
    bias: int | None,
    constant: tuple[int, ...],
    seed: int,
) -> None:
    case, features = of_bytes(case, *dtypes[:2], seed), len(case.w)
    each = (features,) if per_feature else ()
    x_zero, w_zero = any_byte(dtypes[0], (), seed + 2), any_byte(dtypes[1], each, seed + 3)
    x_scale, w_scale = power_of_two("float32", (1,), seed), power_of_two("float32", each, seed)
    y_scale = power_of_two("float32", (), seed) * np.array(64, np.float32)
    y_zero = any_byte(dtypes[2], (), seed + 4)
    read = [case.x, x_scale, x_zero, case.w, w_scale, w_zero, y_scale, y_zero]
    b = np.zeros(features, np.int32)
    if bias is not None:
        b = np.random.default_rng(seed).integers(-bias, bias, features, np.int32)
        read.append(b)
    fixed = [i for i in constant if i < len(read)]

    (y,) = run_node("QLinearConv", read, case.attributes, constant=fixed)

    along = (-1,) + (1,) * (y.ndim - 2)
    sums = exact_sums(case, x_zero, w_zero) + b.reshape(along)
    scaled = sums.astype(np.float32) * (x_scale * w_scale / y_scale).reshape(along)
    np.testing.assert_array_equal(y, saturated(scaled, y_zero), strict=True)


def test_wide_convolutions_of_bytes_stay_exact() -> None:
    attributes = {"pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1), "group": 1}
    x, w = any_byte("uint8", (1, 70, 15, 15), 1), any_byte("int8", (66, 70, 3, 3), 2)
    zeros = np.array(128, np.uint8), np.array(0, np.int8)

    (y,) = run_node("ConvInteger", [x, w, *zeros], attributes, constant=(1, 3))

    wanted = exact_sums(Case(x, w, None, attributes), *zeros)
    np.testing.assert_array_equal(y, wanted)


def test_an_empty_batch_with_a_bias_is_nothing() -> None:
    one, zero = np.array(1, np.float32), np.array(0, np.uint8)
    x, w = np.zeros((0, 2, 4, 4), np.uint8), np.ones((3, 2, 3, 3), np.uint8)
    bias = np.arange(3, dtype=np.int32)

    (y,) = run_node("QLinearConv", [x, one, zero, w, one, zero, one, zero, bias])

    assert y.shape == (0, 3, 2, 2)


@pytest.mark.parametrize(
    ("a_zero", "b_zero"), [((5,), ()), ((), (4,)), ((3, 1, 1), ()), ((), (3, 1))]
)
def test_zero_points_that_are_neither_per_row_nor_per_column_are_refused(
    a_zero: tuple[int, ...], b_zero: tuple[int, ...]
) -> None:
    zeros = np.zeros(a_zero, np.uint8), np.zeros(b_zero, np.int8)

    with pytest.raises(ShapeError):
        run_node(
            "MatMulInteger", [any_byte("uint8", (4, 3), 1), any_byte("int8", (3, 5), 1), *zeros]
        )


def test_a_zero_point_of_another_dtype_is_refused() -> None:
    with pytest.raises(ShapeError, match="one dtype"):
        run_node(
            "MatMulInteger",
            [np.ones((2, 2), np.uint8), np.ones((2, 2), np.uint8), np.array(1, np.int8)],
        )
