"""Constraints on a memory plan under which the same nodes run in it with other shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...devices.device import Device, scratch_name, scratch_specs
from ...graph.core.ir import Graph, Node

SPARE = 4
"""The margin on scratch, as a fraction 1 / SPARE: not all shapes were tried."""


class DynamicShapeConstraints:
    """Constraints for other shapes, all smaller.

    Nodes in `apart` share no bytes between inputs and outputs; `others` are the varying nodes at
    other shapes; tensors in `growing` have no largest shape.
    """

    def __init__(
        self,
        apart: frozenset[str] = frozenset(),
        others: Sequence[Graph] = (),
        growing: frozenset[str] = frozenset(),
        *,
        has_same_nodes: bool = True,
    ) -> None:
        self.apart, self.growing, self.others = apart, growing, others
        self.has_same_nodes = has_same_nodes
        self._others = [(other, {node.name: node for node in other.nodes}) for other in others]
        self.is_none = not (apart or others)
        self._scratch: dict[tuple[str, str], tuple[int, ...]] = {}

    def keeps_apart(self, node: Node) -> bool:
        if node.name in self.apart:
            return True
        return not (self.growing.isdisjoint(node.inputs) and self.growing.isdisjoint(node.outputs))

    def scratch(self, device: Device, graph: Graph, node: Node) -> Mapping[str, int]:
        """Return by name the scratch bytes that `node` of `graph` needs on `device` at any shapes.

        Kernels tile by the size of caches, so that shorter tensors may need more scratch.
        """
        if not self._others:
            return {name: s.nbytes for name, s in scratch_specs(device, graph, node).items()}
        key = device.name, node.name
        if key not in self._scratch:
            self._scratch[key] = self._most(device, graph, node)
        return {scratch_name(node, i): nbytes for i, nbytes in enumerate(self._scratch[key])}

    def _most(self, device: Device, graph: Graph, node: Node) -> tuple[int, ...]:
        found = [_measure_scratch(device, graph, node)]
        found += [
            _measure_scratch(device, other, nodes[node.name])
            for other, nodes in self._others
            if node.name in nodes
        ]
        columns = [
            {sizes[i] if i < len(sizes) else 0 for sizes in found}
            for i in range(max(map(len, found)))
        ]
        return tuple(max(one) + (max(one) // SPARE if len(one) > 1 else 0) for one in columns)


def _measure_scratch(device: Device, graph: Graph, node: Node) -> list[int]:
    return [spec.nbytes for spec in scratch_specs(device, graph, node).values()]


NONE = DynamicShapeConstraints()
