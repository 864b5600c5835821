"""The definition of Fused."""

from __future__ import annotations

from ...graph.core.ir import Graph
from ...graph.core.nested import call_graph
from ...graph.operators.fused import FUSED
from ...graph.values.tensor import Array, spec_of
from .program import bind_definition
from .registry import definition


@definition(FUSED)
def fused(*inputs: Array, body: Graph) -> Array:
    """Return the results of the nodes of `body`, in order, for `inputs`."""
    graph = call_graph(body, [spec_of(array) for array in inputs])
    arrays = dict(zip(body.inputs, inputs, strict=True))
    for node in graph.nodes:
        specs = [graph.tensors[name] for name in node.outputs]
        given = [arrays[name] if name else None for name in node.inputs]
        results = bind_definition(node, specs)(given)
        arrays.update(zip(node.outputs, results, strict=True))
    return arrays[body.outputs[0]]
