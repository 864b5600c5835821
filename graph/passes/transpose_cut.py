"""A minimum cut: the nodes that should work on what was there before Transposes of one order.

Every node either does or does not; a tensor that is needed in both orders costs a Transpose, and
then the bytes that this moves. An order that is its own inverse leads there and back: regions
between such Transposes are told apart by colours, and it is counted who is of another side than
its colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..flow import Flow
from ..ir import Node
from ..tensor import TensorSpec
from .pairs import order_of
from .reordering import Order, Reordered
from .rewriting import Rewriter

_ONE_MORE = 1 << 50
"""What a Transpose costs beside its bytes: more than all bytes."""

_SINK, _SOURCE = 0, 1
"""Sides of the cut; those on the source's side read what was there before, if of colour 0."""

_VERTEX = (1, 0)
"""The vertex of `Flow` that is on each side for sure."""


class _Edge(NamedTuple):
    """A tensor, or several that Transposes lead to from one another: its ends, and its price."""

    ends: list[int]
    price: int


def turn_of(rewriter: Rewriter, node: Node | None) -> Order | None:
    """Return the order of a Transpose, None for anything else."""
    if node is None or node.op != "Transpose":
        return None
    rank = rewriter.tensors[node.inputs[0]].rank
    return None if rank is None else order_of(node, rank)


