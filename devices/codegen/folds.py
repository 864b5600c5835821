"""Folds of numbers: sums, products, extrema, and the places of extrema."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from .sweeps import Fold
from .types import computed_type, ctype, is_float, literal, load


def sum_type(dtype: np.dtype[Any]) -> str:
    """Return the C type to add and multiply in: integers without a sign, which wrap around."""
    if is_float(dtype):
        return computed_type(dtype)
    return "u64" if dtype.itemsize == 8 else "u32"


def sum_of(c: str) -> Fold:
    """Return the fold that adds; the sum of nothing is -0 in floats: add 0 where that is shown."""
    rounds = c in ("f32", "f64")
    zero = literal(-0.0, c) if rounds else literal(0, c)
    return Fold(c, zero, lambda a, b: f"{a} + {b}", rounds=rounds)


def product_of(c: str) -> Fold:
    return Fold(c, literal(1, c), lambda a, b: f"{a} * {b}")


def extremum_of(dtype: np.dtype[Any], name: str) -> Fold:
    """Return the fold that takes the maximum (``"max"``) or minimum (``"min"``), or a NaN."""
    c, sign = computed_type(dtype), ">" if name == "max" else "<"
    start = literal(extreme(dtype, "min" if name == "max" else "max"), c)

    def combine(a: str, b: str) -> str:
        unordered = f" || {a} != {a}" if is_float(dtype) else ""
        return f"({a} {sign} {b}{unordered} ? {a} : {b})"

    return Fold(c, start, combine)


def extreme(dtype: np.dtype[Any], name: str) -> float | int:
    """Return the greatest (``"max"``) or least (``"min"``) number of a dtype."""
    if is_float(dtype):
        return np.inf if name == "max" else -np.inf
    if dtype.kind == "b":
        return int(name == "max")
    return int(getattr(np.iinfo(dtype), name))


def comes_before(
    dtype: np.dtype[Any], name: str, *, first: bool = True, nan_first: bool = True
) -> tuple[str, str]:
    """Return a function in C, and its name: whether one element is chosen before another.

    It takes the tensor and the indices of both. The greater (``"max"``) or smaller one (``"min"``)
    is, a NaN before all numbers or behind them; of equal ones the first, or else the last.
    """
    t, c, sign = ctype(dtype), computed_type(dtype), ">" if name == "max" else "<"
    over, under = "", ""
    if is_float(dtype):
        over, under = " || (p != p && q == q)", " || (q != q && p == p)"
    if not nan_first:
        over, under = under, over
    body = [
        f"const {c} p = {load(dtype, 'x', 'a')}, q = {load(dtype, 'x', 'b')};",
        f"if (p {sign} q{over}) return 1;",
        f"if (q {sign} p{under}) return 0;",
        f"return a {'<' if first else '>'} b;",
    ]
    return _function("before", f"GLOBAL const {t}* x, i64 a, i64 b", body)


def _function(title: str, parameters: str, body: list[str]) -> tuple[str, str]:
    text = "\n".join(body)
    name = f"{title}_{hashlib.sha256(f'{parameters}{text}'.encode()).hexdigest()[:16]}"
    return f"FUNCTION i32 {name}({parameters}) {{\n{text}\n}}\n", name


def next_place_of(index: str, before: str) -> Fold:
    """Return the fold that `place_of` is, where -1 stands for no element."""
    return Fold(
        index, "-1", lambda a, b: f"({a} < 0 || ({b} >= 0 && {before}(x, {b}, {a})) ? {b} : {a})"
    )


def place_of(index: str, before: str) -> Fold:
    """Return the fold to the index of the element that comes before the others of its line.

    `index` is the C type of indices, `before` the name of a function that `comes_before` made.
    """
    return Fold(index, "base", lambda a, b: f"({before}(x, {a}, {b}) ? {a} : {b})")
