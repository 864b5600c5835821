"""The kernel of Fused: elementwise kernels in order, on each block of the output.

Intermediate values never leave the cache. Kernels that choose by length choose the same for a block
as for the whole, since blocks are long enough: the result has the bits of single nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.ir import Node
from ...graph.core.operator import Call, Specs
from ...graph.core.traits import ELEMENTWISE
from ...graph.operators.fused import FUSED, get_body
from ...graph.values.tensor import Array, TensorSpec, spec_of
from .fused_blocks import KIND, BlockMember, BodyBlocks, declare_member_scratch
from .registry import ArrayModule, Arrays, find_kernel, kernel
from .steps import Step, run_in_order
from .tiling import Dims, Index

_DTYPES = "biuf"


def takes(node: Node, call: Call) -> bool:
    """Return whether `node`, with inputs `call`, may be part of a Fused node."""
    if ELEMENTWISE not in node.operator.traits or node.operator.views:
        return False  # views cost nothing by themselves
    found = find_kernel(node.op, KIND, call)
    if found is None or not found.is_usual:  # chains are made of the usual ones
        return False
    specs = [spec for spec in call.inputs if spec is not None]
    if not all(spec.is_static and spec.dtype.kind in _DTYPES for spec in specs):
        return False
    return node.op != "Pow" or specs[1].size == 1  # it computes otherwise where that is so


def _declare_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    inputs = [spec for spec in call.inputs if spec is not None]
    blocks = BodyBlocks(get_body(call), inputs, outputs[0])
    return [TensorSpec(np.uint8, (nbytes,)) for nbytes in blocks.sizes]


@kernel(FUSED, scratch=_declare_scratch, binds=True)
def fused(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (y,) = outputs
    blocks = BodyBlocks(attributes["body"], [spec_of(array) for array in inputs], spec_of(y))
    binding = _Binding(xp, blocks, inputs, y, scratch)
    return run_in_order(step for index in blocks.tiling for step in binding.steps(index))


class _Binding:
    """Binds the members to their parts of arrays; parts of many blocks are bound once."""

    def __init__(
        self, xp: ArrayModule, blocks: BodyBlocks, inputs: Arrays, y: Array, scratch: Arrays
    ) -> None:
        self._xp, self._blocks, self._y, self._scratch = xp, blocks, y, scratch
        self._given = dict(zip(blocks.body.inputs, inputs, strict=True))
        self._specs: dict[Dims, dict[str, TensorSpec]] = {}
        self._steady: dict[tuple[Dims, str], Step] = {}

    def steps(self, index: Index) -> Iterator[Step]:
        blocks, part = self._blocks, self._blocks.tiling.part
        shape = blocks.tiling.shape_at(index, blocks.tiling.dims)
        if shape not in self._specs:
            self._specs[shape] = blocks.specs_at(index)
        specs = self._specs[shape]
        arrays = {name: part(a, index, blocks.dims(name)) for name, a in self._given.items()}
        y = made = part(self._y, index, blocks.tiling.dims)
        for member in blocks.members:
            (name,) = member.node.outputs
            made = y if member.place is None else self._view(member.place, specs[name])
            arrays[name] = made
            yield self._bound(member, arrays, specs, shape)
        if made is not y:
            yield partial(self._xp.copyto, y, made)

    def _bound(
        self,
        member: BlockMember,
        arrays: Mapping[str, Array],
        specs: Mapping[str, TensorSpec],
        shape: Dims,
    ) -> Step:
        key = shape, member.node.name
        if key in self._steady:
            return self._steady[key]
        node, found = member.node, member.kernel
        inputs = [arrays[name] if name else None for name in node.inputs]
        arguments = [self._xp, inputs, [arrays[name] for name in node.outputs], node.attributes]
        if found.scratch is not None:
            needed = zip(member.scratch, declare_member_scratch(found, node, specs), strict=True)
            arguments.append([self._view(place, spec) for place, spec in needed])
        step = found.step(*arguments)
        if member.is_steady:
            self._steady[key] = step
        return step

    def _view(self, buffer: int, spec: TensorSpec) -> Array:
        cells = self._scratch[buffer][: spec.nbytes].view(spec.dtype)
        return cells.reshape(spec.static_shape)
