"""MaxUnpool: maxima put back to their places."""

from __future__ import annotations

import math

from ...graph.operator import Call, Specs
from ...graph.operators.pooling import unpooled_shape
from .indexing import contiguous, coordinates, index_type, offset
from .kernel import THREADS, TRAP, Code, Kernel, groups_of
from .reduction import input_of, output_of
from .registry import generates
from .types import computed_type, literal, load, store


@generates("MaxUnpool")
def max_unpool(call: Call, outputs: Specs) -> Code:
    """Y = x at the places that the indices name, 0 elsewhere.

    Where several name one place, any of them is written; places beyond the end of y are not.
    """
    x, y = call.spec(0), outputs[0]
    shape = [int(n) for n in unpooled_shape(x.static_shape, call.attributes)]
    c = index_type(x.size + THREADS, y.size + THREADS, math.prod(shape))
    start = f"const {c} i = ({c})GROUP * {THREADS} + THREAD;"
    zero = store(y.dtype, "y", "i", literal(0, computed_type(y.dtype)))
    clear = [start, f"if (i < {y.size}) {zero}"]
    inside = [
        f"p{axis} < {length}"
        for axis, (length, counted) in enumerate(zip(y.static_shape, shape, strict=True))
        if length < counted
    ]
    at, value = offset(contiguous(y.static_shape), "p"), load(x.dtype, "x", "i")
    scatter = [
        start,
        f"if (i >= {x.size}) return;",
        "const i64 place = places[i];",
        f"if (place < 0 || place >= {math.prod(shape)}) {{ trap[0] = place; return; }}",
        *coordinates("place", shape, "p", c),
        f"if ({' && '.join(inside) or '1'}) {store(y.dtype, 'y', at, value)}",
    ]
    target, places = output_of(y), input_of(call.spec(1), "places", 1)
    each = groups_of(x.size)
    return Code(
        (
            Kernel("clear", (target,), "\n".join(clear), groups_of(y.size)),
            Kernel("unpool", (input_of(x), places, target, TRAP), "\n".join(scatter), each),
        ),
        trap=f"index {{}} is not one of {math.prod(shape)} places",
    )
