"""Transposes on both sides of elementwise nodes: these work in the layout that is there."""

from __future__ import annotations

import numpy as np

from ..ir import Graph, Node
from .merging import MayMerge, always
from .pairs import order_of
from .pipeline import gated
from .rewriting import Rewriter

_ELEMENTWISE = frozenset(
    {
        *("Abs", "Add", "Cast", "Ceil", "Clip", "Cos", "Div"),
        *("Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
        *("Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul"),
        *("Neg", "Not", "PRelu", "Pow", "Reciprocal", "Relu", "Round"),
        *("Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt"),
        *("Sub", "Swish", "Tanh"),
    }
)


@gated("Transpose")
def sink_transposes(graph: Graph, may_merge: MayMerge = always) -> Graph:
    """Transpose, f, g, Transpose -> f, g, and one Transpose of both, or none.

    f, g are elementwise, with constants beside them that are transposed too; what lies between is
    read by nothing else and is no output.
    """
    rewriter = Rewriter(graph, may_merge)
    for name in [node.name for node in graph.nodes if node.op == "Transpose"]:
        if name in rewriter.names:
            node = rewriter.node(name)
            *chain, last = _chain(rewriter, node) or [node]
            if chain:
                _sink(rewriter, node, chain, last)
    return rewriter.result()


def _chain(rewriter: Rewriter, node: Node) -> list[Node]:
    """Return the nodes behind a Transpose up to the next one; none if there is no such."""
    chain: list[Node] = []
    tensor = node.outputs[0]
    rank = rewriter.tensors[tensor].rank
    while rank is not None and rewriter.is_private(tensor):
        (reader,) = rewriter.readers(tensor)
        if reader.op == "Transpose":
            nodes = [node, *chain, reader]
            return [*chain, reader] if rewriter.may_merge(nodes, reader) else []
        if not _moves(rewriter, reader, tensor, rank):
            return []
        chain.append(reader)
        tensor = reader.outputs[0]
    return []


def _moves(rewriter: Rewriter, node: Node, tensor: str, rank: int) -> bool:
    """True when a node works element by element on a tensor, with constants beside it."""
    if node.op not in _ELEMENTWISE or node.inputs.count(tensor) != 1:
        return False
    others = [name for name in node.inputs if name and name != tensor]
    shapes = rewriter.tensors[tensor].shape, rewriter.tensors[node.outputs[0]].shape
    return shapes[0] == shapes[1] and all(
        name in rewriter.constants and rewriter.constants[name].ndim <= rank for name in others
    )


def _sink(rewriter: Rewriter, first: Node, chain: list[Node], last: Node) -> None:
    rank = rewriter.tensors[first.outputs[0]].rank
    assert rank is not None, "a chain begins with a known rank"
    before, after = order_of(first, rank), order_of(last, rank)
    order = tuple(before[axis] for axis in after)
    cancelled = list(order) == sorted(order)
    tensor, below, made = first.inputs[0], first.outputs[0], list[Node]()
    for node in chain:
        inputs = [
            tensor if name == below else _turned(rewriter, name, before, node.op)
            for name in node.inputs
        ]
        written = last.outputs if cancelled and node is chain[-1] else None
        attributes = dict(node.attributes)
        made.append(rewriter.make(node.op, inputs, written, name=node.name, **attributes))
        tensor, below = made[-1].outputs[0], node.outputs[0]
    if not cancelled:
        made.append(rewriter.make("Transpose", (tensor,), last.outputs, name=last.name, perm=order))
    rewriter.replace([first, *chain, last], made)


def _turned(rewriter: Rewriter, name: str, order: tuple[int, ...], op: str) -> str:
    """Return a constant in the layout that was there before a Transpose."""
    if not name or op == "Clip" or rewriter.constants[name].size == 1:
        return name
    value = rewriter.constants[name]
    aligned = value.reshape((1,) * (len(order) - value.ndim) + value.shape)
    return rewriter.constant(aligned.transpose(np.argsort(order)), f"{name}.turned")
