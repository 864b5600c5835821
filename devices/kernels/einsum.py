"""Einsum, contracted in an order that is chosen when the plan is opened."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ...graph.attribute import Attributes
from ...graph.dtypes import is_extension
from ...graph.operator import Call, Specs
from ...graph.operators.einsum import parse_equation
from ...graph.tensor import TensorSpec
from .precision import wide_copies, widen
from .registry import ArrayModule, Arrays, kernel
from .steps import Step


def _scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Scratch: float32 copies of what numpy's einsum does not take."""
    specs = (*call.inputs, *outputs)
    return wide_copies(specs) if any(is_extension(spec.dtype) for spec in outputs) else ()


@kernel("Einsum", scratch=_scratch, binds=True)
def einsum(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = Σ of products over the axes that the output does not name.  Source: ONNX Einsum."""
    if scratch:
        wide = widen(xp, inputs, outputs, scratch)
        return wide.around([einsum(xp, wide.inputs, wide.outputs, attributes, ())])
    equation = parse_equation(attributes["equation"], [x.ndim for x in inputs])
    y, operands = outputs[0], []
    for x, axes in zip(inputs, equation.inputs, strict=True):
        operands += [x, list(axes)]
    operands.append(list(equation.output))
    if xp is not np:
        return lambda: xp.copyto(y, xp.einsum(*operands))
    path = np.einsum_path(*operands, optimize="greedy")[0] if len(inputs) > 1 else False
    return partial(np.einsum, *operands, out=y, optimize=path)
