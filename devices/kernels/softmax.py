"""Softmax along an axis, by kernels of ``(xp, inputs, outputs, attributes, scratch) -> Step``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import TensorSpec
from .arguments import declare_line_scratch, to_lines
from .precision import declare_work
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order
from .sums import reduce_extremum, sum_over

_LARGE = 4096
"""Elements, from which on quotients, which take twice as long as products, are worth avoiding."""


def _declare_softmax(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    return (declare_line_scratch(x, call.attributes["axis"]), *declare_work(x, outputs[0]))


@kernel("Softmax", scratch=_declare_softmax, binds=True)
def softmax(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y = to_lines(inputs[0], attributes["axis"]), to_lines(outputs[0], attributes["axis"])
    line, work = scratch[0], scratch[1].reshape(y.shape) if scratch[1:] else y
    if not y.size:
        return run_in_order(())
    quotient = [partial(xp.divide, work, line, out=y)]
    if y.size >= _LARGE:
        quotient = [partial(xp.reciprocal, line, out=line), partial(xp.multiply, work, line, out=y)]
    return run_in_order(
        (
            reduce_extremum(xp, "max", x, (1,), line),
            partial(xp.subtract, x, line, out=work, dtype=work.dtype),
            partial(xp.exp, work, out=work),
            sum_over(xp, work, (1,), line),
            *quotient,
        )
    )


def _log_softmax_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    line = declare_line_scratch(x, call.attributes["axis"])
    return (line, line, *declare_work(x, outputs[0]))


@kernel("LogSoftmax", scratch=_log_softmax_scratch, binds=True)
def log_softmax(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y = to_lines(inputs[0], attributes["axis"]), to_lines(outputs[0], attributes["axis"])
    peak, total, work = scratch[0], scratch[1], scratch[2].reshape(y.shape) if scratch[2:] else y
    if not y.size:
        return run_in_order(())
    # The difference is computed twice: cheaper than a buffer for the exponentials.
    difference = partial(xp.subtract, x, peak, out=work, dtype=work.dtype)
    return run_in_order(
        (
            reduce_extremum(xp, "max", x, (1,), peak),
            difference,
            partial(xp.exp, work, out=work),
            sum_over(xp, work, (1,), total),
            partial(xp.log, total, out=total),
            difference,
            partial(xp.subtract, work, total, out=y),
        )
    )


def _declare_hardmax(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return (TensorSpec("int64", declare_line_scratch(call.spec(0), call.attributes["axis"]).shape),)


@kernel("Hardmax", scratch=_declare_hardmax, binds=True)
def hardmax(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y = to_lines(inputs[0], attributes["axis"]), to_lines(outputs[0], attributes["axis"])
    if not y.size:
        return run_in_order(())
    places = xp.arange(x.shape[1]).reshape(1, -1, 1)
    return run_in_order(
        (
            partial(xp.argmax, x, axis=1, out=scratch[0][:, 0, :]),
            partial(xp.equal, places, scratch[0], out=y),
        )
    )
