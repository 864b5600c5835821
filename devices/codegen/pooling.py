"""Pooling over windows: a thread makes one output."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...graph.operator import Call, Specs
from ...graph.operators.pooling import pooling_window
from ...graph.tensor import TensorSpec
from .folds import extreme, extremum_of
from .indexing import index_type, offset
from .kernel import THREADS, Code, Kernel, Parameter, groups_of
from .reduction import input_of, output_of, power, root
from .registry import generates
from .types import computed_type, is_float, literal, load, store
from .windows import Sliding


class _Pooling:
    """Writes a kernel that goes over the cells of each output's window."""

    def __init__(self, call: Call, y: TensorSpec) -> None:
        x = call.spec(0)
        window, _ = pooling_window(x.static_shape, call.attributes)
        assert window is not None
        self.sliding = Sliding(x.static_shape[2:], y.static_shape[2:], window)
        self.size = y.size
        self.dtype, self.ctype = x.dtype, computed_type(x.dtype)
        self.index = index_type(x.size + THREADS, y.size + THREADS)
        self.cell = self.sliding.read("", self.index)

    def value(self) -> str:
        """Return the statement that declares the value of a cell."""
        at = f"plane * {self.sliding.cells} + {self.cell.offset}"
        return f"const {self.ctype} value = {load(self.dtype, 'x', at)};"

    def kernel(
        self,
        title: str,
        parameters: Sequence[Parameter],
        begin: Sequence[str],
        each: Sequence[str],
        end: Sequence[str],
        always: Sequence[str] = (),
    ) -> Code:
        """Return the code: what is done before, for each cell, for each tap, and at last."""
        c, cell = self.index, self.cell
        inner = [self.value(), *each]
        if cell.condition:
            inner = [f"if ({cell.condition}) {{", *inner, "}"]
        body = [
            f"const {c} i = ({c})GROUP * {THREADS} + THREAD;",
            f"if (i >= {self.size}) return;",
            f"const {c} plane = i / {self.sliding.planes};",
            *self.sliding.place(f"(i % {self.sliding.planes})", "", c),
            *begin,
            *self.sliding.over_taps([*cell.statements, *inner, *always]),
            *end,
        ]
        return Code((Kernel(title, tuple(parameters), "\n".join(body), groups_of(self.size)),))


@generates("MaxPool")
def max_pool(call: Call, outputs: Specs) -> Code:
    """Y = the maximum over each window, the first of equal ones; of nothing, the least number."""
    x, y = call.spec(0), outputs[0]
    pooling = _Pooling(call, y)
    c, parameters = pooling.ctype, [input_of(x), output_of(y)]
    least = f"{c} best = {literal(extreme(x.dtype, 'min'), c)};"
    write = store(y.dtype, "y", "i", "best")
    if len(outputs) == 1:
        take = f"best = {extremum_of(x.dtype, 'max').combine('best', 'value')};"
        return pooling.kernel("max_pool", parameters, [least], [take], [write])
    spatial = pooling.sliding.spatial
    counted = _column_major(spatial) if call.attributes["storage_order"] else pooling.cell.offset
    unordered = " || (value != value && best == best)" if is_float(x.dtype) else ""
    take = f"if (place < 0 || value > best{unordered}) {{ best = value; place = {counted}; }}"
    parameters.append(output_of(outputs[1], "places", 1))
    found = f"places[i] = plane * {pooling.sliding.cells} + (place < 0 ? 0 : place);"
    begin = [least, f"{pooling.index} place = -1;"]
    return pooling.kernel("max_pool", parameters, begin, [take], [write, found])


def _column_major(spatial: Sequence[int]) -> str:
    return offset([math.prod(spatial[:axis]) for axis in range(len(spatial))], "p")


@generates("AveragePool")
def average_pool(call: Call, outputs: Specs) -> Code:
    """Y = the sum over each window, divided by the number of its cells.

    Padding counts where `count_include_pad` says so; what `ceil_mode` adds behind it never does.
    """
    x, y = call.spec(0), outputs[0]
    pooling = _Pooling(call, y)
    c, each, always = pooling.ctype, ["sum = sum + value;"], list[str]()
    if call.attributes["count_include_pad"]:
        always = [f"if ({_in_padding(pooling.sliding)}) count++;"]
    else:
        each.append("count++;")
    return pooling.kernel(
        "average_pool",
        (input_of(x), output_of(y)),
        [f"{c} sum = {literal(0, c)};", "i32 count = 0;"],
        each,
        [store(y.dtype, "y", "i", f"sum / ({c})(count > 0 ? count : 1)")],
        always,
    )


def _in_padding(sliding: Sliding) -> str:
    """Return the condition that a cell is in the input or its padding."""
    window = sliding.window
    ends = [length + pad for length, pad in zip(sliding.spatial, window.pads_end, strict=True)]
    return " && ".join(f"p{axis} < {end}" for axis, end in enumerate(ends))


@generates("LpPool")
def lp_pool(call: Call, outputs: Specs) -> Code:
    """Y = (Σ |x|ᵖ)^(1/p) over each window."""
    x, y, p = call.spec(0), outputs[0], call.attributes["p"]
    pooling = _Pooling(call, y)
    c = pooling.ctype
    return pooling.kernel(
        "lp_pool",
        (input_of(x), output_of(y)),
        [f"{c} sum = {literal(0, c)};"],
        [f"sum = sum + {power('value', p, c)};"],
        [store(y.dtype, "y", "i", root("sum", p, c))],
    )
