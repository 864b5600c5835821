"""Nodes between which values decide lengths, as one node: a runtime finds its own memory for them.

A tokenizer yields as many words as there are, and a table of counts is as wide as its vocabulary
again. Tensors in between have no planned memory, and nothing waits for their lengths.
"""

from __future__ import annotations

from collections.abc import Collection

from .ir import Graph, Node
from .traits import RUNTIME

WHOLE = "ort.Whole"
"""The operator that holds such nodes."""


def with_lengths_held(graph: Graph) -> Graph:
    """Merge nodes of `graph` between open lengths into one, as far as results have known lengths.

    The graph's inputs have to be static; else nothing is merged.
    """
    for node in graph.nodes:
        if RUNTIME in node.operator.traits and node.op != WHOLE and _has_value_lengths(graph, node):
            inside = _find_held(graph, node)
            if inside is not None:
                return with_lengths_held(_merge(graph, inside, f"{node.name}/whole"))
    return graph


def _has_value_lengths(graph: Graph, node: Node) -> bool:
    known = all(graph.tensors[name].is_static for name in node.inputs if name)
    return known and _is_open(graph, node)


def _is_open(graph: Graph, node: Node) -> bool:
    return not all(spec.is_static for spec in graph.output_specs(node))


def _find_held(graph: Graph, start: Node) -> frozenset[str] | None:
    """Return the names of `start` and all nodes of `graph` to merge with it; None if impossible.

    These are the readers of tensors of open length, and the nodes between them.
    """
    inside, below = {start.name}, {start.name}
    for node in graph.nodes:  # in order: readers come after their inputs
        before = [graph.producers[name] for name in node.inputs if name in graph.producers]
        if below.isdisjoint(one.name for one in before):
            continue
        below.add(node.name)
        if any(one.name in inside and _is_open(graph, one) for one in before):
            if node.operator.function is not None or node.operator.effects:
                return None
            inside |= _find_between(graph, node, below)
    fetched = {*graph.outputs, *graph.assigned}
    written = (name for node in graph.nodes if node.name in inside for name in node.outputs)
    if any(name in fetched and not graph.tensors[name].is_static for name in written):
        return None
    return frozenset(inside)


def _find_between(graph: Graph, node: Node, below: Collection[str]) -> set[str]:
    found, left = set[str](), [node]
    while left:
        one = left.pop()
        if one.name in below and one.name not in found:
            found.add(one.name)
            left += (graph.producers[name] for name in one.inputs if name in graph.producers)
    return found


def _merge(graph: Graph, inside: Collection[str], name: str) -> Graph:
    """Return `graph` with the nodes `inside` merged into one, `name`, after all inputs of these."""
    body = graph.extract((node for node in graph.nodes if node.name in inside), name)
    one = Node(name, WHOLE, body.inputs, body.outputs, {"body": body})
    below, first, last = set(body.outputs), list[Node](), list[Node]()
    for node in graph.nodes:
        if node.name in inside:
            continue
        if below.isdisjoint(node.inputs):
            first.append(node)
        else:
            below.update(node.outputs)
            last.append(node)
    return graph.with_nodes((*first, one, *last))
