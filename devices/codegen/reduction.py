"""Reductions over axes, global pooling, which is one, and scans along an axis.

Scanned lines that lie side by side have a thread each. A group scans a line along the last axis
block by block: sums are added in a fixed order, but not from first to last. Each generator takes a
`call` and the specs of its `outputs`, and returns the `Code`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...graph.core.operator import Call, Specs
from ...graph.operators.reduction import list_reduced_axes
from ...graph.values.dims import normalize_axis
from ...graph.values.tensor import TensorSpec
from .cells import declare_numbers
from .folds import choose_sum_type, define_before, make_extremum, make_place, make_product, make_sum
from .functions import choose_word
from .indexing import choose_index_type
from .registry import THREADS, TRAP, Code, Kernel, Parameter, count_groups, generates
from .sweeps import LineFold, Lines, fold_lines
from .types import is_float, load, store, to_computed_type, to_ctype, write_literal


def declare_input(spec: TensorSpec, name: str = "x", index: int = 0) -> Parameter:
    return Parameter(name, to_ctype(spec.dtype), "input", index)


def declare_output(spec: TensorSpec, name: str = "y", index: int = 0) -> Parameter:
    return Parameter(name, to_ctype(spec.dtype), "output", index)


class _Way(NamedTuple):
    """The steps of a reduction: from an element to a summand, and from the sum to y."""

    element: Callable[[str], str]
    finish: Callable[[str], str]


def _list_axes(call: Call) -> tuple[int, ...]:
    value = call.value(1)
    given = None if value is None else [int(axis) for axis in value.reshape(-1)]
    shape = call.spec(0).static_shape
    return list_reduced_axes(len(shape), given, call.attributes["noop_with_empty_axes"])


def _refuse(call: Call) -> str | None:
    if call.has(1) and call.value(1) is None:
        return "the axes are computed"
    return None


def _keep(value: str) -> str:
    return value


def _reduce(call: Call, outputs: Specs, folds: tuple[LineFold, ...], result: str) -> Code:
    return _fold("reduce", call, outputs, _list_axes(call), folds, result)


def _fold(
    title: str,
    call: Call,
    outputs: Specs,
    axes: tuple[int, ...],
    folds: tuple[LineFold, ...],
    result: str,
) -> Code:
    x, y = call.spec(0), outputs[0]
    parameters = (declare_input(x), declare_output(y))
    write = store(y.dtype, "y", "line", result)
    return fold_lines(title, Lines(x.static_shape, axes), parameters, folds, once=[write])


def _fold_sums(way: Callable[[np.dtype[Any], int], _Way], call: Call, outputs: Specs) -> Code:
    dtype = call.spec(0).dtype
    c = choose_sum_type(dtype)
    count = Lines(call.spec(0).static_shape, _list_axes(call)).length
    element, finish = way(dtype, count)
    line_fold = LineFold("total", make_sum(c), lambda at: element(load(dtype, "x", at)))
    # The empty sum is -0, and must be shown as 0.
    nothing = "" if count else f" + {write_literal(0, c)}"
    return _reduce(call, outputs, (line_fold,), finish(f"total{nothing}"))


def _write_magnitude(dtype: np.dtype[Any], value: str) -> str:
    if is_float(dtype):
        return f"fabs({value})"
    c = choose_sum_type(dtype)
    # In the unsigned type: the least integer has no magnitude in its own.
    return f"({value} < 0 ? 0 - ({c}){value} : ({c}){value})" if dtype.kind == "i" else value


def _write_square(dtype: np.dtype[Any], value: str) -> str:
    c = choose_sum_type(dtype)
    return f"({c}){value} * ({c}){value}"


_SUMS: dict[str, Callable[[np.dtype[Any], int], _Way]] = {
    "ReduceSum": lambda dtype, count: _Way(_keep, _keep),
    "ReduceL1": lambda dtype, count: _Way(partial(_write_magnitude, dtype), _keep),
    "ReduceSumSquare": lambda dtype, count: _Way(partial(_write_square, dtype), _keep),
    "ReduceLogSum": lambda dtype, count: _Way(_keep, lambda total: f"log({total})"),
}

for _op, _way in _SUMS.items():
    generates(_op, unless=_refuse)(partial(_fold_sums, _way))


@generates("ReduceMean", unless=_refuse)
def reduce_mean(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: the mean; of integers rounded toward zero."""
    dtype = call.spec(0).dtype
    count = Lines(call.spec(0).static_shape, _list_axes(call)).length
    if is_float(dtype):
        return _compute_mean(call, outputs, _list_axes(call))
    c = "u64" if dtype.kind == "u" else "i64"
    # Negative numbers wrap around; reading the sum as signed restores it.
    line_fold = LineFold("total", make_sum("u64"), lambda at: f"(u64)x[{at}]")
    quotient = f"({c})total / {write_literal(count, c)}" if count else "0"
    return _reduce(call, outputs, (line_fold,), f"({to_ctype(dtype)})({quotient})")


