"""A call whose results may be of any length up to a bound, into buffers of that bound.

Of a Python function, or of an operator of ONNX Runtime's whose lengths values decide. Plans put it
where such a one is; graphs that users write have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..attribute import Attribute, Kind
from ..ir import Graph, Node
from ..operator import Call, define, find_operator
from ..tensor import TensorSpec
from ..traits import OWN_DTYPES, RUNTIME, Part
from .reduce_rows import REDUCED_CALL

BOUNDED_CALL = "BoundedCall"

CALLS = BOUNDED_CALL, REDUCED_CALL
"""Operators that stand for the first node of their graph, or for that and what follows it."""


@define(
    BOUNDED_CALL,
    inputs="x*",
    outputs="y+",
    attributes={"body": Attribute(Kind.GRAPH), "dims": Attribute(Kind.STRINGS)},
    float16=OWN_DTYPES,
    lacks=dict.fromkeys(Part, "it is in plans alone, and stands for another one"),
)
def infer_bounded_call(call: Call) -> Sequence[TensorSpec]:
    """Infer: the largest results, and their true shapes one behind the other."""
    body: Graph = call.attributes["body"]
    specs = [body.tensors[name] for name in body.outputs]
    return (*specs, TensorSpec(np.int64, (sum(spec.rank or 0 for spec in specs),)))


def called_op(node: Node) -> str:
    """Return the operator of a node, for people: where it stands for a function, that one's."""
    return node.attributes["body"].nodes[0].op if node.op in CALLS else node.op


def calls_function(node: Node) -> bool:
    """True for a node that is a Python function, or stands for one."""
    return find_operator(called_op(node)).function is not None


def is_bounded_call(graph: Graph, node: Node, bounds: Mapping[str, tuple[int, int]]) -> bool:
    """True for one that may be called so, all of whose results' lengths are known, or bounded."""
    operator = node.operator
    may_be = operator.function is not None or RUNTIME in operator.traits
    if not may_be or operator.owns:
        return False
    shapes = [spec.shape for spec in graph.output_specs(node)]
    return (
        None not in shapes
        and len(shapes) == len(node.outputs)
        and all(isinstance(dim, int) or dim in bounds for shape in shapes for dim in shape or ())
    )


def bounded_call(graph: Graph, node: Node, bounds: Mapping[str, tuple[int, int]]) -> Node:
    """Return the node that stands for one of which `is_bounded_call` is true."""
    declared = [graph.tensors[name].shape or () for name in node.outputs]
    largest = {
        name: TensorSpec(
            graph.tensors[name].dtype,
            tuple(dim if isinstance(dim, int) else bounds[dim][1] for dim in shape),
        )
        for name, shape in zip(node.outputs, declared, strict=True)
    }
    read = tuple(dict.fromkeys(filter(None, node.inputs)))
    tensors = {**{name: graph.tensors[name] for name in read}, **largest}
    body = Graph(node.name, read, node.outputs, (node,), tensors, {})
    dims = tuple(str(dim) for shape in declared for dim in shape)
    operator = find_operator(BOUNDED_CALL)
    attributes = operator.complete({"body": body, "dims": dims}, str(node))
    outputs = (*node.outputs, f"{node.name}\0shapes")
    return Node(node.name, BOUNDED_CALL, read, outputs, attributes)
