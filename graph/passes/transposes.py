"""Sink Transposes over nodes that work in any order of axes, until they meet and cancel."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..core.ir import Graph, Node
from ..values.names import Names
from ..values.tensor import TensorSpec
from .flow import Flow
from .pairs import get_order, merge_transposes
from .pipeline import gate
from .reordering import Order, Reordering, reorder
from .rewriting import MayMerge, Rewriter, allow_any


@gate("Transpose")
def sink_transposes(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
    """Move Transposes from inputs to outputs, f(Transpose(x)) -> Transpose(f(x)), if cheaper.

    f works in any order of axes: elementwise nodes, Concat, Split, Pad, Slice, Reduce, Softmax and
    their like, with their axes mapped. Constants are transposed ahead. `may_merge` can refuse a
    change of `graph`.
    """
    rewriter = Rewriter(graph, may_merge)
    found = (get_turn(rewriter, node) for node in rewriter.find("Transpose"))
    for order in dict.fromkeys(order for order in found if order is not None):
        if order != tuple(sorted(order)):
            after = _sink(graph, order, may_merge)
            if after is not graph and _sum_prices(after) < _sum_prices(graph):
                graph = after
    return graph


def _sum_prices(graph: Graph) -> int:
    """Sum the prices of all Transposes in `graph`; the cut misses some that cancel on the way."""
    turns = (node for node in graph.nodes if node.op == "Transpose")
    return sum(compute_price(graph.tensors[node.outputs[0]]) for node in turns)


def _sink(graph: Graph, order: Order, may_merge: MayMerge) -> Graph:
    rewriter = Rewriter(graph, may_merge)
    candidates = _find_candidates(rewriter, order)
    chosen = Cut(rewriter, order, candidates).chosen() if candidates else ()
    if chosen:
        mover = _Mover(rewriter, order)
        for node in [node for node in rewriter.find() if node.name in chosen]:
            mover.move(node, candidates[node.name])
        mover.merge()
        rewriter.drop_dead()
    return rewriter.result()


def _find_candidates(rewriter: Rewriter, order: Order) -> dict[str, Reordering]:
    """Return by name how nodes near Transposes could work in the order before `order`."""
    back, waiting = invert(order), deque[Node | None]()
    for node in rewriter.find("Transpose"):
        if (this := get_turn(rewriter, node)) == order:
            waiting += rewriter.consumers(node)
        if this == back:
            waiting.append(rewriter.producer(node.inputs[0]))
    found: dict[str, Reordering] = {}
    seen: set[str] = set()
    while waiting:
        one = waiting.pop()
        if one is None or one.name in seen:
            continue
        seen.add(one.name)
        how = reorder(rewriter, one, order)
        if how is not None:
            found[one.name] = how
            waiting += _find_neighbours(rewriter, one, how)
    apart = {name for name, how in found.items() if not _may_move(rewriter, name, how, found)}
    return {name: how for name, how in found.items() if name not in apart}


def _find_neighbours(rewriter: Rewriter, node: Node, how: Reordering) -> list[Node]:
    writers = (rewriter.producer(node.inputs[index]) for index in how.moved)
    return [*filter(None, writers), *(() if how.settles else rewriter.consumers(node))]


def _may_move(
    rewriter: Rewriter, name: str, how: Reordering, found: Mapping[str, Reordering]
) -> bool:
    node = rewriter.node(name)
    return all(
        rewriter.may_merge([other, node], node)
        for other in _find_neighbours(rewriter, node, how)
        if other.name in found or other.op == "Transpose"
    )


class _Mover:
    def __init__(self, rewriter: Rewriter, order: Order) -> None:
        self._rewriter = rewriter
        self._order = order
        self._names = Names(rewriter.names)
        self._before: dict[str, str] = {}  # from a tensor to its source in the order before
        self._written: list[str] = []

    def move(self, node: Node, how: Reordering) -> None:
        """Move `node`, changed as in `how`, before its Transposes; transpose results for others."""
        rewriter = self._rewriter
        count = max((len(node.inputs) - 1, *how.constants)) + 1
        inputs = [*node.inputs, *[""] * (count - len(node.inputs))]
        made: list[Node] = []
        for index in how.moved:
            inputs[index] = self._source(node, node.inputs[index], made)
        for index, value in how.constants.items():
            stem = inputs[index] or f"{node.name}.{index}"
            inputs[index] = rewriter.constant(value, f"{stem}.turned")
        outputs = list(node.outputs)
        if not how.settles:
            outputs = [name and rewriter.new_tensor(f"{name}.turned") for name in node.outputs]
        made.append(rewriter.make(node.op, inputs, outputs, name=node.name, **how.attributes))
        if not how.settles:
            for name, before in zip(node.outputs, outputs, strict=True):
                if name:
                    made.append(self._transpose(before, node.name, self._order, (name,)))
                    self._before[name] = before
                    self._written.append(name)
        rewriter.replace([node], made)

    def merge(self) -> None:
        rewriter = self._rewriter
        for name in self._written:
            for reader in rewriter.readers(name):
                writer = rewriter.producer(name)
                assert writer is not None, "a Transpose follows each moved node"
                if reader.op == "Transpose" and rewriter.may_merge([writer, reader], reader):
                    merge_transposes(rewriter, writer, reader)

    def _source(self, node: Node, tensor: str, made: list[Node]) -> str:
        """Return `tensor`, an input of `node`, before its Transpose; add new ones to `made`."""
        if tensor not in self._before:
            writer = self._rewriter.producer(tensor)
            turn, order = get_turn(self._rewriter, writer), invert(self._order)
            source = tensor
            if writer is not None and turn is not None:
                order, source = tuple(turn[axis] for axis in order), writer.inputs[0]
            if order != tuple(sorted(order)):
                made.append(self._transpose(source, node.name, order))
                source = made[-1].outputs[0]
            self._before[tensor] = source
        return self._before[tensor]

    def _transpose(
        self, tensor: str, stem: str, order: Order, outputs: tuple[str, ...] | None = None
    ) -> Node:
        name = self._names.take(f"{stem}/turned")
        return self._rewriter.make("Transpose", (tensor,), outputs, name=name, perm=order)


_ONE_MORE = 1 << 50
"""Cost of a Transpose in addition to its bytes: more than all bytes."""

_SINK, _SOURCE = 0, 1
"""Sides of the cut. Nodes of colour 0 on the source's side read the tensors before Transposes."""

