from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.kernels.blocks import BLOCK
from single_node import run_node

Int32s = np.ndarray[Any, np.dtype[np.int32]]

LOWEST, HIGHEST = -(2**31), 2**31 - 1
NUMBERS = st.one_of(
    st.integers(-300, 300),
    st.sampled_from([LOWEST, LOWEST + 1, HIGHEST, HIGHEST - 1, 1 << 30, -(1 << 30)]),
    st.integers(LOWEST, HIGHEST),
)
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)
BITS = st.integers(1, 32)


def arrays(shape: Any = SHAPES) -> st.SearchStrategy[Int32s]:
    return hnp.arrays(np.int32, shape, elements=NUMBERS)


PAIRS = hnp.mutually_broadcastable_shapes(
    num_shapes=2, min_dims=1, max_dims=4, min_side=1, max_side=4
).flatmap(lambda found: st.tuples(*map(arrays, found.input_shapes)))


def wrapped(number: int) -> int:
    """Return a number modulo 2³², as a signed integer."""
    return (number + 2**31) % 2**32 - 2**31


def each(function: Callable[..., int], *arrays: Int32s) -> Int32s:
    """Apply a function of Python integers to each element, modulo 2³²."""
    found = np.vectorize(lambda *numbers: wrapped(function(*map(int, numbers))), otypes=[np.int64])
    return np.asarray(found(*arrays), np.int64).astype(np.int32)


def int32s(*numbers: int) -> Int32s:
    return np.array(numbers, np.int32)


def run(op: str, *inputs: Int32s, **attributes: Any) -> Int32s:
    (y,) = run_node(f"cvm.{op}", inputs, attributes)
    assert y.dtype == np.int32
    return y


def truncated_quotient(a: int, b: int) -> int:
    if b == 0:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


BINARY: dict[str, Callable[[int, int], int]] = {
    "broadcast_add": operator.add,
    "broadcast_sub": operator.sub,
    "broadcast_mul": operator.mul,
    "broadcast_max": max,
    "broadcast_div": truncated_quotient,
    "broadcast_greater": operator.gt,
}


@pytest.mark.parametrize("op", BINARY)
@settings(max_examples=25, deadline=None)
@given(pair=PAIRS)
def test_binary_operators_are_python_arithmetic_modulo_two_to_the_32(
    op: str, pair: tuple[Int32s, Int32s]
) -> None:
    np.testing.assert_array_equal(run(op, *pair), each(BINARY[op], *pair))


@pytest.mark.parametrize(("op", "sign"), [("elemwise_add", 1), ("elemwise_sub", -1)])
@settings(max_examples=20, deadline=None)
@given(pair=SHAPES.flatmap(lambda shape: st.tuples(arrays(shape), arrays(shape))))
def test_elementwise_sums_wrap(op: str, sign: int, pair: tuple[Int32s, Int32s]) -> None:
    np.testing.assert_array_equal(run(op, *pair), each(lambda a, b: a + sign * b, *pair))


def test_division_rounds_toward_zero_and_by_zero_gives_zero() -> None:
    a, b = int32s(7, -7, 7, -7, 5, LOWEST, LOWEST), int32s(2, 2, -2, -2, 0, -1, 0)
    assert run("broadcast_div", a, b).tolist() == [3, -3, -3, 3, 0, LOWEST, 0]


@settings(max_examples=50, deadline=None)
@given(divisor=st.integers(1, 60_000), quotient=st.integers(1, 60_000), off=st.integers(-1, 1))
def test_division_is_exact_beside_whole_quotients(divisor: int, quotient: int, off: int) -> None:
    a, b = int32s(wrapped(divisor * quotient + off)), int32s(divisor)
    assert run("broadcast_div", a, b).tolist() == [truncated_quotient(int(a[0]), divisor)]


UNARY: dict[str, Callable[[int], int]] = {
    "relu": lambda x: max(x, 0),
    "abs": lambda x: x if x > 0 else -x,
    "negative": operator.neg,
    "precision": lambda x: max(len(f"{abs(x):b}"), 1),
}


@pytest.mark.parametrize("op", UNARY)
@settings(max_examples=25, deadline=None)
@given(x=arrays())
def test_unary_operators_are_python_arithmetic(op: str, x: Int32s) -> None:
    np.testing.assert_array_equal(run(op, x), each(UNARY[op], x))


