"""Exact generators that put elements into another order, or repeat them."""

from __future__ import annotations

from math import prod

from ....devices.codegen.kernel import Code
from ....devices.codegen.movement import concat, permute, repeat_axes
from ....devices.codegen.registry import generates
from ....graph.core.operator import Call, Specs
from ....graph.values.dims import normalize_axis
from ..operators.shaping import align, get_permutation

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