_VERTEX = (1, 0)
"""The vertex of `Flow` that is fixed on each side."""


class _Edge(NamedTuple):
    """A tensor, or several that are Transposes of one another: its vertices and price."""

    ends: list[int]
    price: int


def get_turn(rewriter: Rewriter, node: Node | None) -> Order | None:
    if node is None or node.op != "Transpose":
        return None
    rank = rewriter.tensors[node.inputs[0]].rank
    return None if rank is None else get_order(node, rank)


def invert(order: Order) -> Order:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def compute_price(spec: TensorSpec) -> int:
    """Return the price of transposing a tensor of `spec`; unknown lengths count as 1."""
    lengths = [dim for dim in spec.shape or () if isinstance(dim, int)]
    return _ONE_MORE + spec.dtype.itemsize * math.prod(lengths)


def _find_gains(edges: Sequence[_Edge], now: Sequence[int], then: Sequence[int]) -> set[int]:
    """Return the vertices of parts connected by `edges` where cut `then` is cheaper than `now`."""
    part = list(range(len(now)))

    def root(vertex: int) -> int:
        while part[vertex] != vertex:
            part[vertex] = part[part[vertex]]
            vertex = part[vertex]
        return vertex

    # The two fixed vertices, and the free ones after the candidates, do not connect parts.
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
            # A part without a gain stays as it is, even if the whole cut moves it.
            gain[place] = gain.get(place, 0) + edge.price * (mixed[0] - mixed[1])
    return {vertex for vertex in range(2, len(now)) if gain.get(root(vertex), 0) > 0}


