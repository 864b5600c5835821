"""Softmax and its kin: every line of a tensor along an axis on its own."""

from __future__ import annotations

from ...graph.operator import Call, Specs
from .folds import comes_before, extremum_of, place_of, sum_of
from .kernel import Code
from .lines import Lines
from .reduction import input_of, output_of
from .registry import generates
from .sweeps import LineFold, line_code
from .types import computed_type, literal, load, store


def _lines(call: Call) -> Lines:
    shape = call.spec(0).static_shape
    return Lines(shape, (call.attributes["axis"] % len(shape),))


def _folds(call: Call) -> tuple[LineFold, LineFold]:
    """Return the maximum of a line, and the sum of the exponentials of what is below it."""
    dtype = call.spec(0).dtype
    return (
        LineFold("peak", extremum_of(dtype, "max"), lambda at: load(dtype, "x", at)),
        LineFold(
            "total",
            sum_of(computed_type(dtype)),
            lambda at: f"exp({load(dtype, 'x', at)} - peak)",
        ),
    )


@generates("Softmax")
def softmax(call: Call, outputs: Specs) -> Code:
    """Y = exp(x - max x) / Σ exp(x - max x)."""
    x, y = call.spec(0), outputs[0]

    def write(at: str) -> list[str]:
        return [store(y.dtype, "y", at, f"exp({load(x.dtype, 'x', at)} - peak) / total")]

    parameters = (input_of(x), output_of(y))
    return line_code("softmax", _lines(call), parameters, _folds(call), each=write)


@generates("LogSoftmax")
def log_softmax(call: Call, outputs: Specs) -> Code:
    """Y = (x - max x) - log Σ exp(x - max x)."""
    x, y = call.spec(0), outputs[0]
    peak, total = _folds(call)
    total = total._replace(then=(f"const {computed_type(x.dtype)} depth = log(total);",))

    def write(at: str) -> list[str]:
        return [store(y.dtype, "y", at, f"({load(x.dtype, 'x', at)} - peak) - depth")]

    parameters = (input_of(x), output_of(y))
    return line_code("log_softmax", _lines(call), parameters, (peak, total), each=write)


@generates("Hardmax")
def hardmax(call: Call, outputs: Specs) -> Code:
    """Y = 1 at the first maximum along the axis, 0 elsewhere."""
    x, y, lines = call.spec(0), outputs[0], _lines(call)
    c = computed_type(y.dtype)
    function, before = comes_before(x.dtype, "max")

    def write(at: str) -> list[str]:
        value = f"({at} == best ? {literal(1, c)} : {literal(0, c)})"
        return [store(y.dtype, "y", at, value)]

    return line_code(
        "hardmax",
        lines,
        (input_of(x), output_of(y)),
        (LineFold("best", place_of(lines.index, before), lambda at: at),),
        each=write,
        functions=(function,),
    )
