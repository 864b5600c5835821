"""Which nodes of a subgraph become one kernel.

Nodes computed element by element join those whose results they read. Their kernel runs where the
last of them stood, so that the others run later than planned: nothing may be written meanwhile over
what they read. Results that only the kernel's own nodes read are never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count, takewhile
from math import prod

import numpy as np

from ...graph.ir import Graph, Node
from ..device import scratch_name
from ..memory import View
from .elementwise import Member, compose, has_formula
from .pieces import Launch, Piece, piece_of, transfers_of, working_nodes
from .registry import why_not

MOST_NODES = 64
MOST_TENSORS = 32
"""Of one kernel: more would not stay in registers."""


def fused(graph: Graph, views: Mapping[str, View]) -> tuple[Piece | Node, ...]:
    """Return a static subgraph's pieces in order; a node itself where no kernel is generated.

    Nodes that have nothing to do are left out.
    """
    working = working_nodes(graph, views)
    groups = _Fusing(graph, views, working).groups()
    last = {group.nodes[-1].name: group for group in groups if len(group.nodes) > 1}
    inside = {node.name for group in last.values() for node in group.nodes}
    found: list[Piece | Node] = []
    for node in working:
        if node.name in last:
            found.append(last[node.name].piece())
        elif node.name not in inside:
            found.append(piece_of(graph, node, views) or node)
    return tuple(found)


class _Group:
    """Nodes in order, that may become a kernel."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], members: Mapping[str, Member]) -> None:
        self.nodes = nodes
        self.members = [members[node.name] for node in nodes]
        self.shape = self.members[-1].spec.static_shape
        self.outputs = {member.output for member in self.members}
        self._graph = graph

    def piece(self) -> Piece:
        """Return the nodes as one kernel."""
        kernel, tensors = compose(self.members, self.stored)
        return Piece(tuple(self.nodes), (Launch(kernel, tensors),) if kernel.groups else ())

    @cached_property
    def stored(self) -> tuple[str, ...]:
        """The outputs that others read."""
        inside = {node.name for node in self.nodes}
        return tuple(
            member.output
            for member in self.members
            if member.output in self._graph.outputs
            or any(
                reader.name not in inside for reader in self._graph.consumers.get(member.output, ())
            )
        )

    @cached_property
    def reads(self) -> tuple[tuple[Node, str, tuple[int, ...]], ...]:
        """What comes from elsewhere: who reads it, its name, what it is broadcast from."""
        return tuple(
            (node, tensor, shape)
            for node, member in zip(self.nodes, self.members, strict=True)
            for tensor, shape in member.reads
            if tensor not in self.outputs
        )

    def fits(self) -> bool:
        """True when the nodes can be computed at the places of one output, and are not too many."""
        tensors = {tensor for _, tensor, _ in self.reads}
        if len(self.nodes) > MOST_NODES or len(tensors) + len(self.stored) > MOST_TENSORS:
            return False
        return all(map(self._fits_in, self.members))

    def _fits_in(self, member: Member) -> bool:
        """True when a member's values are read where they were made, and stored at each place."""
        for tensor, shape in member.reads:
            if tensor in self.outputs and shape != self._graph.tensors[tensor].shape:
                return False
        own = member.spec.static_shape
        if own == self.shape:
            return True
        return member.output not in self.stored and np.broadcast_shapes(own, self.shape) == (
            self.shape
        )


class _Fusing:
    """Groups of nodes, as they grow while the nodes are looked at in order."""

    def __init__(self, graph: Graph, views: Mapping[str, View], working: Sequence[Node]) -> None:
        self._graph = graph
        self._views = views
        self._working = {node.name for node in working}
        self._places = {node.name: place for place, node in enumerate(graph.nodes)}
        self._members: dict[str, Member] = {}
        self._group_of: dict[str, _Group] = {}

    def groups(self) -> list[_Group]:
        """Return all groups."""
        for node in self._graph.nodes:
            if node.name in self._working and self._is_candidate(node):
                self._members[node.name] = _member(self._graph, node)
                self._place(node)
        return list({id(group): group for group in self._group_of.values()}.values())

    def _is_candidate(self, node: Node) -> bool:
        call = self._graph.call(node)
        if not has_formula(node.op, call) or len(node.outputs) != 1:
            return False
        if transfers_of(self._graph, node, self._views) is not None:
            return False
        return why_not(node, call) is None

    def _place(self, node: Node) -> None:
        """Put a node into the groups it reads from, into one of them, or into a new one."""
        sources = self._sources(node)
        everything = [member for group in sources for member in group.nodes]
        choices = [everything] if len(sources) > 1 else []
        for chosen in (*choices, *(group.nodes for group in sources[::-1])):
            grown = sorted([*chosen, node], key=lambda each: self._places[each.name])
            group = _Group(self._graph, grown, self._members)
            if self._is_valid(group):
                self._group_of.update((member.name, group) for member in grown)
                return
        self._group_of[node.name] = _Group(self._graph, [node], self._members)

    def _sources(self, node: Node) -> list[_Group]:
        producers = (self._graph.producers.get(name) for name in node.inputs if name)
        groups = (
            self._group_of[each.name] for each in producers if each and each.name in self._group_of
        )
        return list({id(group): group for group in groups}.values())

    def _is_valid(self, group: _Group) -> bool:
        return group.fits() and self._can_wait(group) and self._can_overwrite(group)

    def _can_wait(self, group: _Group) -> bool:
        """True when nobody needs the results before the last node, nor ruins what it reads."""
        inside = {node.name for node in group.nodes}
        first, last = (self._places[group.nodes[end].name] for end in (0, -1))
        others = [n for n in self._graph.nodes[first : last + 1] if n.name not in inside]
        if any(not group.outputs.isdisjoint(node.inputs) for node in others):
            return False
        written = [
            (self._places[node.name], view)
            for node in others
            if node.name in self._working
            for view in self._writes(node)
        ]
        return not any(
            place > self._places[reader.name] and self._overlaps(tensor, view)
            for place, view in written
            for reader, tensor, _ in group.reads
        )

    def _writes(self, node: Node) -> list[View]:
        names = (*node.outputs, *takewhile(self._views.__contains__, _scratch_names(node)))
        return [self._views[name] for name in names if name in self._views]

    def _can_overwrite(self, group: _Group) -> bool:
        """True when what is written lies on what is read element by element, or apart from it."""
        for output in group.stored:
            view = self._views.get(output)
            for _, tensor, shape in group.reads:
                if view is None or not self._overlaps(tensor, view):
                    continue
                read = self._views[tensor]
                same = read.offset == view.offset and (
                    read.spec.dtype.itemsize == view.spec.dtype.itemsize
                )
                if not same or prod(shape) != prod(group.shape):
                    return False
        return True

    def _overlaps(self, tensor: str, view: View) -> bool:
        read = self._views.get(tensor)
        if read is None or read.arena is not view.arena:
            return False
        return (
            read.offset < view.offset + view.spec.nbytes
            and view.offset < read.offset + read.spec.nbytes
        )


def _scratch_names(node: Node) -> Iterator[str]:
    return (scratch_name(node, index) for index in count())


def _member(graph: Graph, node: Node) -> Member:
    output = node.outputs[0]
    return Member(node.op, graph.call(node), node.inputs, output, graph.tensors[output])
