"""Exact kernels that put elements into another shape or order, repeat them, or take some."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ....devices.kernels.arguments import to_lines
from ....devices.kernels.movement import concat, tile, transpose
from ....devices.kernels.registry import ArrayModule, Arrays, Step, kernel, run_in_order
from ....devices.kernels.reshaping import copy_bytes
from ....graph.core.attribute import Attributes
from ....graph.core.operator import Call, Specs
from ....graph.values.tensor import Array, TensorSpec
from ..operators.movement import align, get_permutation, slice_ranges

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


@kernel("cvm.strided_slice", binds=True)
def slice_strided(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    x = inputs[0]
    parts = tuple(
        slice(taken.start, taken.stop if taken.stop >= 0 else None, taken.step)
        for taken in slice_ranges(x.shape, attributes)
    )
    return partial(xp.copyto, outputs[0], x[parts])


@kernel("cvm.slice_like", binds=True)
def slice_like(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    y = outputs[0]
    return partial(xp.copyto, y, inputs[0][tuple(map(slice, y.shape))])


def _list_indices_scratch(index: int, call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return [TensorSpec("int64", call.spec(index).shape)]


@kernel("cvm.take", scratch=partial(_list_indices_scratch, 1), binds=True)
def take(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (x, indices), (y,), (places,) = inputs, outputs, scratch
    if attributes["axis"] is None:
        return _take(xp, x.reshape(1, -1, 1), indices, y, places)
    return _take(xp, to_lines(x, attributes["axis"]), indices, y, places)


@kernel("cvm.lut", scratch=partial(_list_indices_scratch, 0), binds=True)
def look_up(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (indices, table), (y,), (places,) = inputs, outputs, scratch
    return _take(xp, table.reshape(1, -1, 1), indices, y, places)


def _take(xp: ArrayModule, lines: Array, indices: Array, y: Array, places: Array) -> Step:
    """Return the step on `xp` that copies `lines`, (outer, length, inner), at `indices` to `y`.

    `places` is the buffer for the clamped indices.
    """
    outer, length, inner = lines.shape
    flat = places.reshape(-1)
    target = y.reshape(outer, flat.size, inner)
    return run_in_order(
        (
            partial(xp.copyto, flat, indices.reshape(-1)),
            partial(xp.maximum, flat, 0, out=flat),
            partial(xp.minimum, flat, length - 1, out=flat),
            partial(lines.take, flat, 1, target, "wrap")  # unlike "raise" it writes in place
            if xp is np
            else partial(xp.take, lines, flat, 1, target),
        )
    )
