"""Exact kernels that move elements into another shape or order, or repeat them."""

from __future__ import annotations

from functools import partial

from ....devices.kernels.axes import to_lines
from ....devices.kernels.movement import concat, tile, transpose
from ....devices.kernels.registry import ArrayModule, Arrays, kernel
from ....devices.kernels.reshaping import copy_bytes
from ....devices.kernels.steps import Step
from ....graph.core.attribute import Attributes
from ..operators.shaping import align, get_permutation

for _op in ("flatten", "expand_dims", "reshape", "squeeze"):
    kernel(f"cvm.{_op}", binds=True)(copy_bytes)
kernel("cvm.concatenate", binds=True)(concat)


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
def tile_exact(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    shape, _ = align(inputs[0].shape, attributes["reps"])
    step: Step = tile(xp, [inputs[0].reshape(shape)], outputs, attributes)
    return step