class Cut:
    """The choice among nodes that could run before the Transposes of an order, by a minimum cut.

    A tensor that is needed in both orders costs a Transpose and the bytes that it moves. Transposes
    of an order that is its own inverse separate regions without a direction: regions get two
    colours, and a node counts as moved if its side differs from its colour. `candidates` has the
    nodes by name, and their replacements.
    """

    def __init__(
        self, rewriter: Rewriter, order: Order, candidates: Mapping[str, Reordering]
    ) -> None:
        self._rewriter = rewriter
        self._order = order
        self._candidates = candidates
        self._undoes_itself = order == invert(order)
        self._colours: dict[str, int] = {}
        """Colours of tensors; 0 by default."""
        self._links: set[str] = set()
        """Transposes that lead from one colour to the other."""

    def chosen(self) -> set[str]:
        # Such an order has no direction. Regions get colours, and the side of a node is whether it
        # keeps its colour.
        if self._undoes_itself:
            self._colour()
        vertex = {name: index + 2 for index, name in enumerate(self._candidates)}
        flow = Flow(len(vertex) + 2)
        edges = [edge for edge in self._edges(vertex, flow) if len(edge.ends) > 1]
        # A tensor pays once for all readers on the other side.
        for ends, price in edges:
            flow.some_across(ends[0], ends[1:], price, price)
        now = [0, 1, *map(self._colour_of, vertex)]
        now[_VERTEX[_SOURCE]], now[_VERTEX[_SINK]] = _SOURCE, _SINK
        sides = list(map(int, flow.source_side()))
        better = _find_gains(edges, now, sides)
        return {name for name, i in vertex.items() if sides[i] != now[i] and i in better}

    def _colour_of(self, name: str) -> int:
        how = self._candidates[name]
        return self._colours.get(self._rewriter.node(name).inputs[how.moved[0]], 0)

    def _tensors(self, name: str) -> list[str]:
        node, how = self._rewriter.node(name), self._candidates[name]
        outputs = () if how.settles else filter(None, node.outputs)
        return [*(node.inputs[index] for index in how.moved), *outputs]

    def _turns(self) -> list[Node]:
        turns = self._rewriter.find("Transpose")
        return [node for node in turns if get_turn(self._rewriter, node) == self._order]

    def _colour(self) -> None:
        """Colour the regions of nodes so that each Transpose separates two colours."""
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
                    # In an odd ring one Transpose connects equal colours; it does not count.
                    if colours[other] != colours[here]:
                        self._links.add(node.name)
        for name in (*region, *beyond):
            self._colours[name] = colours.get(region.get(name, name), 0)

    def _regions(self) -> dict[str, str]:
        """Map each tensor of the candidates to the first one of its region."""
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
        joined: dict[str, _Edge] = {}
        tensors = dict.fromkeys(t for name in self._candidates for t in self._tensors(name))
        for node in self._turns():
            if node.name in self._links:
                tensors.update(dict.fromkeys((node.inputs[0], node.outputs[0])))
        for tensor in tensors:
            edge = joined.setdefault(
                self._root(tensor), _Edge([], compute_price(self._rewriter.tensors[tensor]))
            )
            edge.ends.extend(self._ends(tensor, vertex, flow))
        for edge in joined.values():
            yield _Edge(list(dict.fromkeys(edge.ends)), edge.price)

    def _root(self, tensor: str) -> str:
        """Return the origin of `tensor` before all Transposes between colours."""
        while (writer := self._rewriter.producer(tensor)) and writer.name in self._links:
            tensor = writer.inputs[0]
        return tensor

    def _ends(self, tensor: str, vertex: Mapping[str, int], flow: Flow) -> Iterator[int]:
        rewriter, as_it_is = self._rewriter, _VERTEX[self._colours.get(tensor, 0)]
        writer = rewriter.producer(tensor)
        turn = get_turn(rewriter, writer)
        if writer is None or (turn is None and writer.name not in vertex):
            yield as_it_is
        elif writer.name in vertex:
            yield as_it_is if self._candidates[writer.name].settles else vertex[writer.name]
        elif writer.name not in self._links:  # of another order it is one Transpose either way
            is_source = turn == self._order and not self._undoes_itself
            # A free vertex: on either side there is one Transpose.
            yield _VERTEX[_SOURCE] if is_source else flow.vertex()
        if rewriter.is_output(tensor):
            yield as_it_is
        for node in rewriter.readers(tensor):
            turn = get_turn(rewriter, node)
            if turn is None:
                yield vertex.get(node.name, as_it_is)
            elif turn == invert(self._order) and not self._undoes_itself:
                yield _VERTEX[_SOURCE]
