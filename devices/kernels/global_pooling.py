"""Kernels that pool over whole planes, and the one that puts maxima back to their places."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.operators.pooling import unpooled_shape
from ...graph.tensor import Array, TensorSpec
from .axes import as_lines
from .norms import raise_to, root_of
from .precision import compute_dtype, work_scratch
from .registry import ArrayModule, Arrays, kernel
from .steps import Step, in_order
from .sums import extremum_over, sum_over


def _planes(array: Array) -> Array:
    """Return a view as (planes, cells, 1)."""
    return as_lines(array, 2, array.ndim)


def _average_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return work_scratch(call.spec(0), outputs[0])


@kernel("GlobalAveragePool", scratch=_average_scratch, binds=True)
def global_average_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = the mean of each plane.  Source: ONNX GlobalAveragePool."""
    x, y = _planes(inputs[0]), _planes(outputs[0])
    total = _planes(scratch[0]) if scratch else y
    add_up = sum_over(xp, x, (1,), total)
    return in_order((add_up, partial(xp.divide, total, x.shape[1], out=y)))


@kernel("GlobalMaxPool", binds=True)
def global_max_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    """Y = the maximum of each plane.  Source: ONNX GlobalMaxPool."""
    x, y = _planes(inputs[0]), _planes(outputs[0])
    return extremum_over(xp, "max", x, (1,), y) if x.size else in_order(())


def _power_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    return (TensorSpec(compute_dtype(x.dtype), x.shape), *work_scratch(x, outputs[0]))


@kernel("GlobalLpPool", scratch=_power_scratch, binds=True)
def global_lp_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = (Σ |x|ᵖ)^(1/p) over each plane.  Source: ONNX GlobalLpPool."""
    x, y, p = _planes(inputs[0]), _planes(outputs[0]), attributes["p"]
    powers = _planes(scratch[0])
    total = _planes(scratch[1]) if scratch[1:] else y
    return in_order(
        (*raise_to(xp, x, powers, p), sum_over(xp, powers, (1,), total), root_of(xp, total, y, p))
    )


@kernel("MaxUnpool")
def max_unpool(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    """Y = x at the places that the indices name, 0 elsewhere.

    The indices count in the shape that would be inferred; an `output_shape` that differs from it
    only adds or cuts off margins. Source: ONNX MaxUnpool.
    """
    (x, indices), (y,) = inputs[:2], outputs
    y.fill(0)
    y[xp.unravel_index(indices, unpooled_shape(x.shape, attributes))] = x
