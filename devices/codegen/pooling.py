"""Pooling over windows, one output per thread, and the inverses of max pooling.

In the gradient of MaxPool, each cell looks for the windows with their maximum there. Each generator
takes a `call` and the specs of its `outputs`, and returns the `Code`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...graph.core.operator import Call, Specs
from ...graph.operators.pooling import find_pooling_window, infer_unpooled_shape
from ...graph.values.tensor import TensorSpec
from .folds import find_extreme, make_extremum
from .indexing import choose_index_type, declare_coordinates, make_strides, write_offset
from .reduction import declare_input, declare_output, write_power, write_root
from .registry import THREADS, TRAP, Code, Kernel, Parameter, count_groups, generates
from .types import is_float, load, store, to_computed_type, write_literal
from .windows import Sliding


class _Pooling:
    """Writes a kernel that visits the cells of each output's window."""

    def __init__(self, call: Call, y: TensorSpec) -> None:
        x = call.spec(0)
        window, _ = find_pooling_window(x.static_shape, call.attributes)
        assert window is not None
        self.sliding = Sliding(x.static_shape[2:], y.static_shape[2:], window)
        self.size = y.size
        self.dtype, self.ctype = x.dtype, to_computed_type(x.dtype)
        self.index = choose_index_type(x.size + THREADS, y.size + THREADS)
        self.cell = self.sliding.read("", self.index)

    def value(self) -> str:
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
        """Return the code of kernel `title` with `parameters`, a loop over the taps of each window.

        `begin` runs first, `each` for a tap inside of the image, `always` for any tap, `end` last.
        """
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
        return Code((Kernel(title, tuple(parameters), "\n".join(body), count_groups(self.size)),))


