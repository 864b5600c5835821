"""Fusion: groups of a subgraph's nodes that one piece of work computes.

Elementwise nodes join the nodes whose results they read, or become the epilogue of a product. A
group runs at the place of its last node, so its other nodes run later than planned: in between,
no other node may write over their inputs. Results that only nodes of the group read are never
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count, takewhile
from math import prod
from typing import TypeAlias

import numpy as np

from ...graph.core.ir import Graph, Node
from ..device import scratch_name
from ..memory import View
from .composition import Chain, Made, chain_members, compose
from .epilogue import generate_with, takes_epilogue
from .formulas import Member, has_formula
from .pieces import Launch, Piece, list_transfers, list_working_nodes, make_launches, make_piece
from .registry import find_refusal

Launching: TypeAlias = Callable[[Node, Chain], tuple[Launch, ...] | None]
"""Returns the launches for a product and the chain after it; None leaves it to its generator."""

MOST_NODES = 64
MOST_WITH_PRODUCT = 17
MOST_TENSORS = 32
"""Most of one kernel: more would not stay in registers."""


LEFT = "\0left"
"""Suffix of a tensor's name: the intermediate result that a library has left in its place."""


def fuse(
    graph: Graph,
    views: Mapping[str, View],
    *,
    epilogues: Callable[[Node], bool] | None = None,
    begun: Callable[[Node], Member | None] | None = None,
    launching: Launching | None = None,
) -> tuple[Piece | Node, ...]:
    """Return the pieces of `graph`, which is static, in order; a node itself if it has no kernel.

    Nodes without work in `views` are left out. `epilogues` returns whether generated kernels
    compute a product, which may then have an epilogue; no product, by default. `begun` returns, for
    nodes that a library computes, the member that finishes the library's output: it reads that by
    the output's name and `LEFT`. Such nodes are returned in their places, and again in a piece if
    nodes after them join it. `launching` is asked for the launches of products with nodes after
    them.
    """
    working = list_working_nodes(graph, views)
    members = {} if begun is None else {node.name: begun(node) for node in working}
    rests = {name: member for name, member in members.items() if member is not None}
    left = {each.output + LEFT: each.output for each in rests.values() if each.output in views}
    seen = {**views, **{name: views[output] for name, output in left.items()}}
    groups = _Fusing(graph, seen, working, epilogues or (lambda _: False), rests).groups()
    last = {group.nodes[-1].name: group for group in groups if len(group.nodes) > 1}
    inside = {node.name for group in last.values() for node in group.nodes}
    found: list[Piece | Node] = []
    for node in working:
        # At the place of the group's last node: its inputs are ready there, and no other node reads
        # its results sooner.
        if node.name in last:
            found.append(last[node.name].piece(launching))
        elif node.name in rests:
            found.append(node)
        elif node.name not in inside:
            found.append(make_piece(graph, node, views) or node)
    return tuple(found)


class _Group:
    """Nodes in order that one piece may compute: a product comes first, before its epilogue."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], members: Mapping[str, Member]) -> None:
        self.nodes = nodes
        self.products = [node for node in nodes if node.name not in members]
        self._chain = [node for node in nodes if node.name in members]
        self.members = [members[node.name] for node in self._chain]
        self.shape = graph.tensors[nodes[-1].outputs[0]].static_shape
        self.outputs = {node.outputs[0] for node in nodes}
        self._graph = graph

    def piece(self, launching: Launching | None) -> Piece:
        """Return the piece that computes the group; `launching` may give launches of a product."""
        if not self.products:
            kernel, tensors = compose(self.members, self.stored)
            return Piece(tuple(self.nodes), (Launch(kernel, tensors),) if kernel.groups else ())
        (product,) = self.products
        made = product.outputs[0]
        chain = chain_members(Made(made, self._graph.tensors[made]), self.members, self.stored)
        found = None if launching is None else launching(product, chain)
        if found is None:
            call, outputs = self._graph.call(product), self._graph.output_specs(product)
            code = generate_with(product, call, outputs, chain.epilogue, chain.title)
            found = make_launches(product, code, chain.tensors)
        return Piece(tuple(self.nodes), found)

    @cached_property
    def stored(self) -> tuple[str, ...]:
        inside = {node.name for node in self.nodes}
        return tuple(
            node.outputs[0]
            for node in self.nodes
            if node.outputs[0] in self._graph.fetched
            or any(
                reader.name not in inside
                for reader in self._graph.consumers.get(node.outputs[0], ())
            )
        )

    @cached_property
    def reads(self) -> tuple[tuple[Node, str, tuple[int, ...] | None], ...]:
        """The inputs from outside: reader, name, and the shape that it is broadcast from.

        The shape is None for nodes that read any element until the last results are written.
        """
        pairs = zip(self._chain, self.members, strict=True)
        found = [(node, *read) for node, member in pairs for read in member.reads]
        # A product's threads read whole rows and columns while others already write.
        own = [(node, name, None) for node in self.products for name in node.inputs if name]
        return tuple(read for read in (*found, *own) if read[1] not in self.outputs)

    def fits(self) -> bool:
        """Return whether one kernel can compute the nodes at the places of one output."""
        tensors = {tensor for _, tensor, _ in self.reads}
        if len(self.nodes) > MOST_NODES or len(tensors) + len(self.stored) > MOST_TENSORS:
            return False
        if not all(map(self._is_computed, self._chain, self.members)):
            return False
        return all(map(self._begins, self.products)) and all(map(self._fits_in, self.members))

    def _is_computed(self, node: Node, member: Member) -> bool:
        """Return whether a library's `node`, or its `member`, reads no result of the group."""
        return member.inputs == node.inputs or self.outputs.isdisjoint(node.inputs)

    def _begins(self, product: Node) -> bool:
        """Return whether `product` can have all others as its epilogue."""
        if len(self.products) > 1 or len(self.nodes) > MOST_WITH_PRODUCT:
            return False
        # Each sum is available once, in one thread: the epilogue must use it there.
        shape = self._graph.tensors[product.outputs[0]].shape
        return shape == self.shape and self.outputs.isdisjoint(product.inputs)

    def _fits_in(self, member: Member) -> bool:
        """Return whether `member` can run in the group's threads, one for each output element."""
        for tensor, shape in member.reads:
            # A value lives in the registers of the thread that computed it; a broadcast value has
            # readers in other threads, too.
            if tensor in self.outputs and shape != self._graph.tensors[tensor].shape:
                return False
        own = member.spec.static_shape
        if own == self.shape:
            return True
        # A smaller value is recomputed at each place, which is cheap; storing it would have several
        # threads write the same element.
        return member.output not in self.stored and np.broadcast_shapes(own, self.shape) == (
            self.shape
        )


