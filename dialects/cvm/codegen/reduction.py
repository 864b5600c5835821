"""Exact sums and maxima over axes."""

from __future__ import annotations

from ....devices.codegen.folds import make_extremum, make_sum
from ....devices.codegen.reduction import declare_input, declare_output
from ....devices.codegen.registry import Code, generates
from ....devices.codegen.sweeps import LineFold, Lines, fold_lines
from ....graph.core.operator import Call, Specs
from ..operators.reduction import list_reduced_axes


def _reduce(call: Call, outputs: Specs, total: LineFold) -> Code:
    x = call.spec(0)
    lines = Lines(x.static_shape, list_reduced_axes(len(x.static_shape), call.attributes))
    write = f"y[line] = (i32){total.name};"
    return fold_lines(
        "reduce", lines, (declare_input(x), declare_output(outputs[0])), (total,), once=[write]
    )


@generates("cvm.sum")
def total(call: Call, outputs: Specs) -> Code:
    return _reduce(call, outputs, LineFold("total", make_sum("u32"), lambda at: f"(u32)x[{at}]"))


@generates("cvm.max")
def maximum(call: Call, outputs: Specs) -> Code:
    compute_limit = make_extremum(call.spec(0).dtype, "max")
    return _reduce(call, outputs, LineFold("best", compute_limit, lambda at: f"x[{at}]"))
