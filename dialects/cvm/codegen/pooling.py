"""Exact maxima over windows."""

from __future__ import annotations

from ....devices.codegen.cells import cells, typed
from ....devices.codegen.folds import extreme
from ....devices.codegen.kernel import Code
from ....devices.codegen.registry import generates
from ....devices.codegen.types import literal
from ....devices.codegen.windows import Sliding
from ....graph.operator import Call, Specs
from ....graph.windows import Window
from ..operators.neural import pooling_steps


def _sliding(call: Call) -> Sliding:
    steps = pooling_steps(call.spec(0).static_shape[2:], call.attributes)
    spatial, outputs, pools, strides, pads = zip(*steps, strict=True)
    return Sliding(spatial, outputs, Window(pools, strides, (1, 1), pads, pads))


@generates("cvm.max_pool2d")
def max_pool(call: Call, outputs: Specs) -> Code:
    """Y = the largest cell of each window."""
    x, y, sliding = call.spec(0), outputs[0], _sliding(call)
    cell = sliding.read("", "index")
    value = f"x[plane * {sliding.cells} + {cell.offset}]"
    if cell.condition:
        value = f"{cell.condition} ? {value} : best"
    take = f"best = max_i32(best, {value});"
    statements = [
        f"const index plane = i / {sliding.planes};",
        *sliding.place(f"(i % {sliding.planes})", "", "index"),
        f"i32 best = {literal(extreme(x.dtype, 'min'), 'i32')};",
        *sliding.over_taps([*cell.statements, take]),
        "y[i] = best;",
    ]
    parameters = (typed("x", x, "input"), typed("y", y, "output"))
    return Code((cells("max_pool", y.static_shape, parameters, statements, [x.size]),))
