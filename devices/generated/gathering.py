"""Generators that read at the places that a tensor of indices names.

Indices outside an axis wrap around, as no kernel can raise: see `place`.
"""

from __future__ import annotations

from math import prod

from ...graph.dims import normalise_axis
from ...graph.operator import Call, Specs
from .cells import cells, in_words, moved, place, typed
from .copying import words_of
from .indexing import contiguous, offset
from .kernel import Code
from .registry import generates


def _nothing_to_read(call: Call, outputs: Specs) -> bool:
    """True when the output is empty, or any index is outside of the data."""
    return not outputs[0].size or not call.spec(0).size


def _empty(outputs: Specs) -> Code:
    """Return the code where there is nothing to read: it writes zeros."""
    y = outputs[0]
    return Code((cells("zeros", y.static_shape, [moved("y", y, "output")], ["y[i] = 0;"]),))


@generates("Gather")
def gather(call: Call, outputs: Specs) -> Code:
    """Write x at the indices along an axis."""
    if _nothing_to_read(call, outputs):
        return _empty(outputs)
    x, indices = call.spec(0), call.spec(1)
    shape = x.static_shape
    axis = normalise_axis(call.attributes["axis"], len(shape))
    size, inner = words_of(x.dtype.itemsize, prod(shape[axis + 1 :]))
    length = shape[axis]
    statements = [
        f"const index p = {place('indices[k1]', length)};",
        f"y[i] = x[(k0 * {length} + p) * {inner} + k2];",
    ]
    parameters = [
        in_words("x", size, "input"),
        typed("indices", indices, "input", 1),
        in_words("y", size, "output"),
    ]
    cut = (prod(shape[:axis]), indices.size, inner)
    return Code((cells("gather", cut, parameters, statements, [x.size]),))


@generates("GatherElements")
def gather_elements(call: Call, outputs: Specs) -> Code:
    """y[i, j, ...] = x[i, indices[i, j, ...], ...], for the axis in the place of j."""
    if _nothing_to_read(call, outputs):
        return _empty(outputs)
    x, indices, y = call.spec(0), call.spec(1), outputs[0]
    strides = contiguous(x.static_shape)
    axis = normalise_axis(call.attributes["axis"], len(strides))
    others = [0 if i == axis else stride for i, stride in enumerate(strides)]
    where = f"{offset(others, 'k')} + p * {strides[axis]}"
    statements = [
        f"const index p = {place('indices[i]', x.static_shape[axis])};",
        f"y[i] = x[{where}];",
    ]
    parameters = [
        moved("x", x, "input"),
        typed("indices", indices, "input", 1),
        moved("y", y, "output"),
    ]
    return Code((cells("gather_elements", y.static_shape, parameters, statements, [x.size]),))


@generates("GatherND")
def gather_nd(call: Call, outputs: Specs) -> Code:
    """Write x's elements or slices at rows of indices."""
    if _nothing_to_read(call, outputs):
        return _empty(outputs)
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
    ]
    sizes = [x.size, indices.size]
    return Code((cells("gather_nd", (rows, inner), parameters, statements, sizes),))


def row_places(lengths: tuple[int, ...], depth: int, row: str) -> list[str]:
    """Return the statements that move p on by the places that a row of indices names."""
    return [
        f"p = p * {length} + {place(f'indices[{row} * {depth} + {column}]', length)};"
        for column, length in enumerate(lengths)
    ]
