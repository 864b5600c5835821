"""Hoist quantizations over nodes that only move elements, which then move bytes."""

from __future__ import annotations

import numpy as np

from ..core.ir import Node
from ..core.traits import MAXIMA, SELECTS
from ..values.names import Names
from .pipeline import make_pass
from .quantized import read_quantization
from .rewriting import Rewriter


@make_pass("QuantizeLinear")
def hoist_quantize(rewriter: Rewriter) -> None:
    """Move QuantizeLinear before MaxPool, Reshape, Concat and the like.

    The same bits, as quantizing keeps the order. The scale must be one constant, and nothing else
    may read the intermediate tensor. All inputs of a Concat are quantized.
    """
    names = Names(node.name for node in rewriter.graph.nodes)
    waiting = rewriter.find("QuantizeLinear")
    while waiting:
        node = waiting.pop()
        move = rewriter.producer(node.inputs[0])
        if move is not None and _may_swap(rewriter, move, node):
            waiting += _swap(rewriter, names, move, node)


def _may_swap(rewriter: Rewriter, move: Node, node: Node) -> bool:
    made = read_quantization(rewriter, node)
    if made is None or made.scale.size > 1 or not rewriter.is_private(node.inputs[0]):
        return False
    return is_selection(rewriter, move) and rewriter.may_merge([move, node], node)


def is_selection(rewriter: Rewriter, move: Node) -> bool:
    """Return whether `move` only selects elements of its inputs in `rewriter`, in their order."""
    if len(move.outputs) != 1:
        return False
    if move.op == "Concat":
        return all(rewriter.tensors[name].dtype == np.float32 for name in move.inputs)
    if move.op == "Resize":
        nearest = move.attributes["mode"] == "nearest"
        return nearest and "crop" not in move.attributes["coordinate_transformation_mode"]
    return bool(move.operator.traits & (SELECTS | MAXIMA))


def _swap(rewriter: Rewriter, names: Names, move: Node, node: Node) -> list[Node]:
    count = len(move.inputs) if move.op == "Concat" else 1
    ahead = {
        name: rewriter.make(
            "QuantizeLinear",
            (name, *node.inputs[1:]),
            name=names.take(f"{name}/quantized"),
            **node.attributes,
        )
        for name in dict.fromkeys(move.inputs[:count])
    }
    integers = (ahead[name].outputs[0] for name in move.inputs[:count])
    inputs = (*integers, *move.inputs[count:])
    moved = Node(move.name, move.op, inputs, node.outputs, move.attributes)
    rewriter.replace([move, node], [*ahead.values(), moved])
    return list(ahead.values())
