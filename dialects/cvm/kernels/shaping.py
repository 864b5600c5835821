"""Exact kernels that move elements into another shape or order, or repeat them."""

from __future__ import annotations

import itertools
from functools import partial

from ....devices.kernels.axes import index_at, to_lines
from ....devices.kernels.movement import transpose
from ....devices.kernels.registry import ArrayModule, Arrays, kernel
from ....devices.kernels.reshaping import copy_bytes
from ....devices.kernels.steps import Step, run_in_order
from ....graph.core.attribute import Attributes
from ..operators.shaping import align, get_permutation

for _op in ("flatten", "expand_dims", "reshape", "squeeze"):
    kernel(f"cvm.{_op}", binds=True)(copy_bytes)


@kernel("cvm.transpose", binds=True)
def transpose_exact(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    perm = get_permutation(inputs[0].ndim, attributes["axes"])
    step: Step = transpose(xp, inputs, outputs, {"perm": perm})
    return step


@kernel("cvm.repeat", binds=True)
def repeat(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    lines = to_lines(inputs[0], attributes["axis"])
    outer, length, inner = lines.shape
    repeated = outputs[0].reshape(outer, length, attributes["repeats"], inner)
    return partial(xp.copyto, repeated, lines[:, :, None])


@kernel("cvm.tile", binds=True)
def tile(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    shape, reps = align(inputs[0].shape, attributes["reps"])
    tiles = outputs[0].reshape([*itertools.chain(*zip(reps, shape, strict=True))])
    return partial(
        xp.copyto, tiles, inputs[0].reshape([*itertools.chain(*((1, length) for length in shape))])
    )


@kernel("cvm.concatenate", binds=True)
def concatenate(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    y, begin, copies = outputs[0], 0, list[Step]()
    axis = attributes["axis"] % y.ndim
    for x in inputs:
        end = begin + x.shape[axis]
        copies.append(partial(xp.copyto, y[index_at(axis, slice(begin, end))], x))
        begin = end
    return run_in_order(copies)
