"""Definitions, ``op(*inputs, **attributes)``, that make tensors from shapes and scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.values.tensor import Array, TensorSpec
from .registry import definition, table


@definition("ConstantOfShape")
def constant_of_shape(shape: Array, *, value: Any, dtype: str) -> Array:
    return table([int(length) for length in shape.flat], lambda *index: value)


@definition("Range")
def range_(
    start: Array, limit: Array, delta: Array, *, stash_type: int, outputs: Sequence[TensorSpec]
) -> Array:
    first, step = start.reshape(()).item(), delta.reshape(()).item()
    return table(outputs[0].static_shape, lambda i: first + i * step)
