"""The gradient of MaxPool: each cell looks for the windows whose maximum it was."""

from __future__ import annotations

import math

from ...graph.operator import Call, Specs
from ...graph.operators.pooling import pooling_window
from .indexing import contiguous, coordinates, index_type, offset
from .kernel import THREADS, Code, Kernel, groups_of
from .reduction import input_of, output_of
from .registry import generates
from .types import computed_type, literal, load, store


@generates("MaxPoolGradient")
def max_pool_gradient(call: Call, outputs: Specs) -> Code:
    """DX = the sum of dY over the windows around a cell whose index is the cell's.

    Tap by tap there is at most one window that has the tap on the cell: the order of the sum, and
    so its bits, are always the same.
    """
    dy, dx = call.spec(0), outputs[0]
    window, _ = pooling_window(dx.static_shape, call.attributes)
    assert window is not None
    spatial, places = dx.static_shape[2:], dy.static_shape[2:]
    c, real = index_type(dx.size + THREADS, dy.size + THREADS), computed_type(dy.dtype)
    body = [
        f"const {c} i = ({c})GROUP * {THREADS} + THREAD;",
        f"if (i >= {dx.size}) return;",
        f"const {c} plane = i / {math.prod(spatial)};",
        *coordinates(f"(i % {math.prod(spatial)})", spatial, "p", c),
        f"{real} sum = {literal(0, real)};",
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
            f"from{axis} >= 0 && from{axis} % {stride} == 0 && o{axis} < {places[axis]}"
        )
    at = offset(contiguous(places), "o")
    body += [
        f"if ({' && '.join(conditions)}) {{",
        f"const {c} at = plane * {math.prod(places)} + {at};",
        f"if (places[at] == i) sum = sum + {load(dy.dtype, 'dy', 'at')};",
        "}",
        "}" * len(spatial),
        store(dx.dtype, "dx", "i", "sum"),
    ]
    taken = (input_of(dy, "dy"), input_of(call.spec(1), "places", 1), output_of(dx, "dx"))
    return Code((Kernel("unpool_gradient", taken, "\n".join(body), groups_of(dx.size)),))
