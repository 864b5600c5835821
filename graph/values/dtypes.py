"""Dtypes by name, and the kind of their elements: numbers, text, or Python objects.

Bfloat16 and floats of 8 bits are not in numpy, but in the package `ml_dtypes`, which is imported
when one of them is first used.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .errors import ShapeError
from .extras import get_install_command, import_extra

FLOATS_OF_8_BITS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
"""Storage dtypes, in which nothing is computed."""

EXTENSIONS = ("bfloat16", *FLOATS_OF_8_BITS)

TEXT: np.dtype[Any] = np.dtype(object)
"""The dtype of text: arrays of `str` of any length."""

OBJECT: np.dtype[Any] = np.dtype(object, metadata={"holds": "any object"})
"""The dtype of arrays of Python objects. numpy compares it equal to `TEXT`: use `has_objects`."""


def dtype_of(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the numpy dtype for `dtype`: any form of one, an extension's name, `str` or `object`.

    Raises TypeError for another value; ShapeError if its package is not installed.
    """
    if isinstance(dtype, str) and dtype in EXTENSIONS:
        _load_extensions(dtype)
    if dtype is object or (isinstance(dtype, str) and dtype == "object"):
        return OBJECT
    is_named = dtype is str or (isinstance(dtype, str) and dtype == "str")
    return TEXT if is_named or isinstance(dtype, np.dtypes.StringDType) else np.dtype(dtype)


def has_objects(dtype: np.dtype[Any]) -> bool:
    """Return whether `dtype` is `OBJECT`; False for `TEXT`."""
    return dtype.metadata is not None and dtype.kind == "O"


def hold_object(value: Any) -> Any:
    array = np.empty((), OBJECT)
    array[()] = value
    return array


def hold_objects(values: Any) -> Any:
    """Return an array of one axis that holds each of `values` as a Python object."""
    array = np.empty(len(values), OBJECT)
    for index, value in enumerate(values):  # numpy would convert sequences of equal length
        array[index] = value
    return array


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of `dtype` for `dtype_of`; numpy has one name for text and objects."""
    if dtype.kind != "O":
        return dtype.name
    return "object" if has_objects(dtype) else "str"


@cache
def kind_of(dtype: np.dtype[Any]) -> str:
    """Return numpy's letter for the kind of `dtype`: f for bfloat16, e for floats of 8 bits."""
    if dtype.name in FLOATS_OF_8_BITS:
        return "e"
    return "f" if dtype.name == "bfloat16" else dtype.kind


@cache
def is_extension(dtype: np.dtype[Any]) -> bool:
    """Return whether only numpy arrays on the host can have `dtype`."""
    return dtype.name in EXTENSIONS


def to_text(array: Any) -> Any:
    """Convert `array`, of text, to the dtype `TEXT`, if need be; None if an element is not text."""
    if array.dtype.kind not in "UTO":
        return None
    objects = array.astype(TEXT, copy=False)
    return objects if all(isinstance(one, str) for one in objects.flat) else None


def get_largest(dtype: np.dtype[Any]) -> float:
    return float(_load_extensions(dtype.name).finfo(dtype).max)


def _load_extensions(name: str) -> Any:
    missing = f"the dtype {name!r} takes the package 'ml_dtypes'"
    return import_extra("ml_dtypes", missing, get_install_command("ml-dtypes"), ShapeError)
