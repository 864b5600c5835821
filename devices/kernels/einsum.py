"""Einsum, contracted in an order that is chosen when the plan is opened."""

from __future__ import annotations

from functools import partial

import numpy as np

from ...graph.attribute import Attributes
from ...graph.operators.einsum import parse_equation
from .registry import ArrayModule, Arrays, kernel
from .steps import Step


@kernel("Einsum", binds=True)
def einsum(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    """Y = Σ of products over the axes that the output does not name.  Source: ONNX Einsum."""
    equation = parse_equation(attributes["equation"], [x.ndim for x in inputs])
    y, operands = outputs[0], []
    for x, axes in zip(inputs, equation.inputs, strict=True):
        operands += [x, list(axes)]
    operands.append(list(equation.output))
    if xp is not np:
        return lambda: xp.copyto(y, xp.einsum(*operands))
    path = np.einsum_path(*operands, optimize="greedy")[0] if len(inputs) > 1 else False
    return partial(np.einsum, *operands, out=y, optimize=path)
