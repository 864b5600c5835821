"""A call with results of any length up to a bound, in buffers of that bound.

It calls a Python function, or an operator of ONNX Runtime with lengths that depend on values. Plans
replace such nodes by it; graphs of users have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..core.attribute import Attribute, Kind
from ..core.infer import infer_node
from ..core.ir import Graph, Node, make_call
from ..core.operator import Call, define, find_operator
from ..core.traits import OWN_DTYPES, RUNTIME, Part
from ..values.dims import is_computed
from ..values.tensor import TensorSpec
from .reduce_rows import REDUCED_CALL

BOUNDED_CALL = "BoundedCall"

CALLS = BOUNDED_CALL, REDUCED_CALL
"""Operators that replace the first node of their graph, or that and the nodes after it."""


@define(
    BOUNDED_CALL,
    inputs="x*",
    outputs="y+",
    attributes={"body": Attribute(Kind.GRAPH), "dims": Attribute(Kind.STRINGS)},
    float16=OWN_DTYPES,
    lacks=dict.fromkeys(Part, "it is in plans alone, and stands for another one"),
)
def infer_bounded_call(call: Call) -> Sequence[TensorSpec]:
    """Infer the outputs of `call`: the largest results, and their true shapes, concatenated."""
    body: Graph = call.attributes["body"]
    specs = [body.tensors[name] for name in body.outputs]
    return (*specs, TensorSpec(np.int64, (sum(spec.rank or 0 for spec in specs),)))


def get_called_op(node: Node) -> str:
    """Return the operator of `node` for messages: that of the function for a bounded call."""
    return node.attributes["body"].nodes[0].op if node.op in CALLS else node.op


def calls_function(node: Node) -> bool:
    return find_operator(get_called_op(node)).function is not None


def find_largest_results(
    node: Node, specs: Sequence[TensorSpec], bounds: Mapping[str, tuple[int, int]]
) -> Sequence[TensorSpec] | None:
    """Return the largest results of a call; None without a bound, or if nothing is called."""
    may_be_call = node.operator.function is not None or RUNTIME in node.operator.traits
    if not may_be_call or node.operator.owns or len(specs) != len(node.outputs):
        return None
    found = []
    for spec in specs:
        shape = [
            bounds[d][1] if isinstance(d, str) and d in bounds else d for d in spec.shape or ()
        ]
        found.append(TensorSpec(spec.dtype, None if spec.shape is None else shape))
    return found if all(spec.is_static for spec in found) else None


def make_bounded_call(graph: Graph, node: Node, largest: Sequence[TensorSpec]) -> Node:
    declared = [graph.tensors[name].shape or () for name in node.outputs]
    read = tuple(dict.fromkeys(filter(None, node.inputs)))
    results = zip(node.outputs, largest, strict=True)
    tensors = {**{name: graph.tensors[name] for name in read}, **dict(results)}
    body = Graph(node.name, read, node.outputs, (node,), tensors, {})
    dims = tuple(str(dim) for shape in declared for dim in shape)
    operator = find_operator(BOUNDED_CALL)
    attributes = operator.complete({"body": body, "dims": dims}, str(node))
    outputs = (*node.outputs, f"{node.name}\0shapes")
    return Node(node.name, BOUNDED_CALL, read, outputs, attributes)


def get_called_node(node: Node) -> Node:
    """Return the node that a bounded call replaces, with the names of the call's own tensors."""
    body: Graph = node.attributes["body"]
    (inner,) = body.nodes
    # Tensors around the call may have been renamed since it was made.
    pairs = zip((*body.inputs, *body.outputs), (*node.inputs, *node.outputs[:-1]), strict=True)
    outside = {"": "", **dict(pairs)}
    inputs = tuple(outside[name] for name in inner.inputs)
    return replace(inner, inputs=inputs, outputs=tuple(outside[name] for name in inner.outputs))


def infer_lengths(node: Node, specs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Return the lengths of the results of `node`, a bounded call, given the `specs` of its inputs.

    Lengths computed from others are numbers, if the specs determine them; others are as declared.
    """
    dims: tuple[str, ...] = node.attributes["dims"]
    if not any(map(is_computed, dims)):
        return dims
    inner = get_called_node(node)
    results = infer_node(inner, make_call(inner, dict(zip(node.inputs, specs, strict=True)), {}))
    told = (dim for spec in results for dim in spec.shape or ())
    return tuple(
        str(dim) if is_computed(declared) and isinstance(dim, int) else declared
        for declared, dim in zip(dims, told, strict=True)
    )
