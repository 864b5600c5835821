"""Reductions over axes, and pooling over whole planes, which is one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...graph.operator import Call, Specs
from ...graph.operators.reduction import reduced_axes
from ...graph.tensor import TensorSpec
from .folds import comes_before, extremum_of, place_of, product_of, sum_of, sum_type
from .kernel import Code, Parameter
from .lines import Lines
from .registry import generates
from .sweeps import LineFold, line_code
from .types import computed_type, ctype, is_float, literal, load, store


def input_of(spec: TensorSpec, name: str = "x", index: int = 0) -> Parameter:
    """Return the parameter of an input."""
    return Parameter(name, ctype(spec.dtype), "input", index)


def output_of(spec: TensorSpec, name: str = "y", index: int = 0) -> Parameter:
    """Return the parameter of an output."""
    return Parameter(name, ctype(spec.dtype), "output", index)


class _Way(NamedTuple):
    """How a reduction computes: from a value to what is added up, and from the sum to y."""

    element: Callable[[str], str]
    finish: Callable[[str], str]


def _axes(call: Call) -> tuple[int, ...]:
    value = call.value(1)
    given = None if value is None else [int(axis) for axis in value.reshape(-1)]
    shape = call.spec(0).static_shape
    return reduced_axes(len(shape), given, call.attributes["noop_with_empty_axes"])


def _unless(call: Call) -> str | None:
    if call.has(1) and call.value(1) is None:
        return "the axes are computed"
    return None


def _same(value: str) -> str:
    return value


def _reduce(call: Call, outputs: Specs, folds: tuple[LineFold, ...], result: str) -> Code:
    """Return the code that folds the elements along the axes and writes a result for each line."""
    x, y = call.spec(0), outputs[0]
    lines = Lines(x.static_shape, _axes(call))
    return line_code(
        "reduce",
        lines,
        (input_of(x), output_of(y)),
        folds,
        once=[store(y.dtype, "y", "line", result)],
    )


def _fold_sums(way: Callable[[np.dtype[Any], int], _Way], call: Call, outputs: Specs) -> Code:
    """Return the code of a reduction that adds up."""
    dtype = call.spec(0).dtype
    c = sum_type(dtype)
    count = Lines(call.spec(0).static_shape, _axes(call)).length
    element, finish = way(dtype, count)
    line_fold = LineFold("total", sum_of(c), lambda at: element(load(dtype, "x", at)))
    # The sum of nothing is -0, and is to be shown as 0.
    nothing = "" if count else f" + {literal(0, c)}"
    return _reduce(call, outputs, (line_fold,), finish(f"total{nothing}"))


def _magnitude(dtype: np.dtype[Any], value: str) -> str:
    if is_float(dtype):
        return f"fabs({value})"
    c = sum_type(dtype)
    # In the type without a sign: the least integer has no magnitude in its own.
    return f"({value} < 0 ? 0 - ({c}){value} : ({c}){value})" if dtype.kind == "i" else value


def _square(dtype: np.dtype[Any], value: str) -> str:
    c = sum_type(dtype)
    return f"({c}){value} * ({c}){value}"


_SUMS: dict[str, Callable[[np.dtype[Any], int], _Way]] = {
    "ReduceSum": lambda dtype, count: _Way(_same, _same),
    "ReduceL1": lambda dtype, count: _Way(partial(_magnitude, dtype), _same),
    "ReduceSumSquare": lambda dtype, count: _Way(partial(_square, dtype), _same),
    "ReduceLogSum": lambda dtype, count: _Way(_same, lambda total: f"log({total})"),
}

for _op, _way in _SUMS.items():
    generates(_op, unless=_unless)(partial(_fold_sums, _way))


@generates("ReduceMean", unless=_unless)
def reduce_mean(call: Call, outputs: Specs) -> Code:
    """Y = the mean; of integers rounded toward zero."""
    dtype = call.spec(0).dtype
    count = Lines(call.spec(0).static_shape, _axes(call)).length
    if is_float(dtype):
        return _mean(call, outputs, _axes(call))
    c = "u64" if dtype.kind == "u" else "i64"
    # Negative numbers wrap around, and sums come back when they are read with a sign.
    line_fold = LineFold("total", sum_of("u64"), lambda at: f"(u64)x[{at}]")
    quotient = f"({c})total / {literal(count, c)}" if count else "0"
    return _reduce(call, outputs, (line_fold,), f"({ctype(dtype)})({quotient})")


def _mean(call: Call, outputs: Specs, axes: tuple[int, ...]) -> Code:
    x, y = call.spec(0), outputs[0]
    c, lines = computed_type(x.dtype), Lines(x.static_shape, axes)
    line_fold = LineFold("total", sum_of(c), lambda at: load(x.dtype, "x", at))
    mean = f"total / {literal(lines.length, c)}" if lines.length else literal(math.nan, c)
    write = store(y.dtype, "y", "line", mean)
    return line_code("mean", lines, (input_of(x), output_of(y)), (line_fold,), once=[write])


def _unless_root(call: Call) -> str | None:
    if call.spec(0).dtype.kind in "iu" and call.spec(0).dtype.itemsize == 8:
        return "there are no roots of integers of 64 bits"
    return _unless(call)


def _is_integer(call: Call) -> bool:
    return not is_float(call.spec(0).dtype)


@generates("ReduceL2", unless=_unless_root, float64=_is_integer)
def reduce_l2(call: Call, outputs: Specs) -> Code:
    """Y = √Σ x²; of integers in f64, rounded down."""
    dtype = call.spec(0).dtype
    c = computed_type(dtype) if is_float(dtype) else "f64"

    def square(at: str) -> str:
        value = f"({c}){load(dtype, 'x', at)}"
        return f"{value} * {value}"

    root = f"sqrt(total + {literal(0, c)})"
    result = root if is_float(dtype) else f"({ctype(dtype)})(i64){root}"
    return _reduce(call, outputs, (LineFold("total", sum_of(c), square),), result)


@generates("ReduceProd", unless=_unless)
def reduce_product(call: Call, outputs: Specs) -> Code:
    """Y = the product."""
    dtype = call.spec(0).dtype
    line_fold = LineFold("total", product_of(sum_type(dtype)), lambda at: load(dtype, "x", at))
    return _reduce(call, outputs, (line_fold,), "total")


def _extremum(name: str, call: Call, outputs: Specs) -> Code:
    dtype = call.spec(0).dtype
    line_fold = LineFold("best", extremum_of(dtype, name), lambda at: load(dtype, "x", at))
    return _reduce(call, outputs, (line_fold,), "best")


generates("ReduceMax", unless=_unless)(partial(_extremum, "max"))
generates("ReduceMin", unless=_unless)(partial(_extremum, "min"))


@generates("ReduceLogSumExp", unless=_unless)
def reduce_log_sum_exp(call: Call, outputs: Specs) -> Code:
    """Y = m + log Σ exp(x - m) with the maximum m, where that is a number."""
    dtype = call.spec(0).dtype
    c = computed_type(dtype)
    # An infinite peak less itself would be nan; without a shift the sum is infinite, too, as it
    # should.
    shift = f"const {c} shift = fabs(peak) < {literal(math.inf, c)} ? peak : 0;"
    folds = (
        LineFold("peak", extremum_of(dtype, "max"), lambda at: load(dtype, "x", at), (shift,)),
        LineFold("total", sum_of(c), lambda at: f"exp({load(dtype, 'x', at)} - shift)"),
    )
    return _reduce(call, outputs, folds, f"log(total + {literal(0, c)}) + shift")


def _arg_extremum(name: str, call: Call, outputs: Specs) -> Code:
    x, y, attributes = call.spec(0), outputs[0], call.attributes
    shape = x.static_shape or (1,)
    axis = attributes["axis"] % len(shape)
    lines = Lines(shape, (axis,))
    function, before = comes_before(x.dtype, name, first=not attributes["select_last_index"])
    inner = math.prod(shape[axis + 1 :])
    # From an element's place in the tensor to that along the axis.
    place = f"(best - base) / {inner}" if inner > 1 else "best - base"
    return line_code(
        "place",
        lines,
        (input_of(x), output_of(y)),
        (LineFold("best", place_of(lines.index, before), _same),),
        once=[store(y.dtype, "y", "line", place)],
        functions=(function,),
    )


generates("ArgMax")(partial(_arg_extremum, "max"))
generates("ArgMin")(partial(_arg_extremum, "min"))


def _spatial(call: Call) -> tuple[int, ...]:
    return tuple(range(2, len(call.spec(0).static_shape)))


@generates("GlobalAveragePool")
def global_average_pool(call: Call, outputs: Specs) -> Code:
    """Y = the mean of each plane."""
    return _mean(call, outputs, _spatial(call))


def _plane(call: Call, outputs: Specs, line_fold: LineFold, result: str) -> Code:
    x, y = call.spec(0), outputs[0]
    lines = Lines(x.static_shape, _spatial(call))
    write = store(y.dtype, "y", "line", result)
    return line_code("pool_plane", lines, (input_of(x), output_of(y)), (line_fold,), once=[write])


@generates("GlobalMaxPool")
def global_max_pool(call: Call, outputs: Specs) -> Code:
    """Y = the maximum of each plane."""
    dtype = call.spec(0).dtype
    line_fold = LineFold("best", extremum_of(dtype, "max"), lambda at: load(dtype, "x", at))
    return _plane(call, outputs, line_fold, "best")


@generates("GlobalLpPool")
def global_lp_pool(call: Call, outputs: Specs) -> Code:
    """Y = (Σ |x|ᵖ)^(1/p) of each plane."""
    dtype, p = call.spec(0).dtype, call.attributes["p"]
    c = computed_type(dtype)
    line_fold = LineFold("total", sum_of(c), lambda at: power(load(dtype, "x", at), p, c))
    return _plane(call, outputs, line_fold, root(f"(total + {literal(0, c)})", p, c))


def power(value: str, p: int, c: str) -> str:
    """Return the expression |value|ᵖ."""
    if p == 2:
        return f"{value} * {value}"
    magnitude = f"fabs({value})"
    return magnitude if p == 1 else f"pow({magnitude}, {literal(p, c)})"


def root(total: str, p: int, c: str) -> str:
    """Return the expression total^(1/p)."""
    if p == 1:
        return total
    return f"sqrt({total})" if p == 2 else f"pow({total}, {literal(1 / p, c)})"
