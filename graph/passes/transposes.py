"""Sink Transposes over nodes that work in any order of axes, until they meet and cancel."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ..core.ir import Graph, Node
from ..values.names import Names
from .merging import MayMerge, allow_any
from .pairs import merge_transposes
from .pipeline import gate
from .reordering import Order, Reordering, reorder
from .rewriting import Rewriter
from .transpose_cut import Cut, compute_price, get_turn, invert


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
