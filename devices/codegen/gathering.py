"""Generators that read at the places in a tensor of indices.

Each takes a `call` and the specs of its `outputs`, and returns the `Code`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...graph.core.operator import Call, Specs
from ...graph.values.dims import normalize_axis
from .cells import (
    declare_numbers,
    declare_place,
    declare_sized_words,
    declare_words,
    make_cell_kernel,
)
from .copying import choose_words
from .indexing import make_strides, write_offset
from .registry import TRAP, Code, generates


def describe_outside(axis: int, length: int) -> str:
    return f"index {{}} is outside axis {axis} of length {length}"


def describe_outside_axes(lengths: Sequence[int]) -> str:
    """Return a message, to fill in, for an index outside of its axis; the axes have `lengths`."""
    return f"index {{}} is outside its axis; the axes have the lengths {list(lengths)}"


def refuse_empty(call: Call) -> str | None:
    """Return why `call` can have no kernel: its indices point into an empty axis; None if not."""
    x, indices = call.spec(0), call.spec(1)
    if x.is_static and indices.is_static and indices.size and not x.size:
        return "no index is within data without elements"
    return None


@generates("Gather", unless=refuse_empty)
def gather(call: Call, outputs: Specs) -> Code:
    if not outputs[0].size:
        return Code(())
    x, indices = call.spec(0), call.spec(1)
    shape = x.static_shape
    axis = normalize_axis(call.attributes["axis"], len(shape))
    size, inner = choose_words(x.dtype.itemsize, prod(shape[axis + 1 :]))
    length = shape[axis]
    statements = [
        *declare_place("p", "indices[k1]", length),
        f"y[i] = x[(k0 * {length} + p) * {inner} + k2];",
    ]
    parameters = [
        declare_sized_words("x", size, "input"),
        declare_numbers("indices", indices, "input", 1),
        declare_sized_words("y", size, "output"),
        TRAP,
    ]
    cut = (prod(shape[:axis]), indices.size, inner)
    kernel = make_cell_kernel("gather", cut, parameters, statements, [x.size])
    return Code((kernel,), trap=describe_outside(axis, length))


@generates("GatherElements", unless=refuse_empty)
def gather_elements(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: for axis 1, x[i, indices[i, j, ...], ...]."""
    if not outputs[0].size:
        return Code(())
    x, indices, y = call.spec(0), call.spec(1), outputs[0]
    strides = make_strides(x.static_shape)
    axis = normalize_axis(call.attributes["axis"], len(strides))
    others = [0 if i == axis else stride for i, stride in enumerate(strides)]
    where = f"{write_offset(others, 'k')} + p * {strides[axis]}"
    length = x.static_shape[axis]
    statements = [*declare_place("p", "indices[i]", length), f"y[i] = x[{where}];"]
    parameters = [
        declare_words("x", x, "input"),
        declare_numbers("indices", indices, "input", 1),
        declare_words("y", y, "output"),
        TRAP,
    ]
    kernel = make_cell_kernel("gather_elements", y.static_shape, parameters, statements, [x.size])
    return Code((kernel,), trap=describe_outside(axis, length))


@generates("GatherND", unless=refuse_empty)
def gather_nd(call: Call, outputs: Specs) -> Code:
    if not outputs[0].size:
        return Code(())
    x, indices = call.spec(0), call.spec(1)
    batch, depth = call.attributes["batch_dims"], indices.static_shape[-1]
    lengths = x.static_shape[batch : batch + depth]
    size, inner = choose_words(x.dtype.itemsize, prod(x.static_shape[batch + depth :]))
    batches = prod(x.static_shape[:batch])
    rows = indices.size // depth
    statements = [
        f"index p = k0 / {rows // batches};",
        *declare_row_places(lengths, depth, "k0"),
        f"y[i] = x[p * {inner} + k1];",
    ]
    parameters = [
        declare_sized_words("x", size, "input"),
        declare_numbers("indices", indices, "input", 1),
        declare_sized_words("y", size, "output"),
        TRAP,
    ]
    kernel = make_cell_kernel(
        "gather_nd", (rows, inner), parameters, statements, [x.size, indices.size]
    )
    return Code((kernel,), trap=describe_outside_axes(lengths))


def declare_row_places(lengths: tuple[int, ...], depth: int, row: str) -> list[str]:
    """Return statements that advance p by the `depth` indices in `row`, of axes of `lengths`."""
    statements = []
    for column, length in enumerate(lengths):
        statements += declare_place(f"p{column}", f"indices[{row} * {depth} + {column}]", length)
        statements.append(f"p = p * {length} + p{column};")
    return statements
