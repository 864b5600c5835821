"""Division by a norm: of a line, or of neighbouring channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.tensor import Array, TensorSpec
from .axes import as_lines, line_scratch
from .precision import compute_dtype, work_scratch
from .registry import ArrayModule, Arrays, kernel
from .sliding import AxisWindow, slide
from .steps import Step, in_order
from .sums import sum_over


def raise_to(xp: ArrayModule, x: Array, powers: Array, p: int) -> list[Step]:
    """Return the steps powers = |x|ᵖ."""
    if p == 2:
        return [partial(xp.multiply, x, x, out=powers, dtype=powers.dtype)]
    steps: list[Step] = [partial(xp.absolute, x, out=powers)]
    if p > 1:
        steps.append(partial(xp.power, powers, p, out=powers))
    return steps


def root_of(xp: ArrayModule, total: Array, y: Array, p: int) -> Step:
    """Return the step y = total^(1/p)."""
    if p == 1:
        return partial(xp.copyto, y, total, casting="same_kind")
    if p == 2:
        return partial(xp.sqrt, total, out=y)
    return partial(xp.power, total, 1 / p, out=y)


def _norm_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    norm = line_scratch(x, call.attributes["axis"])
    return (norm, TensorSpec("bool", norm.shape), *work_scratch(x, outputs[0]))


@kernel("LpNormalization", scratch=_norm_scratch, binds=True)
def lp_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = x / ‖x‖ₚ along the axis, 0 where the norm is 0.  Source: ONNX LpNormalization."""
    x, y = as_lines(inputs[0], attributes["axis"]), as_lines(outputs[0], attributes["axis"])
    norm, vanishes, *wide = scratch
    work = wide[0].reshape(y.shape) if wide else y
    p = attributes["p"]
    return in_order(
        (
            *raise_to(xp, x, work, p),
            sum_over(xp, work, (1,), norm),
            root_of(xp, norm, norm, p),
            partial(xp.equal, norm, 0, out=vanishes),
            partial(xp.copyto, norm, math.inf, where=vanishes),  # x / inf = 0
            partial(xp.divide, x, norm, out=y),
        )
    )


def _squares_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    return (TensorSpec(compute_dtype(x.dtype), x.shape), *work_scratch(x, outputs[0]))


@kernel("LRN", scratch=_squares_scratch, binds=True)
def local_response_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = x / (bias + alpha/size · Σ x²)^beta, summed over the neighbouring channels.

    Source: ONNX LRN.
    """
    x, y = as_lines(inputs[0], 1), as_lines(outputs[0], 1)
    squares = scratch[0].reshape(x.shape)
    work = scratch[1].reshape(x.shape) if scratch[1:] else y
    size, channels = attributes["size"], x.shape[1]
    neighbours = AxisWindow(channels, channels, size, begin=(size - 1) // 2)
    return in_order(
        (
            partial(xp.multiply, x, x, out=squares, dtype=squares.dtype),
            *slide(xp, xp.add, squares, work, 1, neighbours, 0),
            partial(xp.multiply, work, attributes["alpha"] / size, out=work),
            partial(xp.add, work, attributes["bias"], out=work),
            partial(xp.power, work, attributes["beta"], out=work),
            partial(xp.divide, x, work, out=y),
        )
    )