class _Fusing:
    """Grows groups of nodes, visiting the nodes in order."""

    def __init__(
        self,
        graph: Graph,
        views: Mapping[str, View],
        working: Sequence[Node],
        epilogues: Callable[[Node], bool],
        rests: Mapping[str, Member],
    ) -> None:
        self._graph = graph
        self._views = views
        self._epilogues = epilogues
        self._rests = rests
        self._working = {node.name for node in working}
        self._places = {node.name: place for place, node in enumerate(graph.nodes)}
        self._members: dict[str, Member] = {}
        self._group_of: dict[str, _Group] = {}

    def groups(self) -> list[_Group]:
        for node in self._graph.nodes:
            if node.name in self._rests:
                self._members[node.name] = self._rests[node.name]
                self._group_of[node.name] = _Group(self._graph, [node], self._members)
                continue
            if node.name not in self._working or not self._is_candidate(node):
                continue
            if takes_epilogue(node.op):
                self._group_of[node.name] = _Group(self._graph, [node], self._members)
            else:
                self._members[node.name] = _make_member(self._graph, node)
                self._place(node)
        return list({id(group): group for group in self._group_of.values()}.values())

    def _is_candidate(self, node: Node) -> bool:
        call = self._graph.call(node)
        begins = takes_epilogue(node.op) and self._epilogues(node)
        if not (begins or has_formula(node.op, call)) or len(node.outputs) != 1:
            return False
        if list_transfers(self._graph, node, self._views) is not None:
            return False
        return find_refusal(node, call) is None

    def _place(self, node: Node) -> None:
        """Add `node` to the groups it reads from, joined, or to one of them, or to a new one."""
        sources = self._sources(node)
        everything = [member for group in sources for member in group.nodes]
        # Joining all of them saves most; else the latest, which most likely runs close to the node.
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
        # By identity: groups are replaced as they grow, and equal ones are the same one.
        distinct = {id(group): group for group in groups}.values()
        return sorted(distinct, key=lambda group: self._places[group.nodes[-1].name])

    def _is_valid(self, group: _Group) -> bool:
        if not (group.fits() and self._can_wait(group) and self._can_overwrite(group)):
            return False
        return all(self._keeps_scratch(group, product) for product in group.products)

    def _can_wait(self, group: _Group) -> bool:
        """Return whether no other node needs a result of `group` sooner or overwrites an input."""
        if any(not group.outputs.isdisjoint(node.inputs) for node in self._others(group)):
            return False
        return not any(
            place > self._places[reader.name] and self._overlaps(tensor, view)
            for place, view in self._written_between(group)
            for reader, tensor, _ in group.reads
        )

    def _keeps_scratch(self, group: _Group, product: Node) -> bool:
        """Return whether the scratch of `product` stays free up to the last node of `group`."""
        names = (*(name for _, name, _ in group.reads), *group.stored)
        used = [self._views[name] for name in names if name in self._views]
        # The plan may use these bytes for others before and after the product's own place in the
        # order, which is not where it runs now.
        used += [view for _, view in self._written_between(group)]
        return not any(
            self._overlaps(name, view) for name in self._scratch(product) for view in used
        )

    def _written_between(self, group: _Group) -> list[tuple[int, View]]:
        """Return places and views of writes by other nodes before the last one of `group` runs."""
        names = [
            (self._places[node.name], name)
            for node in self._others(group)
            if node.name in self._working
            for name in (*node.outputs, *self._scratch(node))
        ]
        return [(place, self._views[name]) for place, name in names if name in self._views]

    def _others(self, group: _Group) -> list[Node]:
        inside = {node.name for node in group.nodes}
        first, last = (self._places[group.nodes[end].name] for end in (0, -1))
        return [node for node in self._graph.nodes[first : last + 1] if node.name not in inside]

    def _scratch(self, node: Node) -> Iterator[str]:
        names = (scratch_name(node, index) for index in count())
        return takewhile(self._views.__contains__, names)

    def _can_overwrite(self, group: _Group) -> bool:
        """Return whether each output of `group` coincides with an input, or lies apart from all."""
        for output in group.stored:
            view = self._views.get(output)
            for _, tensor, shape in group.reads:
                if view is None or not self._overlaps(tensor, view):
                    continue
                read = self._views[tensor]
                # Then a thread reads just the bytes that it will write, and before it does so.
                same = read.offset == view.offset and (
                    read.spec.dtype.itemsize == view.spec.dtype.itemsize
                )
                if shape is None or not same or prod(shape) != prod(group.shape):
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


def _make_member(graph: Graph, node: Node) -> Member:
    output = node.outputs[0]
    return Member(node.op, graph.call(node), node.inputs, output, graph.tensors[output])
