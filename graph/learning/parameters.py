"""Checks of the numbers of optimizers and learning rates."""

from __future__ import annotations

import math

from ..values.errors import GraphError


def check_above(name: str, value: float) -> None:
    """Raise GraphError unless `value`, which errors call `name`, is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise GraphError(f"{name} is {value}", fix="pass a number above 0")


def check_not_below(name: str, value: float) -> None:
    """Raise GraphError unless `value`, which errors call `name`, is finite and not below 0."""
    if not (math.isfinite(value) and value >= 0):
        raise GraphError(f"{name} is {value}", fix="pass a number not below 0")


def check_fraction(name: str, value: float) -> None:
    """Raise GraphError unless `value`, which errors call `name`, is at least 0 and below 1."""
    if not 0 <= value < 1:
        raise GraphError(f"{name} is {value}", fix="pass a number from 0 on, below 1")
