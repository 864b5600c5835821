"""Nulls in columns and tables of other libraries, which numpy would read as NaN."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def has_nulls(value: Any) -> bool:
    """True when a column or table of a library lacks values, or an array masks some.

    A NaN in pandas' columns of numpy's dtypes is a number: there nobody can tell it from a null.
    """
    if isinstance(value, np.ndarray):
        return bool(np.ma.is_masked(value))
    return any(map(_lacks_values, _columns(value)))


def _columns(value: Any) -> Iterable[Any]:
    for ways in ("iter_columns", "itercolumns"):  # of polars, and of pyarrow
        if hasattr(value, ways):
            return getattr(value, ways)()  # type: ignore[no-any-return]
    if hasattr(value, "iloc") and hasattr(value, "columns"):  # of pandas; names may be there twice
        return (value.iloc[:, index] for index in range(len(value.columns)))
    return (value,)


def _lacks_values(column: Any) -> bool:
    if hasattr(column, "isna"):
        return not isinstance(column.dtype, np.dtype) and bool(column.isna().any())
    if not hasattr(column, "null_count"):
        return False
    if not callable(column.null_count):
        return bool(column.null_count)
    while hasattr(column.dtype, "inner"):  # of polars: those of lists are counted in their items
        if column.null_count():
            return True
        column = column.explode()
    return bool(column.null_count())
