"""Generators that write at the places in a tensor of indices.

Each takes a `call` and the specs of its `outputs`, and returns the `Code`. If a place occurs twice,
any of its updates wins: ONNX forbids it.
"""

from __future__ import annotations

from math import prod

from ...graph.core.operator import Call, Specs
from ...graph.values.dims import normalize_axis
from ...graph.values.tensor import TensorSpec
from .cells import (
    declare_numbers,
    declare_place,
    declare_sized_words,
    declare_words,
    make_cell_kernel,
)
from .copying import Layout, choose_words, copy
from .gathering import declare_row_places, describe_outside, describe_outside_axes, refuse_empty
from .indexing import make_strides, write_offset
from .registry import TRAP, Code, Kernel, generates


def _refuse(call: Call) -> str | None:
    if call.attributes["reduction"] != "none":
        return "no kernel is generated for scattered updates that are combined"
    return refuse_empty(call)


def _copy(x: TensorSpec) -> Kernel:
    source = Layout(make_strides(x.static_shape))
    return copy("copy", x.dtype.itemsize, x.static_shape, source)


@generates("ScatterElements", unless=_refuse)
def scatter_elements(call: Call, outputs: Specs) -> Code:
    x, indices = call.spec(0), call.spec(1)
    if not x.size:
        return Code(())
    strides = make_strides(x.static_shape)
    axis = normalize_axis(call.attributes["axis"], len(strides))
    others = [0 if i == axis else stride for i, stride in enumerate(strides)]
    length = x.static_shape[axis]
    statements = [
        *declare_place("p", "indices[i]", length),
        f"y[{write_offset(others, 'k')} + p * {strides[axis]}] = updates[i];",
    ]
    parameters = [
        declare_numbers("indices", indices, "input", 1),
        declare_words("updates", x, "input", 2),
        declare_words("y", x, "output"),
        TRAP,
    ]
    write = make_cell_kernel(
        "scatter_elements", indices.static_shape, parameters, statements, [x.size]
    )
    return Code((_copy(x), write), trap=describe_outside(axis, length))


@generates("ScatterND", unless=_refuse)
def scatter_nd(call: Call, outputs: Specs) -> Code:
    x, indices = call.spec(0), call.spec(1)
    if not x.size:
        return Code(())
    depth = indices.static_shape[-1]
    rows = indices.size // depth
    size, inner = choose_words(x.dtype.itemsize, prod(x.static_shape[depth:]))
    statements = [
        "index p = 0;",
        *declare_row_places(x.static_shape[:depth], depth, "k0"),
        f"y[p * {inner} + k1] = updates[i];",
    ]
    parameters = [
        declare_numbers("indices", indices, "input", 1),
        declare_sized_words("updates", size, "input", 2),
        declare_sized_words("y", size, "output"),
        TRAP,
    ]
    sizes = [x.size, indices.size]
    write = make_cell_kernel("scatter_nd", (rows, inner), parameters, statements, sizes)
    return Code((_copy(x), write), trap=describe_outside_axes(x.static_shape[:depth]))


@generates("TensorScatter")
def tensor_scatter(call: Call, outputs: Specs) -> Code:
    x, update = call.spec(0), call.spec(1)
    shape = x.static_shape
    axis = normalize_axis(call.attributes["axis"], len(shape))
    inner, length, count = prod(shape[axis + 1 :]), shape[axis], update.static_shape[axis]
    parameters = [declare_words("x", x, "input"), declare_words("updates", update, "input", 1)]
    start, check = "0", []
    if call.has(2):
        parameters.append(declare_numbers("starts", call.spec(2), "input", 2))
        start = f"starts[k0 / {prod(shape[1:axis])}]"
    parameters.append(declare_words("y", x, "output"))
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
    kernel = make_cell_kernel("tensor_scatter", cut, parameters, statements, [update.size])
    trap = f"{count} places from {{}} on are not on axis {axis} of length {length}"
    return Code((kernel,), trap=trap)
