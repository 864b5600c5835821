"""Decode quantized weights ahead of time: faster, for more memory, on request."""

from __future__ import annotations

from ..core.evaluation import Room, evaluate_node
from ..core.infer import infer_node
from ..core.ir import Graph, Node, make_call
from ..core.traits import DECODES
from ..values.tensor import Array
from .merging import MayMerge, allow_any

MOST_TIMES = 8
"""Limit for decoded constants, relative to all constants: one byte becomes at most eight."""


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
