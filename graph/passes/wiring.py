"""The order, producers and readers of a graph's nodes under change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ..core.ir import Graph, Node
from ..values.errors import GraphError


class Wiring:
    """The nodes of a graph under change.

    Until the first change, the graph answers from its own caches.
    """

    def __init__(self, graph: Graph) -> None:
        self.changed = False
        self._graph = graph

    def __contains__(self, node: Node) -> bool:
        return self._nodes.get(node.name) is node

    @property
    def names(self) -> KeysView[str]:
        return self._nodes.keys()

    def node(self, name: str) -> Node:
        return self._nodes[name]

    def nodes(self) -> Iterable[Node]:
        if not self.changed:
            return self._graph.nodes
        return (self._nodes[name] for place in self._places for name in place)

    def producer(self, tensor: str) -> Node | None:
        if not self.changed:
            return self._graph.producers.get(tensor)
        name = self._producers.get(tensor)
        return None if name is None else self._nodes[name]

    def readers(self, tensor: str) -> list[Node]:
        if not self.changed:
            return list(self._graph.consumers.get(tensor, ()))
        return [self._nodes[name] for name in self._readers.get(tensor, ())]

    def reader_count(self, tensor: str) -> int:
        if not self.changed:
            return len(self._graph.consumers.get(tensor, ()))
        return len(self._readers.get(tensor, ()))

    def rank(self, node: Node) -> tuple[int, int]:
        if node not in self:
            raise GraphError(f"there is no {node} to replace", fix="repair the pass")
        place = self._place_of[node.name]
        return place, self._places[place].index(node.name)

    def stand_in(self, old: Sequence[Node], new: Sequence[Node]) -> Node | None:
        """Return the last of `old` that `new` can replace in topological order, if any."""
        gone, made = {n.name for n in old}, {t for node in new for t in node.outputs}
        read = {tensor for node in new for tensor in node.inputs} - made
        writers = [node for tensor in read if (node := self.producer(tensor)) is not None]
        ready = max(map(self.rank, writers), default=(-1, 0))
        readers = [node for t in made for node in self.readers(t) if node.name not in gone]
        wanted = min(map(self.rank, readers), default=(len(self._places), 0))
        return next((n for n in reversed(old) if ready <= self.rank(n) < wanted), None)

    def exchange(self, old: Collection[Node], new: Sequence[Node], at: Node) -> None:
        """Replace `old` by `new` at the position of `at`, one of `old`."""
        place, gone = self._place_of[at.name], {node.name for node in old}
        index = self._places[place].index(at.name)
        index -= sum(name in gone for name in self._places[place][:index])
        for node in old:
            self.remove(node)
        for node in new:
            self._nodes[node.name] = node
            self._place_of[node.name] = place
            self._link(node)
        self._places[place][index:index] = [node.name for node in new]

    def append(self, node: Node) -> None:
        self._nodes[node.name] = node
        self._place_of[node.name] = len(self._places)
        self._places.append([node.name])
        self._link(node)

    def remove(self, node: Node) -> None:
        self._unlink(self._nodes.pop(node.name))
        self._places[self._place_of.pop(node.name)].remove(node.name)

    def rename(self, tensor: str, to: str) -> None:
        writer = self.producer(tensor)
        assert writer is not None, "inputs and constants are not renamed"
        outputs = tuple(to if name == tensor else name for name in writer.outputs)
        self._nodes[writer.name] = replace(writer, outputs=outputs)
        self._producers[to] = self._producers.pop(tensor)
        self.reread(tensor, to)

    def reread(self, old: str, new: str) -> None:
        for node in self.readers(old):
            inputs = tuple([new if name == old else name for name in node.inputs])
            self._nodes[node.name] = replace(node, inputs=inputs)
            self._readers.setdefault(new, {})[node.name] = None
        self._readers.pop(old, None)
        self.changed = True

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self._graph.nodes}

    @cached_property
    def _producers(self) -> dict[str, str]:
        return {tensor: node.name for tensor, node in self._graph.producers.items()}

    @cached_property
    def _readers(self) -> dict[str, dict[str, None]]:
        consumers: Mapping[str, tuple[Node, ...]] = self._graph.consumers
        return {tensor: {node.name: None for node in nodes} for tensor, nodes in consumers.items()}

    @cached_property
    def _places(self) -> list[list[str]]:
        return [[node.name] for node in self._graph.nodes]

    @cached_property
    def _place_of(self) -> dict[str, int]:
        return {node.name: place for place, node in enumerate(self._graph.nodes)}

    def _link(self, node: Node) -> None:
        self.changed = True
        for tensor in filter(None, node.inputs):
            self._readers.setdefault(tensor, {})[node.name] = None
        for tensor in filter(None, node.outputs):
            self._producers[tensor] = node.name

    def _unlink(self, node: Node) -> None:
        self.changed = True
        for tensor in node.inputs:
            self._readers.get(tensor, {}).pop(node.name, None)
        for tensor in node.outputs:
            self._producers.pop(tensor, None)
