"""Groups of nodes of a subgraph that are computed together.

Nodes computed element by element join those whose results they read, and go on with the results of
a product as its epilogue. All runs where the last of them stood, so that the others run later than
planned: nothing may be written meanwhile over what they read. Results that only nodes of the group
read are never written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count, takewhile
from math import prod
from typing import TypeAlias

import numpy as np

from ...graph.ir import Graph, Node
from ..device import scratch_name
from ..memory import View
from .composition import Chain, Made, chained, compose
from .epilogue import generate_with, takes_epilogue
from .formulas import Member, has_formula
from .pieces import Launch, Piece, launches, piece_of, transfers_of, working_nodes
from .registry import why_not

Launching: TypeAlias = Callable[[Node, Chain], tuple[Launch, ...] | None]
"""Returns what goes on with a product and the chain behind it; None leaves it to its generator."""

MOST_NODES = 64
MOST_WITH_PRODUCT = 17
MOST_TENSORS = 32
"""Of one kernel: more would not stay in registers."""


LEFT = "\0left"
"""Behind a tensor's name: what something else has left in its place, to be gone on with."""


def fused(
    graph: Graph,
    views: Mapping[str, View],
    *,
    epilogues: Callable[[Node], bool] | None = None,
    begun: Callable[[Node], Member | None] | None = None,
    launching: Launching | None = None,
) -> tuple[Piece | Node, ...]:
    """Return a static subgraph's pieces in order; a node itself where no kernel is generated.

    Nodes that have nothing to do are left out. `epilogues` says which products are computed by
    generated kernels, and may have an epilogue; none, if left out. `begun` says of others what is
    to be done with what a library leaves in their output: the member reads that by the output's
    name and `LEFT`. They come back as nodes, in their places, and once more in a piece with nodes
    behind them, if there are any. `launching` is asked for the launches of products with nodes
    behind them.
    """
    working = working_nodes(graph, views)
    members = {} if begun is None else {node.name: begun(node) for node in working}
    rests = {name: member for name, member in members.items() if member is not None}
    left = {each.output + LEFT: each.output for each in rests.values() if each.output in views}
    seen = {**views, **{name: views[output] for name, output in left.items()}}
    groups = _Fusing(graph, seen, working, epilogues or _never, rests).groups()
    last = {group.nodes[-1].name: group for group in groups if len(group.nodes) > 1}
    inside = {node.name for group in last.values() for node in group.nodes}
    found: list[Piece | Node] = []
    for node in working:
        # Where the last of a group stood: what it reads is there by then, and nobody needs its
        # results sooner.
        if node.name in last:
            found.append(last[node.name].piece(launching))
        elif node.name in rests:
            found.append(node)
        elif node.name not in inside:
            found.append(piece_of(graph, node, views) or node)
    return tuple(found)


