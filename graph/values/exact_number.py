"""Numbers as arrays of an exact dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import OperatorError
from .tensor import Array


def to_exact(value: float, dtype: np.dtype[Any], at: str) -> Array:
    """Convert `value` to an array of `dtype`, integers exactly, or raise OperatorError."""
    try:
        array = np.asarray(value, dtype)
        fits = dtype.kind not in "biu" or value == array.item()
    except (OverflowError, ValueError):
        fits = False
    if not fits:
        raise OperatorError(
            f"the number {value!r} is not a value of {dtype.name}, the dtype of the first tensor",
            at=at,
            fix="pass an array of the dtype you mean, or insert a Cast",
        )
    return array
