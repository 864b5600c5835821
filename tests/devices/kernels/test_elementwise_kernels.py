from __future__ import annotations

from collections.abc import Callable
from typing import Any

import arrays
import numpy as np
import onnx
import pytest
from arrays import FLOATS, INTEGERS, NUMBERS, SIGNED_INTEGERS, AnyArray, operands, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.kernels.blocks import BLOCK
from single_node import onnx_reference, run_node

FEW = settings(max_examples=25)

BINARY = {
    "Add": NUMBERS,
    "Sub": NUMBERS,
    "Mul": NUMBERS,
    "Div": FLOATS,
    "BitwiseAnd": INTEGERS,
    "BitwiseOr": INTEGERS,
    "BitwiseXor": INTEGERS,
}

UNARY = {
    "Abs": NUMBERS,
    "Neg": FLOATS + SIGNED_INTEGERS,
    "Sign": NUMBERS,
    "BitwiseNot": INTEGERS,
    **dict.fromkeys(("Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Exp", "Log"), FLOATS),
    **dict.fromkeys(("Sin", "Cos", "Tan", "Asin", "Acos", "Atan"), FLOATS),
    **dict.fromkeys(("Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh"), FLOATS),
}

TOLERANCE = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}


def assert_close(got: AnyArray, wanted: AnyArray) -> None:
    """Compare floats within their dtype's tolerance, everything else exactly."""
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    tolerance = TOLERANCE.get(got.dtype.name, 0)
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", BINARY)
@given(data=st.data())
@FEW
def test_arithmetic_broadcasts_as_onnx_says(op: str, data: st.DataObject) -> None:
    inputs = data.draw(operands(BINARY[op]))

    (y,) = run_node(op, inputs)

    np.testing.assert_array_equal(y, onnx_reference(op, inputs)[0], strict=True)


@pytest.mark.parametrize("op", UNARY)
@given(data=st.data())
@FEW
def test_functions_of_one_input_are_as_onnx_says(op: str, data: st.DataObject) -> None:
    inputs = data.draw(operands(UNARY[op], 1))

    (y,) = run_node(op, inputs)

    assert_close(y, onnx_reference(op, inputs)[0])


def test_round_takes_halves_to_the_even_neighbour() -> None:
    (y,) = run_node("Round", [np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], "float32")])

    assert y.tolist() == [-2, -2, 0, 0, 2, 2]


