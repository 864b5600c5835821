"""Fused: elementwise nodes that are computed together, so that only their ends reach memory.

Plans insert it on devices that ask for it, after nodes are assigned; graphs of users have none.
The code that makers and devices of such nodes share is here, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.infer import get_cost
from ..core.ir import Graph
from ..core.nested import call_graph, infer_results
from ..core.operator import Call, Specs, define
from ..core.traits import OWN_DTYPES, PRIMITIVE, Part
from ..values.tensor import TensorSpec

FUSED = "Fused"

MOST_INPUTS = 32
"""Most inputs of a node. Its output may overwrite any of those that are like it."""


def get_body(call: Call) -> Graph:
    """Return the body of a Fused node in `call`; ranks in it are unknown, its inputs have them."""
    body: Graph = call.attributes["body"]
    return body


def _estimate_cost(call: Call, outputs: Specs) -> int:
    graph = call_graph(get_body(call), call.inputs)
    return sum(get_cost(graph, node).flops for node in graph.nodes)


@define(
    FUSED,
    inputs="x+",
    attributes={"body": Attribute(Kind.GRAPH)},
    cost=_estimate_cost,
    inplace=tuple((0, index) for index in range(MOST_INPUTS)),
    float16=OWN_DTYPES,
    lacks=PRIMITIVE
    | {
        Part.GRADIENT: "plans are made of graphs whose gradients are there",
        Part.CODEGEN: "chains are for devices that do not fuse when they compile",
    },
)
def infer_fused(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like the last node's; all nodes have outputs of one shape."""
    return infer_results(get_body(call), call.inputs, call.values)
