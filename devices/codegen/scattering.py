"""Generators that write at the places that a tensor of indices names.

Where a place is named twice any of its updates wins: ONNX forbids it.
"""

from __future__ import annotations

from math import prod

from ...graph.dims import normalize_axis
from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from .cells import cells, in_words, moved, place, typed
from .copying import Layout, copy, words_of
from .gathering import names_nothing, outside, outside_of, row_places
from .indexing import contiguous, offset
from .kernel import TRAP, Code, Kernel
from .registry import generates


def _combines(call: Call) -> str | None:
    if call.attributes["reduction"] != "none":
        return "no kernel is generated for scattered updates that are combined"
    return names_nothing(call)


def _copied(x: TensorSpec) -> Kernel:
    """Return the kernel that copies all of the data; y may lie on it."""
    source = Layout(contiguous(x.static_shape))
    return copy("copy", x.dtype.itemsize, x.static_shape, source)


@generates("ScatterElements", unless=_combines)
def scatter_elements(call: Call, outputs: Specs) -> Code:
    """y[i, indices[i, j, ...], ...] = updates[i, j, ...], for the axis in the place of j."""
    x, indices = call.spec(0), call.spec(1)
    if not x.size:
        return Code(())
    strides = contiguous(x.static_shape)
    axis = normalize_axis(call.attributes["axis"], len(strides))
    others = [0 if i == axis else stride for i, stride in enumerate(strides)]
    length = x.static_shape[axis]
    statements = [
        *place("p", "indices[i]", length),
        f"y[{offset(others, 'k')} + p * {strides[axis]}] = updates[i];",
    ]
    parameters = [
        typed("indices", indices, "input", 1),
        moved("updates", x, "input", 2),
        moved("y", x, "output"),
        TRAP,
    ]
    write = cells("scatter_elements", indices.static_shape, parameters, statements, [x.size])
    return Code((_copied(x), write), trap=outside(axis, length))


@generates("ScatterND", unless=_combines)
def scatter_nd(call: Call, outputs: Specs) -> Code:
    """Write data with updates at rows of indices."""
    x, indices = call.spec(0), call.spec(1)
    if not x.size:
        return Code(())
    depth = indices.static_shape[-1]
    rows = indices.size // depth
    size, inner = words_of(x.dtype.itemsize, prod(x.static_shape[depth:]))
    statements = [
        "index p = 0;",
        *row_places(x.static_shape[:depth], depth, "k0"),
        f"y[p * {inner} + k1] = updates[i];",
    ]
    parameters = [
        typed("indices", indices, "input", 1),
        in_words("updates", size, "input", 2),
        in_words("y", size, "output"),
        TRAP,
    ]
    sizes = [x.size, indices.size]
    write = cells("scatter_nd", (rows, inner), parameters, statements, sizes)
    return Code((_copied(x), write), trap=outside_of(x.static_shape[:depth]))


@generates("TensorScatter")
def tensor_scatter(call: Call, outputs: Specs) -> Code:
    """Write the cache, with an update from each sample's index on."""
    x, update = call.spec(0), call.spec(1)
    shape = x.static_shape
    axis = normalize_axis(call.attributes["axis"], len(shape))
    inner, length, count = prod(shape[axis + 1 :]), shape[axis], update.static_shape[axis]
    parameters = [moved("x", x, "input"), moved("updates", update, "input", 1)]
    start, check = "0", []
    if call.has(2):
        parameters.append(typed("starts", call.spec(2), "input", 2))
        start = f"starts[k0 / {prod(shape[1:axis])}]"
    parameters.append(moved("y", x, "output"))
    step = f"(i64)k1 - (i64){start}"
    if call.attributes["mode"] == "circular":
        step = f"place_i64(({step}) % {length}, {length})"
    elif call.has(2):
        parameters.append(TRAP)
        check = [f"if ({start} < 0 || {start} > {length - count}) trap[0] = {start};"]
    statements = [
        *check,
        f"i64 ahead = {step};",
        f"y[i] = ahead >= 0 && ahead < {count} ? "
        f"updates[(k0 * {count} + (index)ahead) * {inner} + k2] : x[i];",
    ]
    cut = (prod(shape[:axis]), length, inner)
    kernel = cells("tensor_scatter", cut, parameters, statements, [update.size])
    trap = f"{count} places from {{}} on are not on axis {axis} of length {length}"
    return Code((kernel,), trap=trap)
