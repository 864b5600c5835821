"""Definitions of operators that order effects and pass values on."""

from __future__ import annotations

import numpy as np

from ...graph.values.tensor import Array
from .registry import definition


@definition("Assign")
def assign(variable: Array, value: Array) -> Array:
    """Return `value`, which `variable` holds from the next item on."""
    return value


@definition("After")
def after(x: Array, *others: Array) -> Array:
    """Return `x`, after all `others`."""
    return x


@definition("Group")
def group(*x: Array) -> Array:
    return np.empty(0, np.bool_)
