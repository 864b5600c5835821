"""Generators that read at the places that a tensor of indices names."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...graph.dims import normalize_axis
from ...graph.operator import Call, Specs
from .cells import cells, in_words, moved, place, typed
from .copying import words_of
from .indexing import contiguous, offset
from .kernel import TRAP, Code
from .registry import generates


def outside(axis: int, length: int) -> str:
    """Return what is said of an index that is not on an axis."""
    return f"index {{}} is outside axis {axis} of length {length}"


def outside_of(lengths: Sequence[int]) -> str:
    """Return what is said of an index that is not on the one of several axes that it is for."""
    return f"index {{}} is outside its axis; the axes have the lengths {list(lengths)}"


def names_nothing(call: Call) -> str | None:
    """Return why there is no kernel: all places that indices may name are on an axis of none."""
    x, indices = call.spec(0), call.spec(1)
    if x.is_static and indices.is_static and indices.size and not x.size:
        return "no index is within data without elements"
    return None


@generates("Gather", unless=names_nothing)
def gather(call: Call, outputs: Specs) -> Code:
    """Write x at the indices along an axis."""
    if not outputs[0].size:
        return Code(())
    x, indices = call.spec(0), call.spec(1)
    shape = x.static_shape
    axis = normalize_axis(call.attributes["axis"], len(shape))
    size, inner = words_of(x.dtype.itemsize, prod(shape[axis + 1 :]))
    length = shape[axis]
    statements = [
        *place("p", "indices[k1]", length),
        f"y[i] = x[(k0 * {length} + p) * {inner} + k2];",
    ]
    parameters = [
        in_words("x", size, "input"),
        typed("indices", indices, "input", 1),
        in_words("y", size, "output"),
        TRAP,
    ]
    cut = (prod(shape[:axis]), indices.size, inner)
    kernel = cells("gather", cut, parameters, statements, [x.size])
    return Code((kernel,), trap=outside(axis, length))


@generates("GatherElements", unless=names_nothing)
def gather_elements(call: Call, outputs: Specs) -> Code:
    """y[i, j, ...] = x[i, indices[i, j, ...], ...], for the axis in the place of j."""
    if not outputs[0].size:
        return Code(())
    x, indices, y = call.spec(0), call.spec(1), outputs[0]
    strides = contiguous(x.static_shape)
    axis = normalize_axis(call.attributes["axis"], len(strides))
    others = [0 if i == axis else stride for i, stride in enumerate(strides)]
    where = f"{offset(others, 'k')} + p * {strides[axis]}"
    length = x.static_shape[axis]
    statements = [*place("p", "indices[i]", length), f"y[i] = x[{where}];"]
    parameters = [
        moved("x", x, "input"),
        typed("indices", indices, "input", 1),
        moved("y", y, "output"),
        TRAP,
    ]
    kernel = cells("gather_elements", y.static_shape, parameters, statements, [x.size])
    return Code((kernel,), trap=outside(axis, length))


@generates("GatherND", unless=names_nothing)
def gather_nd(call: Call, outputs: Specs) -> Code:
    """Write x's elements or slices at rows of indices."""
    if not outputs[0].size:
        return Code(())
    x, indices = call.spec(0), call.spec(1)
    batch, depth = call.attributes["batch_dims"], indices.static_shape[-1]
    lengths = x.static_shape[batch : batch + depth]
    size, inner = words_of(x.dtype.itemsize, prod(x.static_shape[batch + depth :]))
    batches = prod(x.static_shape[:batch])
    rows = indices.size // depth
    statements = [
        f"index p = k0 / {rows // batches};",
        *row_places(lengths, depth, "k0"),
        f"y[i] = x[p * {inner} + k1];",
    ]
    parameters = [
        in_words("x", size, "input"),
        typed("indices", indices, "input", 1),
        in_words("y", size, "output"),
        TRAP,
    ]
    kernel = cells("gather_nd", (rows, inner), parameters, statements, [x.size, indices.size])
    return Code((kernel,), trap=outside_of(lengths))


def row_places(lengths: tuple[int, ...], depth: int, row: str) -> list[str]:
    """Return the statements that move p on by the places that a row of indices names."""
    statements = []
    for column, length in enumerate(lengths):
        statements += place(f"p{column}", f"indices[{row} * {depth} + {column}]", length)
        statements.append(f"p = p * {length} + p{column};")
    return statements