def inverse(order: Order) -> Order:
    """Return the order that undoes one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def price_of(spec: TensorSpec) -> int:
    """Return what it costs to transpose a tensor; lengths that are not known count as 1."""
    lengths = [dim for dim in spec.shape or () if isinstance(dim, int)]
    return _ONE_MORE + spec.dtype.itemsize * math.prod(lengths)


def _better(edges: Sequence[_Edge], now: Sequence[int], then: Sequence[int]) -> set[int]:
    """Return the vertices of those parts of a network that cost less than they do now."""
    part = list(range(len(now)))

    def root(vertex: int) -> int:
        while part[vertex] != vertex:
            part[vertex] = part[part[vertex]]
            vertex = part[vertex]
        return vertex

    # Two vertices are the sides themselves, and those behind the candidates stand for what may be
    # either: neither connects parts.
    inside = [[end for end in edge.ends if 2 <= end < len(now)] for edge in edges]
    for ends in inside:
        for end in ends[1:]:
            part[root(end)] = root(ends[0])
    gain: dict[int, int] = {}
    for edge, ends in zip(edges, inside, strict=True):
        if ends:
            known = [end for end in edge.ends if end < len(now)]
            mixed = [len({sides[end] for end in known}) > 1 for sides in (now, then)]
            place = root(ends[0])
            # Part by part: one that gains nothing stays as it is, though the cut of the whole has
            # moved it.
            gain[place] = gain.get(place, 0) + edge.price * (mixed[0] - mixed[1])
    return {vertex for vertex in range(2, len(now)) if gain.get(root(vertex), 0) > 0}


class Cut:
    """The choice among the nodes that could work before Transposes of an order.

    Parameters
    ----------
    rewriter : Rewriter
    order : Order
    candidates : Mapping of str to Reordered
        The nodes, by name, and what they would become.
    """

    def __init__(
        self, rewriter: Rewriter, order: Order, candidates: Mapping[str, Reordered]
    ) -> None:
        self._rewriter = rewriter
        self._order = order
        self._candidates = candidates
        self._undoes_itself = order == inverse(order)
        self._colours: dict[str, int] = {}
        """Of tensors; 0 where there is none."""
        self._links: set[str] = set()
        """Transposes that lead from one colour to the other."""

    def chosen(self) -> set[str]:
        """Return the names of the nodes that should."""
        # Such an order leads there and back, so that before and behind are no sides. Regions get
        # colours instead, and the sides are whether a node stays with its own.
        if self._undoes_itself:
            self._colour()
        vertex = {name: index + 2 for index, name in enumerate(self._candidates)}
        flow = Flow(len(vertex) + 2)
        edges = [edge for edge in self._edges(vertex, flow) if len(edge.ends) > 1]
        # A tensor pays once, however many of its readers are on the other side.
        for ends, price in edges:
            flow.some_across(ends[0], ends[1:], price, price)
        now = [0, 1, *map(self._colour_of, vertex)]
        now[_VERTEX[_SOURCE]], now[_VERTEX[_SINK]] = _SOURCE, _SINK
        sides = list(map(int, flow.source_side()))
        better = _better(edges, now, sides)
        return {name for name, i in vertex.items() if sides[i] != now[i] and i in better}

    def _colour_of(self, name: str) -> int:
        how = self._candidates[name]
        return self._colours.get(self._rewriter.node(name).inputs[how.moved[0]], 0)

    def _tensors(self, name: str) -> list[str]:
        """Return the tensors of a candidate whose order it may change."""
        node, how = self._rewriter.node(name), self._candidates[name]
        outputs = () if how.settles else filter(None, node.outputs)
        return [*(node.inputs[index] for index in how.moved), *outputs]

    def _turns(self) -> list[Node]:
        turns = self._rewriter.find("Transpose")
        return [node for node in turns if turn_of(self._rewriter, node) == self._order]

    def _colour(self) -> None:
        """Give each region of nodes a colour, another one beyond each Transpose."""
        region = self._regions()
        beyond: dict[str, list[tuple[str, Node]]] = {}
        for node in self._turns():
            a, b = (region.get(name, name) for name in (node.inputs[0], node.outputs[0]))
            beyond.setdefault(a, []).append((b, node))
            beyond.setdefault(b, []).append((a, node))
        colours: dict[str, int] = {}
        for start in beyond:
            waiting = [start] if colours.setdefault(start, 0) == 0 else []
            while waiting:
                here = waiting.pop()
                for other, node in beyond[here]:
                    if other not in colours:
                        colours[other] = 1 - colours[here]
                        waiting.append(other)
                    # Around a ring of an odd number, one Transpose leads back to its own colour: it
                    # is no link.
                    if colours[other] != colours[here]:
                        self._links.add(node.name)
        for name in (*region, *beyond):
            self._colours[name] = colours.get(region.get(name, name), 0)

    def _regions(self) -> dict[str, str]:
        """Return for each tensor of candidates the first one of its region."""
        near: dict[str, list[str]] = {}
        for name in self._candidates:
            for tensor in (tensors := self._tensors(name)):
                near.setdefault(tensor, []).append(tensors[0])
                near.setdefault(tensors[0], []).append(tensor)
        region: dict[str, str] = {}
        for start in near:
            waiting = [start] if start not in region else []
            while waiting:
                tensor = waiting.pop()
                if tensor not in region:
                    region[tensor] = start
                    waiting += near[tensor]
        return region

    def _edges(self, vertex: Mapping[str, int], flow: Flow) -> Iterator[_Edge]:
        """Yield what connects candidates, and their surroundings."""
        joined: dict[str, _Edge] = {}
        tensors = dict.fromkeys(t for name in self._candidates for t in self._tensors(name))
        for node in self._turns():
            if node.name in self._links:
                tensors.update(dict.fromkeys((node.inputs[0], node.outputs[0])))
        for tensor in tensors:
            edge = joined.setdefault(
                self._root(tensor), _Edge([], price_of(self._rewriter.tensors[tensor]))
            )
            edge.ends.extend(self._ends(tensor, vertex, flow))
        for edge in joined.values():
            yield _Edge(list(dict.fromkeys(edge.ends)), edge.price)

    def _root(self, tensor: str) -> str:
        """Return the tensor that others are made of by Transposes between colours."""
        while (writer := self._rewriter.producer(tensor)) and writer.name in self._links:
            tensor = writer.inputs[0]
        return tensor

    def _ends(self, tensor: str, vertex: Mapping[str, int], flow: Flow) -> Iterator[int]:
        """Yield the vertices of what writes and reads a tensor in either order."""
        rewriter, as_it_is = self._rewriter, _VERTEX[self._colours.get(tensor, 0)]
        writer = rewriter.producer(tensor)
        turn = turn_of(rewriter, writer)
        if writer is None or (turn is None and writer.name not in vertex):
            yield as_it_is
        elif writer.name in vertex:
            yield as_it_is if self._candidates[writer.name].settles else vertex[writer.name]
        elif writer.name not in self._links:  # of another order it is one Transpose either way
            is_source = turn == self._order and not self._undoes_itself
            # A vertex of its own may be on either side: whatever is chosen, there is one Transpose.
            yield _VERTEX[_SOURCE] if is_source else flow.vertex()
        if rewriter.is_output(tensor):
            yield as_it_is
        for node in rewriter.readers(tensor):
            turn = turn_of(rewriter, node)
            if turn is None:
                yield vertex.get(node.name, as_it_is)
            elif turn == inverse(self._order) and not self._undoes_itself:
                yield _VERTEX[_SOURCE]
