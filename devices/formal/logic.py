"""Comparisons, boolean algebra and selection, as ONNX defines them: ``op(*inputs)``."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from ...graph.values.tensor import Array
from .elementwise import define_binary
from .registry import definition, per_element

BINARY: dict[str, Callable[[Any, Any], bool]] = {
    "Equal": operator.eq,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "And": lambda a, b: a and b,
    "Or": lambda a, b: a or b,
    "Xor": lambda a, b: a != b,
}
"""Operators with two inputs, each as a function of two elements."""


for _op, _function in BINARY.items():
    define_binary(_op, _function)


@definition("Not")
def not_(x: Array) -> Array:
    return per_element(lambda value: not value, x)


@definition("IsNaN")
def is_nan(x: Array) -> Array:
    return per_element(math.isnan, x)


@definition("IsInf")
def is_inf(x: Array, *, detect_negative: bool, detect_positive: bool) -> Array:
    wanted = [math.inf] * detect_positive + [-math.inf] * detect_negative
    return per_element(lambda value: value in wanted, x)


@definition("Where")
def where(condition: Array, x: Array, y: Array) -> Array:
    return per_element(lambda holds, a, b: a if holds else b, condition, x, y)