def _compute_mean(call: Call, outputs: Specs, axes: tuple[int, ...]) -> Code:
    x = call.spec(0)
    c, count = to_computed_type(x.dtype), Lines(x.static_shape, axes).length
    line_fold = LineFold("total", make_sum(c), lambda at: load(x.dtype, "x", at))
    mean = f"total / {write_literal(count, c)}" if count else write_literal(math.nan, c)
    return _fold("mean", call, outputs, axes, (line_fold,), mean)


def _refuse_root(call: Call) -> str | None:
    if call.spec(0).dtype.kind in "iu" and call.spec(0).dtype.itemsize == 8:
        return "there are no roots of integers of 64 bits"
    return _refuse(call)


@generates("ReduceL2", unless=_refuse_root, float64=lambda call: not is_float(call.spec(0).dtype))
def reduce_l2(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: √Σ x²; of integers in f64, rounded down."""
    dtype = call.spec(0).dtype
    c = to_computed_type(dtype) if is_float(dtype) else "f64"

    def square(at: str) -> str:
        value = f"({c}){load(dtype, 'x', at)}"
        return f"{value} * {value}"

    root = f"sqrt(total + {write_literal(0, c)})"
    result = root if is_float(dtype) else f"({to_ctype(dtype)})(i64){root}"
    return _reduce(call, outputs, (LineFold("total", make_sum(c), square),), result)


@generates("ReduceProd", unless=_refuse)
def reduce_product(call: Call, outputs: Specs) -> Code:
    dtype = call.spec(0).dtype
    line_fold = LineFold(
        "total", make_product(choose_sum_type(dtype)), lambda at: load(dtype, "x", at)
    )
    return _reduce(call, outputs, (line_fold,), "total")


def _reduce_extremum(name: str, call: Call, outputs: Specs) -> Code:
    dtype = call.spec(0).dtype
    line_fold = LineFold("best", make_extremum(dtype, name), lambda at: load(dtype, "x", at))
    return _reduce(call, outputs, (line_fold,), "best")


generates("ReduceMax", unless=_refuse)(partial(_reduce_extremum, "max"))
generates("ReduceMin", unless=_refuse)(partial(_reduce_extremum, "min"))


@generates("ReduceLogSumExp", unless=_refuse)
def reduce_log_sum_exp(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: m + log Σ exp(x - m), with the maximum m if finite."""
    dtype = call.spec(0).dtype
    c = to_computed_type(dtype)
    # An infinite peak minus itself would be nan; without a shift the sum is infinite, as it should.
    shift = f"const {c} shift = fabs(peak) < {write_literal(math.inf, c)} ? peak : 0;"
    folds = (
        LineFold("peak", make_extremum(dtype, "max"), lambda at: load(dtype, "x", at), (shift,)),
        LineFold("total", make_sum(c), lambda at: f"exp({load(dtype, 'x', at)} - shift)"),
    )
    return _reduce(call, outputs, folds, f"log(total + {write_literal(0, c)}) + shift")


def _find_extremum(name: str, call: Call, outputs: Specs) -> Code:
    x, y, attributes = call.spec(0), outputs[0], call.attributes
    shape = x.static_shape or (1,)
    axis = attributes["axis"] % len(shape)
    lines = Lines(shape, (axis,))
    function, before = define_before(x.dtype, name, first=not attributes["select_last_index"])
    inner = math.prod(shape[axis + 1 :])
    # From an element's place in the tensor to its place along the axis.
    place = f"(best - base) / {inner}" if inner > 1 else "best - base"
    return fold_lines(
        "place",
        lines,
        (declare_input(x), declare_output(y)),
        (LineFold("best", make_place(lines.index, before), _keep),),
        once=[store(y.dtype, "y", "line", place)],
        functions=(function,),
    )


generates("ArgMax")(partial(_find_extremum, "max"))
generates("ArgMin")(partial(_find_extremum, "min"))


def _list_spatial(call: Call) -> tuple[int, ...]:
    return tuple(range(2, len(call.spec(0).static_shape)))


@generates("GlobalAveragePool")
def global_average_pool(call: Call, outputs: Specs) -> Code:
    return _compute_mean(call, outputs, _list_spatial(call))


def _reduce_plane(call: Call, outputs: Specs, line_fold: LineFold, result: str) -> Code:
    return _fold("pool_plane", call, outputs, _list_spatial(call), (line_fold,), result)


@generates("GlobalMaxPool")
def global_max_pool(call: Call, outputs: Specs) -> Code:
    dtype = call.spec(0).dtype
    line_fold = LineFold("best", make_extremum(dtype, "max"), lambda at: load(dtype, "x", at))
    return _reduce_plane(call, outputs, line_fold, "best")


@generates("GlobalLpPool")
def global_lp_pool(call: Call, outputs: Specs) -> Code:
    dtype, p = call.spec(0).dtype, call.attributes["p"]
    c = to_computed_type(dtype)
    line_fold = LineFold("total", make_sum(c), lambda at: write_power(load(dtype, "x", at), p, c))
    return _reduce_plane(
        call, outputs, line_fold, write_root(f"(total + {write_literal(0, c)})", p, c)
    )


def write_power(value: str, p: int, c: str) -> str:
    if p == 2:
        return f"{value} * {value}"
    magnitude = f"fabs({value})"
    return magnitude if p == 1 else f"pow({magnitude}, {write_literal(p, c)})"


def write_root(total: str, p: int, c: str) -> str:
    if p == 1:
        return total
    return f"sqrt({total})" if p == 2 else f"pow({total}, {write_literal(1 / p, c)})"


def _scan(title: str, operation: str, neutral: int, call: Call, outputs: Specs) -> Code:
    x, value = call.spec(0), call.value(1)
    if not x.size:
        return Code(())
    shape, t = x.static_shape, to_computed_type(x.dtype)
    w = t if t.startswith("f") else choose_word(t)
    scan = _Scan(
        x.dtype,
        f"({t})(({w})(%s) {operation} ({w})(%s))",
        neutral,
        "(first + (length - 1 - (n)) * inner)"
        if call.attributes["reverse"]
        else "(first + (n) * inner)",
        call.attributes["exclusive"],
    )
    head = f"typedef {choose_index_type(x.size + THREADS)} index; typedef {t} number;\n"
    parameters = (declare_numbers("x", x, "input"), declare_numbers("y", x, "output"))
    if value is None:
        axis = declare_numbers("axis", call.spec(1), "input", 1)
        body = head + _declare_lines(shape) + scan.by_thread(x.size)
        most = x.size // min(shape)
        kernel = Kernel(title, (axis, *parameters, TRAP), body, count_groups(most))
        return Code((kernel,), trap=f"axis {{}} is outside a tensor of rank {len(shape)}")
    axis_number = normalize_axis(int(value.reshape(-1)[0]), len(shape))
    length, inner = shape[axis_number], prod(shape[axis_number + 1 :])
    head += f"const index length = {length}, inner = {inner};\n"
    lines = x.size // length
    if inner == 1:
        return Code((Kernel(title, parameters, head + scan.by_group(), lines),))
    return Code((Kernel(title, parameters, head + scan.by_thread(x.size), count_groups(lines)),))


generates("CumSum")(partial(_scan, "cum_sum", "+", 0))
generates("CumProd")(partial(_scan, "cum_prod", "*", 1))


def _declare_lines(shape: tuple[int, ...]) -> str:
    """Return statements that find the lines of a `shape` along an axis known only at run time.

    An invalid axis is stored in `TRAP` and read as the first one.
    """
    rank = len(shape)
    lengths = " : ".join([*(f"at == {i} ? {shape[i]}" for i in range(rank)), "1"])
    inner = " : ".join([*(f"at == {i} ? {prod(shape[i + 1 :])}" for i in range(rank)), "1"])
    return f"""\
i64 at = axis[0];
if (at < 0) at += {rank};
if (at < 0 || at >= {rank}) {{ trap[0] = axis[0]; at = 0; }}
const index length = {lengths}, inner = {inner};
"""


class _Scan(NamedTuple):
    dtype: np.dtype[Any]
    combine: str
    """An expression with two ``%s`` for the operands."""
    neutral: int
    where: str
    """The place of the ``n``-th element of a line from ``first`` on."""
    exclusive: bool

    def by_thread(self, size: int) -> str:
        update = f"total = {self.combine % ('total', load(self.dtype, 'x', self.where))};"
        write = store(self.dtype, "y", self.where, "total")
        return f"""\
const index line = (index)GROUP * {THREADS} + THREAD;
if (line >= {size} / length) return;
const index first = line / inner * length * inner + line % inner;
number total = {self.neutral};
for (index n = 0; n < length; n++) {{
    {f"{write} {update}" if self.exclusive else f"{update} {write}"}
}}"""

    def by_group(self) -> str:
        """Return the scan of a line by a group: of blocks, each of which starts with a carry.

        Within a block, distances are doubled.

        References
        ----------
        .. [1] W. D. Hillis and G. L. Steele, "Data parallel algorithms", 1986.
        """
        result = "THREAD > 0 ? part[THREAD - 1] : carry" if self.exclusive else "part[THREAD]"
        return f"""\
SHARED number part[{THREADS}];
const index first = (index)GROUP * length;
number carry = {self.neutral};
for (index block = 0; block < length; block += {THREADS}) {{
    const index n = block + THREAD;
    number value = {self.neutral};
    if (n < length) value = {load(self.dtype, "x", self.where)};
    if (THREAD == 0) value = {self.combine % ("carry", "value")};
    part[THREAD] = value;
    for (i32 distance = 1; distance < {THREADS}; distance *= 2) {{
        BARRIER;
        const number before = THREAD >= distance ? part[THREAD - distance] : {self.neutral};
        BARRIER;
        if (THREAD >= distance) part[THREAD] = {self.combine % ("before", "part[THREAD]")};
    }}
    BARRIER;
    if (n < length) {store(self.dtype, "y", self.where, result)}
    carry = part[{THREADS - 1}];
    BARRIER;
}}"""
