"""Types and numbers in C."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

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
    "float32": "f32",
    "float64": "f64",
}
"""How elements are declared. A bool is 0 or 1. An f16 is stored bits: it is computed with as f32,
read by LOAD_F16(p, i) and written by STORE_F16(p, i, x), which rounds to nearest even."""


def ctype(dtype: np.dtype[Any]) -> str:
    """Return the C type of a dtype's elements."""
    return CTYPES[dtype.name]


def dtype_name(c: str) -> str:
    """Return the dtype of elements of a C type."""
    return next(name for name, known in CTYPES.items() if known == c and name != "bool")


def computed_type(dtype: np.dtype[Any]) -> str:
    """Return the C type that elements are computed with: f32 for halves."""
    return "f32" if dtype == np.float16 else ctype(dtype)


def load(dtype: np.dtype[Any], pointer: str, index: str) -> str:
    """Return the expression that reads an element."""
    return f"LOAD_F16({pointer}, {index})" if dtype == np.float16 else f"{pointer}[{index}]"


def store(dtype: np.dtype[Any], pointer: str, index: str, value: str) -> str:
    """Return the statement that writes an element; bools must be 0 or 1 already."""
    if dtype == np.float16:
        return f"STORE_F16({pointer}, {index}, {value});"
    return f"{pointer}[{index}] = {value};"


def literal(value: float | int | bool, c: str) -> str:
    """Return a number of a computed type as C writes it, to the last bit.

    Parameters
    ----------
    value : number
    c : str
        Its type: ``"f32"``, ``"i64"``...
    """
    if c in ("f32", "f64"):
        return _real(float(value), c)
    number = int(value)
    if c == "i64" and number == -(1 << 63):  # there are no negative literals in C, only a minus
        return "(-9223372036854775807L - 1L)"
    if c == "i32" and number == -(1 << 31):
        return "(-2147483647 - 1)"
    suffix = {"i64": "L", "u64": "UL", "u32": "U"}.get(c, "")
    text = f"{number}{suffix}"
    return f"({text})" if number < 0 else text


def _real(value: float, c: str) -> str:
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
