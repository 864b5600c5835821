"""Dtypes by name, and the kind of number that each holds, or text, or Python objects.

Numpy has no bfloat16 and no floats of 8 bits: they come from the package `ml_dtypes`, which is
imported when one of them is first named.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .errors import ShapeError
from .extras import how_to_install, import_extra

FLOATS_OF_8_BITS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
"""Numbers are stored in these, but not computed in them."""

EXTENSIONS = ("bfloat16", *FLOATS_OF_8_BITS)
"""The dtypes of `ml_dtypes`."""

TEXT: np.dtype[Any] = np.dtype(object)
"""The dtype of text: arrays of `str`, each of any length."""

OBJECT: np.dtype[Any] = np.dtype(object, metadata={"holds": "any object"})
"""The dtype of arrays of Python objects. numpy compares it equal to `TEXT`: ask `has_objects`."""


def dtype_of(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a dtype, given as numpy takes it, by the name of an extension, as `str` or `object`.

    Raises
    ------
    TypeError
        If there is no such dtype.
    ShapeError
        If it takes a package that is not installed.
    """
    if isinstance(dtype, str) and dtype in EXTENSIONS:
        _extensions(dtype)
    if dtype is object or (isinstance(dtype, str) and dtype == "object"):
        return OBJECT
    is_named = dtype is str or (isinstance(dtype, str) and dtype == "str")
    return TEXT if is_named or isinstance(dtype, np.dtypes.StringDType) else np.dtype(dtype)


def has_objects(dtype: np.dtype[Any]) -> bool:
    """True for `OBJECT`, and false for `TEXT`."""
    return dtype.metadata is not None and dtype.kind == "O"


def hold_object(value: Any) -> Any:
    """Return an array of no axes that holds one Python object."""
    array = np.empty((), OBJECT)
    array[()] = value
    return array


def hold_objects(values: Any) -> Any:
    """Return an array of one axis with a Python object for each value of a sequence."""
    array = np.empty(len(values), OBJECT)
    for index, value in enumerate(values):  # numpy would look into sequences of one length
        array[index] = value
    return array


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name by which `dtype_of` knows a dtype: text and objects share one in numpy."""
    if dtype.kind != "O":
        return dtype.name
    return "object" if has_objects(dtype) else "str"


@cache
def kind_of(dtype: np.dtype[Any]) -> str:
    """Return numpy's letter for a kind of number: f for bfloat16 too, e for floats of 8 bits."""
    if dtype.name in FLOATS_OF_8_BITS:
        return "e"
    return "f" if dtype.name == "bfloat16" else dtype.kind


@cache
def is_extension(dtype: np.dtype[Any]) -> bool:
    """True for a dtype that only numpy arrays on the host can have."""
    return dtype.name in EXTENSIONS


def as_text(array: Any) -> Any:
    """Return an array of text as one of objects; None if not all that it holds is text.

    Those that are such arrays already are returned as they are.
    """
    if array.dtype.kind not in "UTO":
        return None
    objects = array.astype(TEXT, copy=False)
    return objects if all(isinstance(one, str) for one in objects.flat) else None


def largest(dtype: np.dtype[Any]) -> float:
    """Return the largest finite number of an extension."""
    return float(_extensions(dtype.name).finfo(dtype).max)


def _extensions(name: str) -> Any:
    missing = f"the dtype {name!r} takes the package 'ml_dtypes'"
    return import_extra("ml_dtypes", missing, how_to_install("ml-dtypes"), ShapeError)
