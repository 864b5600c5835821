"""Inputs that shape rules must know by value: axes, shapes, pads and the like."""

from __future__ import annotations

from ..dtypes import INTEGERS, check_dtype
from ..errors import ShapeError
from ..operator import Call


def integers(call: Call, index: int, what: str) -> tuple[int, ...] | None:
    """Return the integers of an input, None where it is absent or not known before the run.

    Raises
    ------
    ShapeError
        If its dtype is not an integer's, or its rank is over 1.
    """
    if not call.has(index):
        return None
    spec = call.spec(index)
    check_dtype(spec, INTEGERS, what)
    if spec.rank is not None and spec.rank > 1:
        raise ShapeError(f"{what} must be a list of integers, not {spec}", fix="flatten it")
    value = call.value(index)
    return None if value is None else tuple(int(v) for v in value.reshape(-1))


def is_computed(call: Call, *indices: int) -> bool:
    """True when one of the inputs is given but its value is not known before the run."""
    return any(call.has(index) and call.value(index) is None for index in indices)
