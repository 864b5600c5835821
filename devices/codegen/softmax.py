"""Softmax and its kin: every line of a tensor along an axis on its own.

Each takes a `call` and the specs of its `outputs`, and returns the `Code`.
"""

from __future__ import annotations

from ...graph.core.operator import Call, Specs
from .folds import define_before, make_extremum, make_place, make_sum
from .reduction import declare_input, declare_output
from .registry import Code, generates
from .sweeps import LineFold, Lines, fold_lines
from .types import load, store, to_computed_type, write_literal


def _make_lines(call: Call) -> Lines:
    shape = call.spec(0).static_shape
    return Lines(shape, (call.attributes["axis"] % len(shape),))


def _make_folds(call: Call) -> tuple[LineFold, LineFold]:
    dtype = call.spec(0).dtype
    return (
        LineFold("peak", make_extremum(dtype, "max"), lambda at: load(dtype, "x", at)),
        LineFold(
            "total",
            make_sum(to_computed_type(dtype)),
            lambda at: f"exp({load(dtype, 'x', at)} - peak)",
        ),
    )


@generates("Softmax")
def softmax(call: Call, outputs: Specs) -> Code:
    x, y = call.spec(0), outputs[0]

    def write(at: str) -> list[str]:
        return [store(y.dtype, "y", at, f"exp({load(x.dtype, 'x', at)} - peak) / total")]

    parameters = (declare_input(x), declare_output(y))
    return fold_lines("softmax", _make_lines(call), parameters, _make_folds(call), each=write)


@generates("LogSoftmax")
def log_softmax(call: Call, outputs: Specs) -> Code:
    x, y = call.spec(0), outputs[0]
    peak, total = _make_folds(call)
    total = total._replace(then=(f"const {to_computed_type(x.dtype)} depth = log(total);",))

    def write(at: str) -> list[str]:
        return [store(y.dtype, "y", at, f"({load(x.dtype, 'x', at)} - peak) - depth")]

    parameters = (declare_input(x), declare_output(y))
    return fold_lines("log_softmax", _make_lines(call), parameters, (peak, total), each=write)


@generates("Hardmax")
def hardmax(call: Call, outputs: Specs) -> Code:
    x, y, lines = call.spec(0), outputs[0], _make_lines(call)
    c = to_computed_type(y.dtype)
    function, before = define_before(x.dtype, "max")

    def write(at: str) -> list[str]:
        value = f"({at} == best ? {write_literal(1, c)} : {write_literal(0, c)})"
        return [store(y.dtype, "y", at, value)]

    return fold_lines(
        "hardmax",
        lines,
        (declare_input(x), declare_output(y)),
        (LineFold("best", make_place(lines.index, before), lambda at: at),),
        each=write,
        functions=(function,),
    )
