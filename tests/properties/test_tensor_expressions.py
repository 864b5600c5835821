"""Random expressions over tensors of a builder, and the same over numpy's arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SHAPE = (3, 4)
Shown = Callable[[Any], Any]

UNARY: dict[str, Shown] = {
    "-": operator.neg,
    "+": operator.pos,
    "abs": abs,
    "T.T": lambda x: x.T.T,
    "x[::-1]": lambda x: x[::-1],
    "x[:, 1:][..., None, 0]": lambda x: x[:, 1:][..., None, 0] + 0 * x,
    "reshape": lambda x: x.reshape(2, -1).reshape(*SHAPE),
    "transpose": lambda x: x.transpose(1, 0).reshape(SHAPE),
    "sum": lambda x: x - x.sum(axis=1, keepdims=True),
    "max": lambda x: x.max(axis=(0, 1)) - x,
    "min": lambda x: x.min(0) + x,
    "prod": lambda x: x[:1].prod() + x,
    "cumsum": lambda x: x.cumsum(axis=1),
    "rows": lambda x: x[[2, 0, 2]],
    "squeeze": lambda x: x[:, None].squeeze(1),
    "clip": lambda x: x.clip(-2, 3),
    "argmax": lambda x: x + x.argmax(axis=1, keepdims=True).astype(x.dtype),
    "first": lambda x: x + x.argmin().astype(x.dtype),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "@": lambda x, y: x @ y.T @ y,
    "<": lambda x, y: (x < y).astype(x.dtype),
    "<=": lambda x, y: (x <= y).astype(x.dtype),
    ">": lambda x, y: (x > y).astype(x.dtype),
    ">=": lambda x, y: (x >= y).astype(x.dtype),
    "&|^~": lambda x, y: (((x > y) | ~(x > 0)) & ((y > 1) ^ (x >= 1))).astype(x.dtype),
}
OF_INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "//": lambda x, y: x // (abs(y) + 1),
    "// negative": lambda x, y: x // (-abs(y) - 1),
    "%": lambda x, y: x % (abs(y) + 1),
    "bits": lambda x, y: (x & y) | (~x ^ y),
}
NUMBERS: dict[str, Callable[[Any, int], Any]] = {
    "x+n": lambda x, n: x + n,
    "n-x": lambda x, n: n - x,
    "n*x": lambda x, n: n * x,
    "x**2": lambda x, n: x**2,
    "x>n": lambda x, n: (x > n).astype(x.dtype),
    "n>=x": lambda x, n: (n >= x).astype(x.dtype),
}


class Step(NamedTuple):
    """What is applied, to which of the values so far, and with which number."""

    name: str
    of: int
    other: int
    number: int


steps = st.builds(
    Step,
    st.sampled_from([*UNARY, *BINARY, *OF_INTEGERS, *NUMBERS]),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(-3, 3),
)


def evaluate(chosen: list[Step], values: list[Any], fold: Shown) -> Any:
    """Return the last value of a program; `fold` keeps numbers small."""
    made = list(values)
    for name, of, other, number in chosen:
        x, y = made[of % len(made)], made[other % len(made)]
        if name in UNARY:
            z = UNARY[name](x)
        elif name in NUMBERS:
            z = NUMBERS[name](x, number)
        else:
            z = (BINARY | OF_INTEGERS)[name](x, y)
        made.append(fold(z))
    return made[-1]


def check(chosen: list[Step], arrays: list[Any], fold: Shown) -> None:
    b = pl.GraphBuilder("expression")
    names = [f"x{index}" for index in range(len(arrays))]
    tensors = [
        b.input(name, array.dtype, array.shape) for name, array in zip(names, arrays, strict=True)
    ]
    made = evaluate(chosen, tensors, fold)
    wanted = evaluate(chosen, arrays, fold)
    assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
    b.output("y", made)
    found = pl.run(b.build(), dict(zip(names, arrays, strict=True)), devices=["cpu"])["y"]
    np.testing.assert_array_equal(found, wanted)


def grids(low: int, high: int) -> st.SearchStrategy[Any]:
    row = st.lists(st.integers(low, high), min_size=4, max_size=4)
    return st.lists(row, min_size=3, max_size=3)


@given(st.lists(steps, min_size=1, max_size=6), grids(-5, 5), grids(-5, 5))
def test_expressions_of_integers_are_numpy_s(chosen: list[Step], a: Any, b: Any) -> None:
    check(chosen, [np.array(a), np.array(b)], lambda x: x % 11 - 5)


@given(st.lists(steps, min_size=1, max_size=4), grids(-5, 5), grids(-5, 5))
def test_expressions_of_floats_are_numpy_s(chosen: list[Step], a: Any, b: Any) -> None:
    """Whole numbers, which both compute exactly, in any order of sums."""
    kept = [step for step in chosen if step.name not in OF_INTEGERS]
    if kept:
        check(kept, [np.array(a, "f8"), np.array(b, "f8")], lambda x: x.clip(-7, 7))


@pytest.mark.parametrize("name", [*UNARY, *BINARY, *OF_INTEGERS, *NUMBERS])
def test_each_operation_is_numpy_s(name: str) -> None:
    """By itself, unfolded: in long expressions one may be hidden behind the others."""
    random = np.random.default_rng(len(name))
    for dtype in ("i8", "f8") if name not in OF_INTEGERS else ("i8",):
        arrays = [random.integers(-9, 9, SHAPE).astype(dtype) for _ in range(2)]
        for number in (-3, 2):
            check([Step(name, 0, 1, number)], arrays, lambda x: x)


bounds = st.one_of(st.none(), st.integers(-6, 6))
slices = st.builds(slice, bounds, bounds, st.sampled_from([None, 1, 2, 3, -1, -2]))
places = st.one_of(
    st.integers(-2, 1),
    st.lists(st.integers(-2, 1), max_size=3).map(lambda one: np.array(one, int)),
    st.just(np.array([[0, 1], [1, -1]])),
)


@st.composite
def keys(draw: st.DrawFn) -> list[Any]:
    """Draw an index with an entry for each axis at most, None among them, and one ellipsis."""
    key: list[Any] = [
        draw(st.one_of(slices, slices, places)) for _ in range(draw(st.integers(1, 3)))
    ]
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        key.insert(draw(st.integers(0, len(key))), None)
    return key


def is_ambiguous(key: list[Any]) -> bool:
    """Return whether numpy's answer is hardly what was meant: arrays together, or one apart."""
    used = sum(one is not None and one is not Ellipsis for one in key)
    spread = [
        entry for one in key for entry in ([slice(None)] * (3 - used) if one is Ellipsis else [one])
    ]
    chosen = [place for place, one in enumerate(spread) if isinstance(one, int | np.ndarray)]
    arrays = [place for place in chosen if isinstance(spread[place], np.ndarray)]
    return len(arrays) > 1 or (bool(arrays) and chosen[-1] - chosen[0] >= len(chosen))


@settings(max_examples=200)
@given(keys(), st.booleans())
def test_indices_are_numpy_s(key: list[Any], named: bool) -> None:
    array = np.arange(2 * 3 * 5).reshape(2, 3, 5)
    b = pl.GraphBuilder("index")
    x = b.input("x", array.dtype, array.shape)
    given_key = tuple(
        b.constant(one) if named and isinstance(one, np.ndarray) else one for one in key
    )
    if is_ambiguous(key):
        with pytest.raises(pl.OperatorError, match=r"several arrays|between an array"):
            _ = x[given_key]
        return
    made = x[given_key]
    wanted = array[tuple(key)]
    assert made.shape == wanted.shape
    b.output("y", made)
    np.testing.assert_array_equal(pl.run(b.build(), {"x": array}, devices=["cpu"])["y"], wanted)


@given(st.lists(st.one_of(places, slices), min_size=4, max_size=5))
def test_more_indices_than_axes_are_refused(key: list[Any]) -> None:
    x = pl.GraphBuilder("index").input("x", "int64", (2, 3, 5))
    with pytest.raises(pl.GraphError, match=r"indices|several arrays|between an array"):
        x[tuple(key)]
