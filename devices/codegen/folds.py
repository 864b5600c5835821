"""Folds of numbers: sums, products, extrema, and the places of extrema."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from .sweeps import Fold
from .types import is_float, load, to_computed_type, to_ctype, write_literal


def choose_sum_type(dtype: np.dtype[Any]) -> str:
    """Return the C type of sums of `dtype`; integers use unsigned types, which wrap around."""
    if is_float(dtype):
        return to_computed_type(dtype)
    return "u64" if dtype.itemsize == 8 else "u32"


def make_sum(c: str) -> Fold:
    """Return the fold that adds in C type `c`. The empty sum is -0 for floats: add 0 to show it."""
    rounds = c in ("f32", "f64")
    zero = write_literal(-0.0, c) if rounds else write_literal(0, c)
    return Fold(c, zero, lambda a, b: f"{a} + {b}", rounds=rounds)


def make_product(c: str) -> Fold:
    return Fold(c, write_literal(1, c), lambda a, b: f"{a} * {b}")


def make_extremum(dtype: np.dtype[Any], name: str) -> Fold:
    """Return the fold of `dtype` to the maximum (`name` is "max") or minimum ("min"), or a NaN."""
    c, sign = to_computed_type(dtype), ">" if name == "max" else "<"
    start = write_literal(find_extreme(dtype, "min" if name == "max" else "max"), c)

    def combine(a: str, b: str) -> str:
        unordered = f" || {a} != {a}" if is_float(dtype) else ""
        return f"({a} {sign} {b}{unordered} ? {a} : {b})"

    return Fold(c, start, combine)


def find_extreme(dtype: np.dtype[Any], name: str) -> float | int:
    """Return the greatest (`name` is "max") or least ("min") number of `dtype`."""
    if is_float(dtype):
        return np.inf if name == "max" else -np.inf
    if dtype.kind == "b":
        return int(name == "max")
    return int(getattr(np.iinfo(dtype), name))


def define_before(
    dtype: np.dtype[Any], name: str, *, first: bool = True, nan_first: bool = True
) -> tuple[str, str]:
    """Return a C function, and its name, which says if one element of `dtype` comes before another.

    It takes the tensor and both indices. `name` says whether the greater ("max") or the smaller
    ("min") is chosen, `nan_first` whether NaN comes before all numbers or after them, `first`
    whether the first or the last of equal elements is chosen.
    """
    t, c, sign = to_ctype(dtype), to_computed_type(dtype), ">" if name == "max" else "<"
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
    return _define_function("before", f"GLOBAL const {t}* x, i64 a, i64 b", body)


def _define_function(title: str, parameters: str, body: list[str]) -> tuple[str, str]:
    text = "\n".join(body)
    name = f"{title}_{hashlib.sha256(f'{parameters}{text}'.encode()).hexdigest()[:16]}"
    return f"FUNCTION i32 {name}({parameters}) {{\n{text}\n}}\n", name


def make_next_place(index: str, before: str) -> Fold:
    return Fold(
        index, "-1", lambda a, b: f"({a} < 0 || ({b} >= 0 && {before}(x, {b}, {a})) ? {b} : {a})"
    )


def make_place(index: str, before: str) -> Fold:
    """Return the fold to the index of the element that comes before the others of its line.

    `index` is the C type of indices, `before` the name of a function made by `define_before`.
    """
    return Fold(index, "base", lambda a, b: f"({before}(x, {a}, {b}) ? {a} : {b})")
