"""Exact sums and maxima over axes."""

from __future__ import annotations

from functools import partial

from ....devices.kernels.registry import ArrayModule, Arrays, Step, kernel
from ....devices.kernels.sums import reduce_extremum, sum_over
from ....graph.core.attribute import Attributes
from ....graph.values.tensor import Array
from ..operators.reduction import list_reduced_axes


def _prepare_operands(
    inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> tuple[Array, Array, tuple[int, ...]]:
    x, axes = inputs[0], list_reduced_axes(inputs[0].ndim, attributes)
    kept = tuple(1 if axis in axes else length for axis, length in enumerate(x.shape))
    return x, outputs[0].reshape(kept), axes


@kernel("cvm.sum", binds=True)
def total(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    x, y, axes = _prepare_operands(inputs, outputs, attributes)
    return sum_over(xp, x, axes, y) if axes else partial(xp.copyto, y, x)


@kernel("cvm.max", binds=True)
def maximum(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    x, y, axes = _prepare_operands(inputs, outputs, attributes)
    return reduce_extremum(xp, "max", x, axes, y) if axes else partial(xp.copyto, y, x)
