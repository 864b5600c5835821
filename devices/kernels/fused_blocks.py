"""Buffers for the members of a Fused node, for a block of its output.

Intermediate tensors have buffers as long as a block, which later ones reuse. The output's own block
is the first choice, since it has to come into cache in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call
from ...graph.values.tensor import TensorSpec
from .registry import Kernel, find_kernel
from .tiling import Index, Tiling

BLOCK = 1 << 17
"""Elements. Measured on float32: with twice as many temporaries miss 1 MiB of cache, with half as
many the time to call kernels shows, for one that takes 0.05 ns an element (AMD EPYC)."""

KIND = "cpu"
"""The kind of device with the kernels."""


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

    `sizes` are the bytes of the buffers.
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