def exactly(operation: Callable[[int, int], int], dtype: str, x: AnyArray, y: AnyArray) -> AnyArray:
    """Apply an operation on Python integers, keep the low bits."""
    bits = np.dtype(dtype).itemsize * 8
    whole = np.vectorize(lambda a, b: operation(int(a), int(b)) % 2**bits, otypes=[object])
    wrapped: AnyArray = np.asarray(whole(x, y)).astype(f"uint{bits}").astype(dtype)
    return wrapped


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def int_power(base: int, exponent: int) -> int:
    if exponent >= 0:
        return int(base**exponent)
    return truncated(1, base**-exponent)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_rounds_toward_zero(dtype: str) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = np.array([low, low + 1, max(low, -7), 0, 1, 7, high - 1, high], dtype)
    b = np.array([low or 1, max(low, -2) or 1, 1, 2, 3, high], dtype).reshape(-1, 1)

    (y,) = run_node("Div", [a, b])

    np.testing.assert_array_equal(y, exactly(truncated, dtype, a, b), strict=True)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("op", "attributes"), [("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})])
def test_integers_divided_by_zero_do_not_crash(
    op: str, attributes: dict[str, Any], dtype: str
) -> None:
    (y,) = run_node(op, [np.array([5, 0], dtype), np.zeros(2, dtype)], attributes)

    assert y.shape == (2,)


@given(inputs=operands(INTEGERS), fmod=st.booleans())
@settings(max_examples=60)
def test_modulo_of_integers_is_exact(inputs: list[AnyArray], fmod: bool) -> None:
    a, b = inputs[0], np.where(inputs[1] == 0, inputs[1].dtype.type(3), inputs[1])

    (y,) = run_node("Mod", [a, b], {"fmod": fmod})

    remainder = (lambda p, q: p - q * truncated(p, q)) if fmod else (lambda p, q: p % q)
    np.testing.assert_array_equal(y, exactly(remainder, a.dtype.name, a, b), strict=True)


@given(inputs=operands(FLOATS), fmod=st.booleans())
@settings(max_examples=60)
def test_modulo_of_floats_is_as_onnx_says(inputs: list[AnyArray], fmod: bool) -> None:
    (y,) = run_node("Mod", inputs, {"fmod": fmod})

    assert_close(y, onnx_reference("Mod", inputs, {"fmod": int(fmod)})[0])


@given(
    base=st.sampled_from(FLOATS),
    exponent=st.sampled_from(NUMBERS),
    shapes=arrays.broadcastable(2),
    seed=arrays.SEEDS,
)
@settings(max_examples=60)
def test_powers_of_floats_take_exponents_of_any_dtype(
    base: str, exponent: str, shapes: list[tuple[int, ...]], seed: int
) -> None:
    inputs = [
        random_array(base, shapes[0], seed, 0, 5),
        random_array(exponent, shapes[1], seed + 1, -2, 3),
    ]

    (y,) = run_node("Pow", inputs)

    assert y.dtype == base
    with np.errstate(all="ignore"):
        wanted = np.power(inputs[0].astype("float64"), inputs[1].astype("float64")).astype(base)
    tolerance = TOLERANCE[base]
    np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("exponent_dtype", ["float32", "int64"])
@pytest.mark.parametrize("constant", [{1}, ()])
@pytest.mark.parametrize("exponent", [-1, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [0, 5, 2 * BLOCK + 7])
def test_powers_by_one_number_are_those_of_each_element(
    size: int, exponent: int, constant: set[int], exponent_dtype: str, dtype: str
) -> None:
    x = random_array(dtype, (size,), 0, -9, 9)
    x = np.where(np.abs(x) < 0.01, x.dtype.type(1), x)

    (y,) = run_node("Pow", [x, np.array([exponent], exponent_dtype)], constant=constant)

    with np.errstate(over="ignore"):  # 9⁵ is infinite in half precision
        wanted = (x.astype("float64") ** exponent).astype(dtype)
    np.testing.assert_allclose(y, wanted, rtol=2 * TOLERANCE[dtype])


def test_the_square_root_as_a_power_is_exact() -> None:
    (y,) = run_node("Pow", [np.array([0, 4, 9], "float32"), np.array(0.5, "float32")])

    assert y.tolist() == [0, 2, 3]


@given(
    base=st.sampled_from(SIGNED_INTEGERS),
    exponent=st.sampled_from(INTEGERS),
    shapes=arrays.broadcastable(2),
    seed=arrays.SEEDS,
)
@settings(max_examples=60)
def test_powers_of_integers_are_exact_and_round_toward_zero(
    base: str, exponent: str, shapes: list[tuple[int, ...]], seed: int
) -> None:
    x = random_array(base, shapes[0], seed, -4, 4)
    x = np.where(x == 0, x.dtype.type(1), x)
    e = random_array(exponent, shapes[1], seed + 1, -3, 9)

    (y,) = run_node("Pow", [x, e])

    np.testing.assert_array_equal(y, exactly(int_power, base, x, e), strict=True)


@pytest.mark.parametrize(
    ("base", "exponent"), [("uint64", "int8"), ("int64", "uint64"), ("int8", "uint64")]
)
def test_powers_of_integers_are_not_rounded_to_floats(base: str, exponent: str) -> None:
    (y,) = run_node("Pow", [np.array([3, -1], np.int8).astype(base), np.array([39, 9], exponent)])

    bits = 8 * y.itemsize
    assert [int(number) % 2**bits for number in y] == [3**39 % 2**bits, 2**bits - 1]


@given(inputs=operands(INTEGERS), left=st.booleans())
@settings(max_examples=60)
def test_shifts_beyond_the_width_leave_the_sign(inputs: list[AnyArray], left: bool) -> None:
    x, by = inputs[0], inputs[1] * inputs[1].dtype.type(9)
    bits = x.dtype.itemsize * 8

    (y,) = run_node("BitShift", [x, by], {"direction": "LEFT" if left else "RIGHT"})

    def shifted(a: int, b: int) -> int:
        if not 0 <= b < bits:
            return -1 if a < 0 and not left else 0
        return a << b if left else a >> b

    np.testing.assert_array_equal(y, exactly(shifted, x.dtype.name, x, by), strict=True)


@pytest.mark.parametrize(("op", "dtypes"), [("Max", NUMBERS), ("Min", NUMBERS), ("Sum", FLOATS)])
@given(data=st.data(), count=st.integers(1, 4))
@FEW
def test_operators_of_many_inputs_broadcast_all(
    op: str, dtypes: tuple[str, ...], data: st.DataObject, count: int
) -> None:
    inputs = data.draw(operands(dtypes, count))

    (y,) = run_node(op, inputs)

    assert_close(y, np.broadcast_to(onnx_reference(op, inputs)[0], y.shape))


@given(inputs=operands(FLOATS, 3), count=st.integers(1, 3))
@FEW
def test_mean_is_the_sum_over_the_count(inputs: list[AnyArray], count: int) -> None:
    (y,) = run_node("Mean", inputs[:count])

    wanted = sum(x.astype("float64") for x in inputs[:count]) / count
    tolerance = 10 * TOLERANCE[y.dtype.name]
    np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=tolerance)


def test_maximum_hands_nan_on() -> None:
    (y,) = run_node("Max", [np.array([np.nan, 1], "float32"), np.array([0, np.nan], "float32")])

    assert np.isnan(y).all()


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("size", [0, 5, 5000])
@pytest.mark.parametrize(("low", "high"), [(None, None), (2, None), (None, 4), (2, 4), (4, 2)])
def test_clip_keeps_values_between_its_bounds(
    dtype: str, size: int, low: int | None, high: int | None
) -> None:
    x = random_array(dtype, (size,), 1)
    bounds = [None if bound is None else np.array(bound, dtype) for bound in (low, high)]

    (y,) = run_node("Clip", [x, *bounds])

    wanted = [max(v, low) if low is not None else v for v in x.tolist()]
    assert y.tolist() == [min(v, high) if high is not None else v for v in wanted]


def test_clip_takes_a_bound_of_rank_one_on_a_scalar() -> None:
    (y,) = run_node("Clip", [np.array(7, "float32"), None, np.array([3], "float32")])

    assert y.shape == ()
    assert y == 3


@pytest.mark.parametrize("source", arrays.EVERY)
@pytest.mark.parametrize("target", arrays.EVERY)
def test_cast_converts_between_all_dtypes(source: str, target: str) -> None:
    x = random_array(source, (2, 3), 5, 0)

    (y,) = run_node("Cast", [x], {"to": target})
    (like,) = run_node("CastLike", [x, np.zeros((), target)])

    wanted = [_convert(v, np.dtype(target).kind) for v in x.reshape(-1).tolist()]
    np.testing.assert_array_equal(y, np.array(wanted).astype(target).reshape(2, 3), strict=True)
    np.testing.assert_array_equal(like, y, strict=True)


def _convert(value: Any, kind: str) -> Any:
    real = value.real if isinstance(value, complex) and kind in "iuf" else value
    return {"b": bool, "i": int, "u": int, "f": float, "c": complex}[kind](real)


def test_cast_of_integers_keeps_the_low_bits() -> None:
    (y,) = run_node("Cast", [np.array([200, -129, 2**40 + 3], "int64")], {"to": "int8"})

    assert y.tolist() == [-56, 127, 3]


def test_cast_of_large_floats_to_half_gives_infinity() -> None:
    (y,) = run_node("Cast", [np.array([1e6, -1e6], "float32")], {"to": "float16"})

    assert y.tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("dtype", arrays.EVERY)
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)])
def test_identity_copies_where_no_view_is_possible(dtype: str, shape: tuple[int, ...]) -> None:
    x = random_array(dtype, shape, 3)

    (y,) = run_node("Identity", [x], constant={0})

    np.testing.assert_array_equal(y, x, strict=True)


def test_dropout_keeps_everything_in_inference() -> None:
    x = random_array("float32", (4, 5), 2)

    inputs: list[AnyArray | None] = [x, np.array(0.5, "float32"), np.array(False)]
    y, mask = run_node("Dropout", inputs, n_outputs=2, constant={2})

    np.testing.assert_array_equal(y, x)
    assert mask.all()


def test_onnx_numbers_dtypes_as_this_test_expects() -> None:
    # Guards the oracle: Cast in onnx.reference takes ONNX's number for a dtype.
    (y,) = onnx_reference("Cast", [np.ones(2, "int8")], {"to": onnx.TensorProto.FLOAT})

    assert y.dtype == np.float32
