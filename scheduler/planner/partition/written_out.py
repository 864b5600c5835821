"""Nodes written out in simpler ones, for devices that lack their operators.

Passes make one node of several where some device has it. The others are offered the node as the
rules of `plait.graph.decompositions` write it out, and which form it has is decided with its
device: so what pleases one device takes no choice from another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ....devices.device import Device, Support, why_not
from ....graph.decompositions import decompositions
from ....graph.infer import infer_node
from ....graph.ir import Graph, Node, call_of
from ....graph.passes import written_out
from ....graph.passes.merging import with_nodes
from ....graph.passes.rewriting import Rewriter
from ....graph.tensor import Array, spec_of
from ....graph.traits import LENGTHS
from .cutting import Parts
from .partition import WRITTEN_OUT


@dataclass(frozen=True)
class WrittenOut:
    """Nodes that stand in place of some of a graph.

    Attributes
    ----------
    nodes : Mapping of str to sequence of Node
        By the name of the node in whose place they stand; the last of them has that name.
    constants : Mapping of str to Array
        What they read, and more.
    """

    nodes: Mapping[str, Sequence[Node]] = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)

    def into(self, graph: Graph) -> Graph:
        """Return a graph with these nodes in the places of its own."""
        if not self.nodes:
            return graph
        tensors, found, added = dict(graph.tensors), list[Node](), dict[str, Array]()
        values = {**self.constants, **graph.constants}
        for node in graph.nodes:
            made = self.nodes.get(node.name, (node,))
            for one in made if node.name in self.nodes else ():
                read = {name: values[name] for name in one.inputs if name not in tensors and name}
                added.update(read)
                tensors.update({name: spec_of(value) for name, value in read.items()})
                specs = infer_node(one, call_of(one, tensors, values))
                tensors.update(pair for pair in zip(one.outputs, specs, strict=True) if pair[0])
            found += made
        return with_nodes(replace(graph, tensors=tensors), found, added)

    def spread(
        self, graph: Graph, devices: Sequence[str], parts: Parts
    ) -> tuple[Graph, list[str], Parts]:
        """Return what `into` makes of a graph, with its nodes' devices and its parts."""
        places, spread = list[range](), list[str]()
        for node, device in zip(graph.nodes, devices, strict=True):
            start = len(spread)
            spread += [device] * len(self.nodes.get(node.name, (node,)))
            places.append(range(start, len(spread)))
        inside = [[place for node in part for place in places[node]] for part in parts]
        return self.into(graph), spread, inside


class Forms:
    """The forms in which devices get nodes whose operators they lack.

    Parameters
    ----------
    graph : Graph
        With the symbols of its shapes, if the nodes are for other shapes too.
    """

    def __init__(self, graph: Graph) -> None:
        self._rewriter = Rewriter(graph)
        self._graph_nodes = {node.name: node for node in graph.nodes}
        self._found: dict[tuple[str, str], Sequence[Node]] = {}

    def offer(self, node: Node, name: str, device: Device, answer: Support) -> Support:
        """Return what a device offers for a node that it lacks, and remember the form."""
        known = self._graph_nodes.get(node.name)
        if node.op not in decompositions() or known is None or known.inputs != node.inputs:
            return answer
        made = written_out(self._rewriter, known, partial(why_not, device))
        if made is None or any(LENGTHS in one.operator.traits for one in made):
            return answer  # shapes are known ahead
        self._found[name, node.name] = made
        return Support(True, WRITTEN_OUT)

    def has(self, node: Node, device: str) -> bool:
        """Say whether a device gets a node in another form."""
        return (device, node.name) in self._found

    def of(self, graph: Graph, node: Node, device: str) -> Graph:
        """Return the form in which a device gets a node of a graph, as a graph of its own."""
        form = WrittenOut({node.name: self._found[device, node.name]}, self._rewriter.constants)
        return form.into(graph.extract([node], node.name))

    def chosen(self, graph: Graph, devices: Sequence[str]) -> WrittenOut:
        """Return what stands in place of nodes that go to these devices."""
        nodes = {
            node.name: self._found[device, node.name]
            for node, device in zip(graph.nodes, devices, strict=True)
            if (device, node.name) in self._found
        }
        return WrittenOut(nodes, self._rewriter.constants if nodes else {})
