"""Graphs included in others, node by node, under a prefix: `GraphBuilder.include`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core.attribute import LENGTHS
from ..core.ir import Graph
from ..values.errors import GraphError
from ..values.tensor import is_same_dtype
from .named_tensor import Tensor
from .own_lengths import IncludedLengths

if TYPE_CHECKING:
    from .builder import GraphBuilder


def include_graph(
    b: GraphBuilder, graph: Graph, inputs: Mapping[str, str], prefix: str | None
) -> dict[str, Tensor]:
    _check_fed(b, graph, inputs)
    prefix = f"{graph.name}/" if prefix is None else prefix
    # "" stands for an absent input, here too.
    names = {"": "", **{own: str(tensor) for own, tensor in inputs.items()}}
    for tensor, value in graph.constants.items():
        precision = graph.precisions.get(tensor)
        names[tensor] = str(b.constant(value, prefix + tensor, precision=precision))
    lengths = IncludedLengths(graph, b.own_lengths)
    for node in graph.nodes:
        names.update({tensor: prefix + tensor for tensor in node.outputs if tensor})
        attributes = dict(node.attributes)
        if LENGTHS in attributes:
            attributes[LENGTHS] = lengths.of(node, b.specs)
        b.op(
            node.op,
            *(names[tensor] or None for tensor in node.inputs),
            name=prefix + node.name,
            outputs=[names[tensor] for tensor in node.outputs],
            **attributes,
        )
    return {tensor: b.tensor(names[tensor]) for tensor in graph.outputs}


def _check_fed(b: GraphBuilder, graph: Graph, inputs: Mapping[str, str]) -> None:
    if not isinstance(graph, Graph) or not isinstance(inputs, Mapping):
        raise GraphError("include takes a graph and a mapping", at=b.name, fix="load a model first")
    if set(inputs) != set(graph.inputs):
        raise GraphError(
            f"graph {graph.name!r} has the inputs {', '.join(graph.inputs)}; "
            f"given: {', '.join(inputs) or 'none'}",
            at=b.name,
            fix="feed each of them once",
        )
    for name, tensor in inputs.items():
        here, there = b.spec(tensor), graph.tensors[name]
        ranks_fit = None in (here.rank, there.rank) or here.rank == there.rank
        if not is_same_dtype(here, there) or not ranks_fit:
            raise GraphError(
                f"input {name!r} of graph {graph.name!r} is {there}, but {tensor!r} is {here}",
                at=b.name,
                fix="insert a Cast or Reshape",
            )
