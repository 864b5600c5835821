"""Fused: elementwise nodes that are computed together, so that only their ends reach memory.

Plans put it where a device asks for it, once it is known who runs what; graphs that users write
have none. What is shared by those who make and run such nodes is here as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..attribute import Attribute, Kind
from ..infer import get_cost
from ..ir import Graph
from ..nested import call_graph, infer_results
from ..operator import Call, Specs, define
from ..tensor import TensorSpec
from ..traits import OWN_DTYPES, PRIMITIVE, Part

FUSED = "Fused"

MOST_INPUTS = 32
"""Of one node. Its output may overwrite any of those that are like it."""


def body_of(call: Call) -> Graph:
    """Return what a Fused node computes; ranks in it are unknown, its inputs have them."""
    body: Graph = call.attributes["body"]
    return body


def _cost(call: Call, outputs: Specs) -> int:
    graph = call_graph(body_of(call), call.inputs)
    return sum(get_cost(graph, node).flops for node in graph.nodes)


@define(
    FUSED,
    inputs="x+",
    attributes={"body": Attribute(Kind.GRAPH)},
    cost=_cost,
    inplace=tuple((0, index) for index in range(MOST_INPUTS)),
    float16=OWN_DTYPES,
    lacks=PRIMITIVE
    | {
        Part.GRADIENT: "plans are made of graphs whose gradients are there",
        Part.CODEGEN: "chains are for devices that do not fuse when they compile",
    },
)
def infer_fused(call: Call) -> Sequence[TensorSpec]:
    """Infer: as the last of the nodes, all of which have outputs of one shape."""
    return infer_results(body_of(call), call.inputs, call.values)
