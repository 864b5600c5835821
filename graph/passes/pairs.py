"""Two nodes of which the second undoes the first, or that one node can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from ..ir import Graph, Node
from .merging import MayMerge, always
from .pipeline import gated
from .rewriting import Rewriter

Turn: TypeAlias = Callable[[Rewriter, Node, Node], None]
"""Takes out what a node and the one before it do for nothing."""


@gated("Transpose", "Cast", "Neg", "Not", "BitwiseNot", "QuantizeLinear", "Reshape")
def cancel_pairs(graph: Graph, may_merge: MayMerge = always) -> Graph:
    """g(f(x)) -> x where g undoes f in every bit; where it does not, -> h(x) if one h does both.

    Neg, Not, BitwiseNot twice; Transposes; Casts, the first of which loses nothing; Reshape of a
    tensor that was only reshaped; QuantizeLinear of what DequantizeLinear made with the same
    constants. The first node stays while others read it.
    """
    rewriter = Rewriter(graph, may_merge)
    for name in [node.name for node in graph.nodes if node.op in _TURNS]:
        node = rewriter.node(name)
        before = rewriter.producer(node.inputs[0])
        if before is not None and rewriter.may_merge([before, node], node):
            _TURNS[node.op](rewriter, before, node)
    rewriter.drop_dead()
    return rewriter.result()


def _undo(rewriter: Rewriter, before: Node, node: Node) -> None:
    if before.op == node.op:
        rewriter.bypass(node, {node.outputs[0]: before.inputs[0]})


def _transpose(rewriter: Rewriter, before: Node, node: Node) -> None:
    if before.op != "Transpose" or (rank := rewriter.tensors[node.inputs[0]].rank) is None:
        return
    first, second = order_of(before, rank), order_of(node, rank)
    order = tuple(first[axis] for axis in second)
    source = before.inputs[0]
    if list(order) != sorted(order):
        made = rewriter.make("Transpose", (source,), node.outputs, name=node.name, perm=order)
    elif rewriter.bypass(node, {node.outputs[0]: source}):
        return
    else:  # between two public names
        made = rewriter.make("Identity", (source,), node.outputs, name=node.name)
    rewriter.replace([node], [made])


def order_of(node: Node, rank: int) -> tuple[int, ...]:
    """Return the order in which a Transpose takes the axes."""
    perm = node.attributes["perm"]
    return tuple(range(rank)[::-1]) if perm is None else tuple(perm)


def _cast(rewriter: Rewriter, before: Node, node: Node) -> None:
    if before.op != "Cast":
        return
    source = before.inputs[0]
    given, between, made = (
        rewriter.tensors[name].dtype for name in (source, *before.outputs, *node.outputs)
    )
    if not is_exact(given, between) or not (made == given or is_exact(given, made)):
        return
    if not (made == given and rewriter.bypass(node, {node.outputs[0]: source})):
        rewriter.reread(node, {node.inputs[0]: source})


def is_exact(given: np.dtype[Any], made: np.dtype[Any]) -> bool:
    """True when every number of a dtype is one of another: 2²⁴ + 1 is no float32."""
    if given == made:
        return True
    if given.kind not in "biuf" or made.kind not in "iuf":
        return False
    if made.kind == "f" and given.kind in "iu":
        return 8 * given.itemsize - (given.kind == "i") <= np.finfo(made).nmant + 1
    return bool(np.can_cast(given, made, "safe"))


def _reshape(rewriter: Rewriter, before: Node, node: Node) -> None:
    target = rewriter.constants.get(node.inputs[1])
    if before.op not in ("Reshape", "Flatten", "Squeeze", "Unsqueeze") or target is None:
        return
    if node.attributes["allowzero"] or not (target == 0).any():
        rewriter.reread(node, {node.inputs[0]: before.inputs[0]})


def _quantize(rewriter: Rewriter, before: Node, node: Node) -> None:
    """Bypass both: q · scale / scale is within half a step of q, as rounding is far less."""
    if before.op != "DequantizeLinear" or before.inputs[1:] != node.inputs[1:]:
        return
    q, scale = rewriter.tensors[before.inputs[0]], rewriter.constants.get(node.inputs[1])
    if q.dtype.kind not in "iu" or q.dtype.itemsize > 2 or scale is None:
        return
    normal = scale.dtype == np.float32 and np.all((np.abs(scale) > 1e-30) & (np.abs(scale) < 1e30))
    alike = all(before.attributes[name] == node.attributes[name] for name in ("axis", "block_size"))
    if normal and alike and node.attributes["precision"] is None:
        rewriter.bypass(node, {node.outputs[0]: before.inputs[0]})


_TURNS: Mapping[str, Turn] = {
    "Neg": _undo,
    "Not": _undo,
    "BitwiseNot": _undo,
    "Transpose": _transpose,
    "Cast": _cast,
    "Reshape": _reshape,
    "QuantizeLinear": _quantize,
}
