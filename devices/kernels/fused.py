"""The kernel of Fused: elementwise kernels in order, on each block of the output.

Intermediate values never leave the cache. Kernels that choose by length choose the same for a block
as for the whole, since blocks are long enough: the result has the bits of single nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call, Specs
from ...graph.core.traits import ELEMENTWISE
from ...graph.operators.fused import FUSED, get_body
from ...graph.values.tensor import Array, TensorSpec, spec_of
from .registry import ArrayModule, Arrays, Kernel, Step, find_kernel, kernel, run_in_order
from .tiling import Dims, Index, Tiling

BLOCK = 1 << 17
"""Elements. Measured on float32: with twice as many temporaries miss 1 MiB of cache, with half as
many the time to call kernels shows, for one that takes 0.05 ns an element (AMD EPYC)."""

KIND = "cpu"
"""The kind of device with the kernels."""

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


class BlockMember(NamedTuple):
    """A node of the body."""

    kernel: Kernel
    node: Node
    place: int | None
    """The buffer that it writes; None for the output's own block."""
    scratch: tuple[int, ...]
    """The buffers of its kernel."""
    is_steady: bool
    """Whether it does the same for every block of a shape."""


class BodyBlocks:
    """A body for inputs of given shapes, block by block.

    Intermediate tensors have buffers as long as a block, which later ones reuse; the output's own
    block is the first choice, since it has to come into cache in any case. `sizes` are the bytes of
    the buffers.
    """

    def __init__(self, body: Graph, inputs: Sequence[TensorSpec], output: TensorSpec) -> None:
        self.body = body
        self.tiling = Tiling(output.static_shape, [spec.static_shape for spec in inputs], BLOCK)
        self._dims = dict(zip(body.inputs, self.tiling.operands, strict=True))
        self.members: list[BlockMember] = []
        self.sizes: list[int] = []
        self._free: set[int] = set()
        self._last = {name: node for node in body.nodes for name in node.inputs if name}
        self._pending = {n for n, s in zip(body.inputs, inputs, strict=True) if s == output}
        """Inputs that the output may lie on, as long as they are read."""
        self._at: dict[str, int | None] = {}
        """Where temporaries are, as long as they are read."""
        specs = self.specs_at(self.tiling.longest)
        for node in body.nodes if output.size else ():
            self._visit(node, specs)

    def specs_at(self, index: Index) -> dict[str, TensorSpec]:
        full = self.tiling.dims
        return {
            name: TensorSpec(spec.dtype, self.tiling.shape_at(index, self._dims.get(name, full)))
            for name, spec in self.body.tensors.items()
        }

    def dims(self, name: str) -> tuple[int, ...]:
        return self._dims.get(name, self.tiling.dims)

    def _visit(self, node: Node, specs: Mapping[str, TensorSpec]) -> None:
        """Give `node` buffers for its output and its kernel, given `specs` of tensors by name."""
        found = find_kernel(node.op, KIND)
        assert found is not None, node.op
        scratch = tuple(
            self._take(spec.nbytes) for spec in declare_member_scratch(found, node, specs)
        )
        read = [name for name in dict.fromkeys(node.inputs) if name]
        ended = [name for name in read if self._last[name] is node]
        over = [name for name in _list_overwritable(node) if name in ended]
        is_steady = all(map(self._is_steady, read))
        self._pending.difference_update(over)
        place = self._place(node, over, specs)
        self._pending.difference_update(ended)
        freed = [self._at.pop(name) for name in ended if name in self._at]
        self._free.update(index for index in (*scratch, *freed) if index not in (None, place))
        self._at[node.outputs[0]] = place
        is_steady = is_steady and place is not None
        self.members.append(BlockMember(found, node, place, scratch, is_steady))

    def _is_steady(self, name: str) -> bool:
        """Return whether a node reads the same bytes of tensor `name` in every block."""
        if name in self._dims:
            return all(length == 1 for length in self._dims[name])
        return self._at[name] is not None

    def _place(
        self, node: Node, over: Sequence[str], specs: Mapping[str, TensorSpec]
    ) -> int | None:
        """Return the place for the output of `node`, which may overwrite `over`; None: a buffer.

        `specs` has the tensors by name.
        """
        (made,) = node.outputs
        if self._fits_output(made, over, specs):
            return None
        for name in over:
            index = self._at.get(name)
            if index is not None and specs[name] == specs[made]:
                return index
        return self._take(specs[made].nbytes)

    def _fits_output(self, made: str, over: Sequence[str], specs: Mapping[str, TensorSpec]) -> bool:
        (last,) = self.body.outputs
        held = [name for name, place in self._at.items() if place is None]
        if self._pending or not set(held).issubset(over) or specs[made] != specs[last]:
            return False
        return made == last or made in _list_overwritable(self._last[made])

    def _take(self, nbytes: int) -> int:
        """Return a free buffer for `nbytes`: the smallest with room, or the largest, enlarged."""
        large = [index for index in self._free if self.sizes[index] >= nbytes]
        if large:
            found = min(large, key=self.sizes.__getitem__)
        elif self._free:
            found = max(self._free, key=self.sizes.__getitem__)
        else:
            found = len(self.sizes)
            self.sizes.append(0)
        self.sizes[found] = max(self.sizes[found], nbytes)
        self._free.discard(found)
        return found


def declare_member_scratch(
    found: Kernel, node: Node, specs: Mapping[str, TensorSpec]
) -> Sequence[TensorSpec]:
    if found.scratch is None:
        return ()
    inputs = tuple(specs[name] if name else None for name in node.inputs)
    call = Call(inputs, (None,) * len(inputs), node.attributes)
    return found.scratch(call, (specs[node.outputs[0]],))


def _list_overwritable(node: Node) -> list[str]:
    names = [node.inputs[index] for _, index in node.operator.inplace if index < len(node.inputs)]
    return [name for name in names if node.inputs.count(name) == 1]
