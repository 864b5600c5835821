"""Comparisons, boolean algebra and selection, as ONNX defines them: ``op(*inputs)``."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from ...graph.values.tensor import Array
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
    definition(_op)(partial(per_element, _function))


definition("Not")(partial(per_element, operator.not_))
definition("IsNaN")(partial(per_element, math.isnan))


@definition("IsInf")
def is_inf(x: Array, *, detect_negative: bool, detect_positive: bool) -> Array:
    wanted = [math.inf] * detect_positive + [-math.inf] * detect_negative
    return per_element(lambda value: value in wanted, x)


@definition("Where")
def where(condition: Array, x: Array, y: Array) -> Array:
    return per_element(lambda holds, a, b: a if holds else b, condition, x, y)
