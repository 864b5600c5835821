"""Exact generators that put elements into another order, repeat them, or take some."""

from __future__ import annotations

from math import prod

from ....devices.codegen.cells import declare_numbers, make_cell_kernel
from ....devices.codegen.movement import concat, copy_part, permute, repeat_axes
from ....devices.codegen.registry import Code, generates
from ....graph.core.operator import Call, Specs
from ....graph.values.dims import normalize_axis
from ....graph.values.tensor import TensorSpec
from ..operators.movement import align, get_permutation, slice_ranges

generates("cvm.concatenate")(concat)


@generates("cvm.transpose")
def transpose(call: Call, outputs: Specs) -> Code:
    shape = call.spec(0).static_shape
    order = get_permutation(len(shape), call.attributes["axes"])
    return permute("transpose", call, shape, order)


@generates("cvm.repeat")
def repeat(call: Call, outputs: Specs) -> Code:
    shape = call.spec(0).static_shape
    axis = normalize_axis(call.attributes["axis"], len(shape))
    rows, inner = prod(shape[: axis + 1]), prod(shape[axis + 1 :])
    return repeat_axes("repeat", call, [(1, rows), (call.attributes["repeats"], inner)])


@generates("cvm.tile")
def tile(call: Call, outputs: Specs) -> Code:
    shape, reps = align(call.spec(0).static_shape, call.attributes["reps"])
    return repeat_axes("tile", call, [*zip(reps, shape, strict=True)])


@generates("cvm.upsampling")
def upsample(call: Call, outputs: Specs) -> Code:
    *outer, height, width = call.spec(0).static_shape
    scale = call.attributes["scale"]
    return repeat_axes("upsample", call, [(1, prod(outer) * height), (scale, width), (scale, 1)])


@generates("cvm.strided_slice")
def strided_slice(call: Call, outputs: Specs) -> Code:
    return copy_part(
        "slice", call.spec(0), slice_ranges(call.spec(0).static_shape, call.attributes)
    )


@generates("cvm.slice_like")
def slice_like(call: Call, outputs: Specs) -> Code:
    return copy_part("slice", call.spec(0), [*map(range, outputs[0].static_shape)])


@generates("cvm.take")
def take(call: Call, outputs: Specs) -> Code:
    x, axis = call.spec(0), call.attributes["axis"]
    if axis is None:
        return _take(call, (0, 1), (1, x.size, 1), outputs[0])
    shape = x.static_shape
    axis = normalize_axis(axis, len(shape))
    lines = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    return _take(call, (0, 1), lines, outputs[0])


@generates("cvm.lut")
def look_up(call: Call, outputs: Specs) -> Code:
    return _take(call, (1, 0), (1, call.spec(1).size, 1), outputs[0])


def _take(call: Call, numbers: tuple[int, int], lines: tuple[int, int, int], y: TensorSpec) -> Code:
    """Return the code for `call` that takes from `lines`, (outer, length, inner), into `y`.

    It takes along the middle axis. `numbers` are the positions of the data and of the indices,
    which are clamped, among the inputs.
    """
    outer, length, inner = lines
    x, indices = (call.spec(number) for number in numbers)
    statements = [
        f"const index p = min_i32(max_i32(indices[k1], 0), {length - 1});",
        f"y[i] = x[(k0 * {length} + p) * {inner} + k2];",
    ]
    parameters = [
        declare_numbers("x", x, "input", numbers[0]),
        declare_numbers("indices", indices, "input", numbers[1]),
        declare_numbers("y", y, "output"),
    ]
    cut = (outer, indices.size, inner)
    return Code((make_cell_kernel("take", cut, parameters, statements, [x.size]),))
