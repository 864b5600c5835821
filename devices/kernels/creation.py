"""Kernels of ``(xp, inputs, outputs, attributes)`` that make tensors of known shapes."""

from __future__ import annotations

from functools import partial

from ...graph.core.attribute import Attributes
from ...graph.values.dtypes import kind_of
from .registry import ArrayModule, Arrays, Step, kernel


@kernel("ConstantOfShape", binds=True)
def constant_of_shape(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    return partial(outputs[0].fill, attributes["value"])


@kernel("Range")
def range_(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    start, _, delta = (x.reshape(()) for x in inputs)
    y = outputs[0]
    places = xp.arange(y.size, dtype="float64" if kind_of(y.dtype) == "f" else y.dtype)
    xp.copyto(y, start + places * delta, casting="unsafe")
