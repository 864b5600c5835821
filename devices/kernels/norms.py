"""Division by a norm: of a line, of chosen axes, or of neighbouring channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from .lines import add_up, along, line_scratch
from .registry import ArrayModule, Arrays, kernel
from .sliding import AxisWindow, slide
from .steps import Step, in_order, widen, work_scratch, working_dtype


def _norm_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    norm = line_scratch(x, call.attributes["axis"])
    return (norm, TensorSpec("bool", norm.shape), *work_scratch(x, outputs[0]))


@kernel("LpNormalization", scratch=_norm_scratch, binds=True)
def lp_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = x / ‖x‖ₚ along the axis, 0 where the norm is 0.  Source: ONNX LpNormalization-22."""
    x, y = along(inputs[0], attributes["axis"]), along(outputs[0], attributes["axis"])
    norm, vanishes, *wide = scratch
    work = wide[0].reshape(y.shape) if wide else y
    if attributes["p"] == 1:
        steps: list[Step] = [partial(xp.absolute, x, out=work), add_up(xp, work, norm)]
    else:
        square = partial(xp.multiply, x, x, out=work, dtype=work.dtype)
        steps = [square, add_up(xp, work, norm), partial(xp.sqrt, norm, out=norm)]
    return in_order(
        (
            *steps,
            partial(xp.equal, norm, 0, out=vanishes),
            partial(xp.copyto, norm, math.inf, where=vanishes),  # x / inf = 0
            partial(xp.divide, x, norm, out=y),
        )
    )


def _variance_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    axes = {axis % len(x.static_shape) for axis in call.attributes["axes"]}
    kept = (1 if axis in axes else length for axis, length in enumerate(x.static_shape))
    wide = working_dtype(x.dtype)
    statistic = TensorSpec(wide, tuple(kept))
    return (statistic, TensorSpec(wide, x.shape), *work_scratch(x, outputs[0]))


@kernel("MeanVarianceNormalization", scratch=_variance_scratch, binds=True)
def mean_variance_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = (x - mean) / (√variance + 10⁻⁹), over the axes together.

    Source: ONNX MeanVarianceNormalization-13 (its function body has the constant).
    """
    x, y = inputs[0], outputs[0]
    statistic, squares, *wide = scratch
    source, work, steps = widen(xp, x, y, wide)
    axes = tuple(axis % x.ndim for axis in attributes["axes"])
    total = partial(xp.sum, axis=axes, keepdims=True, out=statistic)
    mean = partial(xp.divide, statistic, math.prod(x.shape[axis] for axis in axes), out=statistic)
    return in_order(
        (
            *steps,
            partial(total, source),
            mean,
            partial(xp.subtract, source, statistic, out=work),
            partial(xp.multiply, work, work, out=squares),
            partial(total, squares),
            mean,
            partial(xp.sqrt, statistic, out=statistic),
            partial(xp.add, statistic, 1e-9, out=statistic),
            partial(xp.divide, work, statistic, out=y),
        )
    )


def _squares_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    return (TensorSpec(working_dtype(x.dtype), x.shape), *work_scratch(x, outputs[0]))


@kernel("LRN", scratch=_squares_scratch, binds=True)
def local_response_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = x / (bias + alpha/size · Σ x²)^beta, summed over the neighbouring channels.

    Source: ONNX LRN-13.
    """
    x, y = along(inputs[0], 1), along(outputs[0], 1)
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
