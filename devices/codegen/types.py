"""Types and numbers in C."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...graph.values.dtypes import kind_of

CTYPES = {
    "bool": "u8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}
"""The C types of elements. A bool is 0 or 1."""

NARROW = ("float16", "bfloat16")
"""Floats that are stored as bits: computed in f32, read by LOAD_F16(p, i), written by STORE_F16(p,
i, x), which rounds to nearest even; likewise for BF16."""


def to_ctype(dtype: np.dtype[Any]) -> str:
    return CTYPES[dtype.name]


def to_dtype_name(c: str) -> str:
    return next(name for name, known in CTYPES.items() if known == c and name != "bool")


def to_computed_type(dtype: np.dtype[Any]) -> str:
    """Return the C type in which elements of `dtype` are computed: f32 for floats of 16 bits."""
    return "f32" if is_narrow(dtype) else to_ctype(dtype)


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Return whether floats of `dtype` are computed in f32, and rounded when stored."""
    return dtype.name in NARROW


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether `dtype` has floats; numpy's own letter for bfloat16 differs."""
    return kind_of(dtype) == "f"


def load(dtype: np.dtype[Any], pointer: str, index: str) -> str:
    if is_narrow(dtype):
        return f"LOAD_{to_ctype(dtype).upper()}({pointer}, {index})"
    return f"{pointer}[{index}]"


def load_factor(dtype: np.dtype[Any], pointer: str, index: str) -> str:
    """Return the expression of factor `pointer[index]`, of `dtype`; any NaN may replace a NaN.

    Windows and tiles read elements repeatedly, so each read takes as few instructions as possible.
    """
    if dtype.name == "float16":
        return f"FACTOR_F16({pointer}, {index})"
    return load(dtype, pointer, index)


def store(dtype: np.dtype[Any], pointer: str, index: str, value: str) -> str:
    if is_narrow(dtype):
        return f"STORE_{to_ctype(dtype).upper()}({pointer}, {index}, {value});"
    return f"{pointer}[{index}] = {value};"


def write_rounding(dtype: np.dtype[Any], value: str) -> str:
    """Return the expression of `value` after it was stored as `dtype` and loaded again."""
    return f"ROUND_{to_ctype(dtype).upper()}({value})" if is_narrow(dtype) else value


def write_literal(value: float | int | bool, c: str) -> str:
    """Return `value` as C writes it, to the last bit, in the type `c`: "f32", "i64"..."""
    if c in ("f32", "f64"):
        return _write_real(float(value), c)
    number = int(value)
    if c == "i64" and number == -(1 << 63):  # C has no negative literals, only a minus
        return "(-9223372036854775807L - 1L)"
    if c == "i32" and number == -(1 << 31):
        return "(-2147483647 - 1)"
    suffix = {"i64": "L", "u64": "UL", "u32": "U"}.get(c, "")
    text = f"{number}{suffix}"
    return f"({text})" if number < 0 else text


def _write_real(value: float, c: str) -> str:
    if math.isnan(value):
        return f"NAN_{c.upper()}"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}INF_{c.upper()}"
    if c == "f32":
        value = float(np.float32(value))
        return (
            f"({value.hex()}f)" if value else ("(-0.0f)" if math.copysign(1, value) < 0 else "0.0f")
        )
    return f"({value.hex()})" if value else ("(-0.0)" if math.copysign(1, value) < 0 else "0.0")