def test_precision_counts_the_bits_of_the_magnitude() -> None:
    x = int32s(0, 1, -1, 2, 3, 4, 7, -8, 127, 128, HIGHEST, -HIGHEST, LOWEST)
    assert run("precision", x).tolist() == [1, 1, 1, 2, 2, 3, 3, 4, 7, 8, 31, 31, 32]


@settings(max_examples=25, deadline=None)
@given(x=arrays(), bounds=st.lists(st.integers(-HIGHEST, HIGHEST), min_size=2, unique=True))
def test_clip_clamps(x: Int32s, bounds: list[int]) -> None:
    low, high = sorted(bounds[:2])
    wanted = each(lambda v: sorted((low, v, high))[1], x)
    np.testing.assert_array_equal(run("clip", x, a_min=low, a_max=high), wanted)


def clamped(number: int, bits: int) -> int:
    most = (1 << (bits - 1)) - 1
    return sorted((-most, number, most))[1]


@settings(max_examples=25, deadline=None)
@given(x=arrays(), bits=BITS, is_sign=st.booleans())
def test_cvm_clip_is_symmetric_whatever_is_sign_says(x: Int32s, bits: int, is_sign: bool) -> None:
    y = run("cvm_clip", x, precision=bits, is_sign=is_sign)
    np.testing.assert_array_equal(y, each(lambda v: clamped(v, bits), x))


@settings(max_examples=40, deadline=None)
@given(x=arrays(), bits=BITS, shift=BITS)
def test_right_shift_rounds_halves_up_and_clamps(x: Int32s, bits: int, shift: int) -> None:
    y = run("right_shift", x, precision=bits, shift_bit=shift)
    wanted = each(lambda v: clamped((v + 2 ** (shift - 1)) // 2**shift, bits), x)
    np.testing.assert_array_equal(y, wanted)


def test_right_shift_by_one_is_as_in_the_table() -> None:
    x = int32s(-5, -4, -3, -2, -1, 0, 1, 2, 3, 5)
    y = run("right_shift", x, precision=32, shift_bit=1)
    assert y.tolist() == [-2, -2, -1, -1, 0, 0, 1, 1, 2, 3]


def test_right_shift_does_not_overflow_and_always_clamps() -> None:
    assert run("right_shift", int32s(HIGHEST), precision=32, shift_bit=1).tolist() == [1 << 30]
    assert run("right_shift", int32s(-1), precision=32, shift_bit=31).tolist() == [0]
    assert run("right_shift", int32s(-1652060256), precision=2, shift_bit=30).tolist() == [-1]


@settings(max_examples=40, deadline=None)
@given(x=arrays(), bits=BITS, shift=BITS)
def test_left_shift_clamps_the_exact_product(x: Int32s, bits: int, shift: int) -> None:
    y = run("left_shift", x, precision=bits, shift_bit=shift)
    np.testing.assert_array_equal(y, each(lambda v: clamped(v * 2**shift, bits), x))


@pytest.mark.parametrize("op", ["left_shift", "right_shift", "precision"])
def test_work_in_blocks_reaches_every_element(op: str) -> None:
    x = np.random.default_rng(3).integers(-5000, 5000, 2 * BLOCK + 17, np.int32)
    if op == "precision":
        wanted = np.frexp(np.abs(x).astype(float))[1]
        np.testing.assert_array_equal(run(op, x), np.maximum(wanted, 1))
    else:
        factor = 2.0**3 if op == "left_shift" else 2.0**-3
        wanted = np.floor(x * factor + 0.5).astype(np.int32)
        np.testing.assert_array_equal(run(op, x, precision=31, shift_bit=3), wanted)


@settings(max_examples=25, deadline=None)
@given(pair=SHAPES.flatmap(lambda shape: st.tuples(arrays(shape), arrays(shape))), data=st.data())
def test_where_takes_elements(pair: tuple[Int32s, Int32s], data: st.DataObject) -> None:
    x, y = pair
    condition = data.draw(hnp.arrays(np.int32, x.shape, elements=st.integers(-1, 1)))
    wanted = each(lambda c, a, b: a if c else b, condition, x, y)
    np.testing.assert_array_equal(run("where", condition, x, y), wanted)


def test_where_takes_whole_rows() -> None:
    x = np.arange(12, dtype=np.int32).reshape(3, 2, 2)
    y = run("where", int32s(0, -7, 1), x, -x)
    assert y.tolist() == [[[0, -1], [-2, -3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]