@generates("MaxPool")
def max_pool(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`; the maximum of an empty window is the least number."""
    x, y = call.spec(0), outputs[0]
    pooling = _Pooling(call, y)
    c, parameters = pooling.ctype, [declare_input(x), declare_output(y)]
    least = f"{c} best = {write_literal(find_extreme(x.dtype, 'min'), c)};"
    write = store(y.dtype, "y", "i", "best")
    if len(outputs) == 1:
        take = f"best = {make_extremum(x.dtype, 'max').combine('best', 'value')};"
        return pooling.kernel("max_pool", parameters, [least], [take], [write])
    spatial = pooling.sliding.spatial
    counted = (
        _write_column_major(spatial) if call.attributes["storage_order"] else pooling.cell.offset
    )
    # A NaN is larger than all, and the first one stays.
    unordered = " || (value != value && best == best)" if is_float(x.dtype) else ""
    take = f"if (place < 0 || value > best{unordered}) {{ best = value; place = {counted}; }}"
    parameters.append(declare_output(outputs[1], "places", 1))
    found = f"places[i] = plane * {pooling.sliding.cells} + (place < 0 ? 0 : place);"
    begin = [least, f"{pooling.index} place = -1;"]
    return pooling.kernel("max_pool", parameters, begin, [take], [write, found])


def _write_column_major(spatial: Sequence[int]) -> str:
    return write_offset([math.prod(spatial[:axis]) for axis in range(len(spatial))], "p")


@generates("AveragePool")
def average_pool(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: the sum over each window, divided by its cells.

    Padding counts with count_include_pad; cells that ceil_mode adds after it never count.
    """
    x, y = call.spec(0), outputs[0]
    pooling = _Pooling(call, y)
    c, each, always = pooling.ctype, ["sum = sum + value;"], list[str]()
    if call.attributes["count_include_pad"]:
        # Cells that rounding up adds after the padding never count.
        always = [f"if ({_require_padding(pooling.sliding)}) count++;"]
    else:
        each.append("count++;")
    return pooling.kernel(
        "average_pool",
        (declare_input(x), declare_output(y)),
        [f"{c} sum = {write_literal(0, c)};", "i32 count = 0;"],
        each,
        [store(y.dtype, "y", "i", f"sum / ({c})(count > 0 ? count : 1)")],
        always,
    )


def _require_padding(sliding: Sliding) -> str:
    window = sliding.window
    ends = [length + pad for length, pad in zip(sliding.spatial, window.pads_end, strict=True)]
    return " && ".join(f"p{axis} < {end}" for axis, end in enumerate(ends))


@generates("LpPool")
def lp_pool(call: Call, outputs: Specs) -> Code:
    x, y, p = call.spec(0), outputs[0], call.attributes["p"]
    pooling = _Pooling(call, y)
    c = pooling.ctype
    return pooling.kernel(
        "lp_pool",
        (declare_input(x), declare_output(y)),
        [f"{c} sum = {write_literal(0, c)};"],
        [f"sum = sum + {write_power('value', p, c)};"],
        [store(y.dtype, "y", "i", write_root("sum", p, c))],
    )


@generates("MaxPoolGradient")
def max_pool_gradient(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: in each cell, the sum of dY over windows it is in.

    Each tap covers the cell in at most one window: the order of the sum, and so its bits, are
    always the same.
    """
    dy, dx = call.spec(0), outputs[0]
    window, _ = find_pooling_window(dx.static_shape, call.attributes)
    assert window is not None
    spatial, places = dx.static_shape[2:], dy.static_shape[2:]
    c, real = choose_index_type(dx.size + THREADS, dy.size + THREADS), to_computed_type(dy.dtype)
    body = [
        f"const {c} i = ({c})GROUP * {THREADS} + THREAD;",
        f"if (i >= {dx.size}) return;",
        f"const {c} plane = i / {math.prod(spatial)};",
        *declare_coordinates(f"(i % {math.prod(spatial)})", spatial, "p", c),
        f"{real} sum = {write_literal(0, real)};",
    ]
    conditions = []
    for axis, size in enumerate(window.kernel):
        stride, apart = window.strides[axis], window.dilations[axis]
        body += [
            f"for (i32 t{axis} = 0; t{axis} < {size}; t{axis}++) {{",
            f"const {c} from{axis} = p{axis} + {window.pads_begin[axis]} - t{axis} * {apart};",
            f"const {c} o{axis} = from{axis} / {stride};",
        ]
        conditions.append(
            # A window that begins `tap` cells before the cell, if a window begins there.
            f"from{axis} >= 0 && from{axis} % {stride} == 0 && o{axis} < {places[axis]}"
        )
    at = write_offset(make_strides(places), "o")
    body += [
        f"if ({' && '.join(conditions)}) {{",
        f"const {c} at = plane * {math.prod(places)} + {at};",
        f"if (places[at] == i) sum = sum + {load(dy.dtype, 'dy', 'at')};",
        "}",
        "}" * len(spatial),
        store(dx.dtype, "dx", "i", "sum"),
    ]
    taken = (
        declare_input(dy, "dy"),
        declare_input(call.spec(1), "places", 1),
        declare_output(dx, "dx"),
    )
    return Code((Kernel("unpool_gradient", taken, "\n".join(body), count_groups(dx.size)),))


@generates("MaxUnpool")
def max_unpool(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: x at the places that the indices name, 0 elsewhere.

    Where several name one place, any of them is written; places beyond the end of y are skipped,
    and indices beyond the unpooled shape are an error.
    """
    x, y = call.spec(0), outputs[0]
    shape = [int(n) for n in infer_unpooled_shape(x.static_shape, call.attributes)]
    c = choose_index_type(x.size + THREADS, y.size + THREADS, math.prod(shape))
    start = f"const {c} i = ({c})GROUP * {THREADS} + THREAD;"
    zero = store(y.dtype, "y", "i", write_literal(0, to_computed_type(y.dtype)))
    clear = [start, f"if (i < {y.size}) {zero}"]
    inside = [
        f"p{axis} < {length}"
        for axis, (length, counted) in enumerate(zip(y.static_shape, shape, strict=True))
        if length < counted
    ]
    at, value = write_offset(make_strides(y.static_shape), "p"), load(x.dtype, "x", "i")
    scatter = [
        start,
        f"if (i >= {x.size}) return;",
        "const i64 place = places[i];",
        f"if (place < 0 || place >= {math.prod(shape)}) {{ trap[0] = place; return; }}",
        *declare_coordinates("place", shape, "p", c),
        f"if ({' && '.join(inside) or '1'}) {store(y.dtype, 'y', at, value)}",
    ]
    target, places = declare_output(y), declare_input(call.spec(1), "places", 1)
    each = count_groups(x.size)
    return Code(
        (
            Kernel("clear", (target,), "\n".join(clear), count_groups(y.size)),
            Kernel("unpool", (declare_input(x), places, target, TRAP), "\n".join(scatter), each),
        ),
        trap=f"index {{}} is not one of {math.prod(shape)} places",
    )