class _Group:
    """Nodes in order, that may be computed together; a product is alone, or has them behind it."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], members: Mapping[str, Member]) -> None:
        self.nodes = nodes
        self.products = [node for node in nodes if node.name not in members]
        self._chain = [node for node in nodes if node.name in members]
        self.members = [members[node.name] for node in self._chain]
        self.shape = graph.tensors[nodes[-1].outputs[0]].static_shape
        self.outputs = {node.outputs[0] for node in nodes}
        self._graph = graph

    def piece(self, launching: Launching | None) -> Piece:
        """Return what computes the nodes: one kernel, but for products whose depth is split."""
        if not self.products:
            kernel, tensors = compose(self.members, self.stored)
            return Piece(tuple(self.nodes), (Launch(kernel, tensors),) if kernel.groups else ())
        (product,) = self.products
        made = product.outputs[0]
        chain = chained(Made(made, self._graph.tensors[made]), self.members, self.stored)
        found = None if launching is None else launching(product, chain)
        if found is None:
            call, outputs = self._graph.call(product), self._graph.output_specs(product)
            code = generate_with(product, call, outputs, chain.epilogue, chain.title)
            found = launches(product, code, chain.tensors)
        return Piece(tuple(self.nodes), found)

    @cached_property
    def stored(self) -> tuple[str, ...]:
        """The outputs that others read."""
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
        """What comes from elsewhere: who reads it, its name, what it is broadcast from.

        None stands for reads of anything, anywhere in it, until the last results are written.
        """
        pairs = zip(self._chain, self.members, strict=True)
        found = [(node, *read) for node, member in pairs for read in member.reads]
        # A product's threads read whole rows and columns while others already write.
        own = [(node, name, None) for node in self.products for name in node.inputs if name]
        return tuple(read for read in (*found, *own) if read[1] not in self.outputs)

    def fits(self) -> bool:
        """True when the nodes can be computed at the places of one output, and are not too many."""
        tensors = {tensor for _, tensor, _ in self.reads}
        if len(self.nodes) > MOST_NODES or len(tensors) + len(self.stored) > MOST_TENSORS:
            return False
        if not all(map(self._is_computed, self._chain, self.members)):
            return False
        return all(map(self._begins, self.products)) and all(map(self._fits_in, self.members))

    def _is_computed(self, node: Node, member: Member) -> bool:
        """True when what a library is given is not made here, if a library begins with the node."""
        return member.inputs == node.inputs or self.outputs.isdisjoint(node.inputs)

    def _begins(self, product: Node) -> bool:
        """True when a product can have all others as its epilogue."""
        if len(self.products) > 1 or len(self.nodes) > MOST_WITH_PRODUCT:
            return False
        # Each sum is at hand once, in one thread: the epilogue has to be done with it there and
        # then.
        shape = self._graph.tensors[product.outputs[0]].shape
        return shape == self.shape and self.outputs.isdisjoint(product.inputs)

    def _fits_in(self, member: Member) -> bool:
        """True when a member's values are read where they were made, and stored at each place."""
        for tensor, shape in member.reads:
            # A value lives in the registers of the thread that made it; what is broadcast is wanted
            # by others, too.
            if tensor in self.outputs and shape != self._graph.tensors[tensor].shape:
                return False
        own = member.spec.static_shape
        if own == self.shape:
            return True
        # What is smaller than the kernel is computed again at each place, which is cheap; storing
        # it, too, would have all of them write the same.
        return member.output not in self.stored and np.broadcast_shapes(own, self.shape) == (
            self.shape
        )


class _Fusing:
    """Groups of nodes, as they grow while the nodes are looked at in order."""

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
        """Return all groups."""
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
                self._members[node.name] = _member(self._graph, node)
                self._place(node)
        return list({id(group): group for group in self._group_of.values()}.values())

    def _is_candidate(self, node: Node) -> bool:
        call = self._graph.call(node)
        begins = takes_epilogue(node.op) and self._epilogues(node)
        if not (begins or has_formula(node.op, call)) or len(node.outputs) != 1:
            return False
        if transfers_of(self._graph, node, self._views) is not None:
            return False
        return why_not(node, call) is None

    def _place(self, node: Node) -> None:
        """Put a node into the groups it reads from, into one of them, or into a new one."""
        sources = self._sources(node)
        everything = [member for group in sources for member in group.nodes]
        # Joining all of them saves most; else the latest, whose results are likeliest to be near
        # the node.
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
        """True when nobody needs the results before the last node, nor ruins what it reads."""
        if any(not group.outputs.isdisjoint(node.inputs) for node in self._others(group)):
            return False
        return not any(
            place > self._places[reader.name] and self._overlaps(tensor, view)
            for place, view in self._written_between(group)
            for reader, tensor, _ in group.reads
        )

    def _keeps_scratch(self, group: _Group, product: Node) -> bool:
        """True when the bytes of a product's scratch are nobody else's at the last node, either."""
        names = (*(name for _, name, _ in group.reads), *group.stored)
        used = [self._views[name] for name in names if name in self._views]
        # The plan gave these bytes to others before and after the product's own place in the order,
        # which is not where it runs now.
        used += [view for _, view in self._written_between(group)]
        return not any(
            self._overlaps(name, view) for name in self._scratch(product) for view in used
        )

    def _written_between(self, group: _Group) -> list[tuple[int, View]]:
        """Return what other nodes write before the last one runs, and their places."""
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
        return takewhile(self._views.__contains__, _scratch_names(node))

    def _can_overwrite(self, group: _Group) -> bool:
        """True when what is written lies on what is read element by element, or apart from it."""
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


def _scratch_names(node: Node) -> Iterator[str]:
    return (scratch_name(node, index) for index in count())


def _member(graph: Graph, node: Node) -> Member:
    output = node.outputs[0]
    return Member(node.op, graph.call(node), node.inputs, output, graph.tensors[output])


def _never(node: Node) -> bool:
    return False
