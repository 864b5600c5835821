"""Compute nodes ahead that depend on constants and known shapes alone.

Quantized weights are decoded ahead only on request: that is faster, for more memory.
"""

from __future__ import annotations

from dataclasses import replace

from ..core.evaluation import Room, evaluate_node, is_known_ahead
from ..core.infer import infer_node
from ..core.ir import Graph, Node, make_call
from ..core.traits import DECODES
from ..operators.control import CONTROL_FLOW
from ..values.tensor import Array
from .rewriting import MayMerge, allow_any

MOST_TIMES = 8
"""Limit for decoded constants, relative to all constants: one byte becomes at most eight."""


def fold_constants(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
    """Replace f(constants) and Shape(x of a known shape) in `graph` by constants.

    They take up to 16 MiB each, 32 MiB in all. One sweep also covers shape arithmetic: shapes that
    follow from folded values are inferred on the way. Python functions, nodes with effects and
    control flow stay; nested graphs are folded on their own. `may_merge` is ignored.
    """
    tensors, values = dict(graph.tensors), dict(graph.constants)
    room = Room(values.values())
    made: dict[str, Array] = {}
    kept: list[Node] = []
    news: set[str] = set()
    for node in graph.nodes:
        known = node.op not in CONTROL_FLOW and is_known_ahead(node, tensors, values)
        found: dict[str, Array] | None = None
        if known or not news.isdisjoint(node.inputs):
            call = make_call(node, tensors, values)
            specs = infer_node(node, call)
            found = evaluate_node(node, call, specs, room) if known else None
            told = zip(node.outputs, specs, strict=True)
            clearer = {n: spec for n, spec in told if n and not tensors[n].is_static}
            tensors.update(clearer)
            news.update(found or clearer)
        if found is None:
            kept.append(node)
        else:
            values.update(found)
            made.update(found)
    return replace(graph, tensors=tensors).with_nodes(kept, made) if made else graph


def decode_constants(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
    """Replace DequantizeLinear(constants) in `graph` by a constant of floats, up to 16 MiB each.

    This takes four times the bytes of int8, and no time per item. Nodes that would exceed
    `MOST_TIMES` stay, such as repeated decoding of the same weights. `may_merge` is ignored.
    """
    room = Room(graph.constants.values(), MOST_TIMES)
    made: dict[str, Array] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        read = filter(None, node.inputs)
        found = None
        if DECODES in node.operator.traits and all(name in graph.constants for name in read):
            call = make_call(node, graph.tensors, graph.constants)
            found = evaluate_node(node, call, infer_node(node, call), room)
        if found is None:
            kept.append(node)
        else:
            made.update(found)
    return graph.with_nodes(kept, made) if made else graph
