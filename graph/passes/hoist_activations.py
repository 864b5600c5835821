"""Hoist activations over nodes that only move elements, next to their product.

A device computes both in one go, and a later quantization or bound can be merged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ..core.ir import Node
from ..core.traits import ACTIVATION, EPILOGUE, MOVES
from ..values.names import Names
from .pipeline import make_pass
from .rewriting import Rewriter


@make_pass("Split", "Concat", trait=MOVES)
def hoist_activations(rewriter: Rewriter) -> None:
    """Move activations before moves of elements: f(Reshape(Conv(x))) -> Reshape(f(Conv(x))).

    Over Reshape, Transpose, Concat and their like, in any number, if all their inputs are products
    without other readers; over Split, if f reads all its parts. Not over Slice, Gather or Tile: f
    would compute more elements.
    """

    @cache
    def names() -> Names:
        return Names(node.name for node in rewriter.graph.nodes)

    waiting = rewriter.find_with(ACTIVATION)
    while waiting:
        node = waiting.pop()
        if node in rewriter:
            waiting += _hoist(rewriter, names, node)


def _hoist(rewriter: Rewriter, names: Callable[[], Names], node: Node) -> list[Node]:
    """Swap the activation `node` and the move before it, if possible; return the activations."""
    move = rewriter.producer(node.inputs[0])
    if move is None or not rewriter.is_private(node.inputs[0]):
        return []
    if any(name and name not in rewriter.constants for name in node.inputs[1:]):
        return []
    old = [move, node]
    if move.op == "Split":
        old = [move, *_find_twins(rewriter, move, node)]
        outputs = [one.outputs[0] for one in old[1:]]
        ahead = [_apply_to(rewriter, node, move.inputs[0], names().take(f"{move.name}/{node.op}"))]
        if len(outputs) < max(2, len(move.outputs)):
            return []
    elif move.op == "Concat" and all(_is_product(rewriter, part) for part in move.inputs):
        outputs = list(node.outputs)
        ahead = [
            _apply_to(rewriter, node, part, names().take(f"{node.name}/{index}"))
            for index, part in enumerate(move.inputs)
        ]
    elif MOVES in move.operator.traits and _is_product(rewriter, move.inputs[0]):
        outputs = list(node.outputs)
        ahead = [_apply_to(rewriter, node, move.inputs[0], node.name)]
    else:
        return []
    made = (one.outputs[0] for one in ahead)
    inputs = (*made, *move.inputs[len(ahead) :])
    moved = Node(move.name, move.op, inputs, tuple(outputs), move.attributes)
    if not all(rewriter.may_merge(old, one) for one in (*ahead, moved)):
        return []
    rewriter.replace(old, [*ahead, moved])
    return ahead


def _is_product(rewriter: Rewriter, tensor: str) -> bool:
    """Return whether `tensor` comes from products alone, through private moves and joins."""
    waiting, met = [tensor], {tensor}
    while waiting:
        tensor = waiting.pop()
        writer = rewriter.producer(tensor) if rewriter.is_private(tensor) else None
        if writer is None:
            return False
        if writer.op == "Concat":
            waiting += set(writer.inputs) - met
        elif MOVES in writer.operator.traits:
            waiting.append(writer.inputs[0])
        elif EPILOGUE not in writer.operator.traits:
            return False
        met.update(waiting)
    return True


def _find_twins(rewriter: Rewriter, split: Node, node: Node) -> list[Node]:
    readers = [rewriter.readers(part) for part in split.outputs if rewriter.is_private(part)]
    return [one for (one,) in readers if _is_same(one, node)]


def _is_same(one: Node, other: Node) -> bool:
    same = one.op == other.op and one.inputs[1:] == other.inputs[1:]
    return same and one.attributes == other.attributes


def _apply_to(rewriter: Rewriter, node: Node, tensor: str, name: str) -> Node:
    inputs = (tensor, *node.inputs[1:])
    return rewriter.make(node.op, inputs, name=name, **node.attributes)
