"""Remove pairs of nodes that cancel, or replace them by one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from ..core.ir import Node
from ..core.traits import ELEMENTWISE, MOVES
from ..values.tensor import Shape
from .pipeline import make_pass
from .rewriting import Rewriter

Turn: TypeAlias = Callable[[Rewriter, Node, Node], None]
"""Simplifies a node and the one before it."""


@make_pass("Cast", "Neg", "Not", "BitwiseNot", "QuantizeLinear", trait=MOVES)
def cancel_pairs(rewriter: Rewriter) -> None:
    """Replace g(f(x)) by x if g inverts f exactly, or by h(x) if h does the same.

    Neg, Not, BitwiseNot twice; Transposes; Casts, if the first is exact; Reshape, Flatten, Squeeze
    and Unsqueeze, which become one Reshape; QuantizeLinear after DequantizeLinear with the same
    constants. The first node stays while it has other readers.
    """
    for name in [node.name for node in rewriter.graph.nodes if _get_turn(node)]:
        node = rewriter.node(name)
        before, turn = rewriter.producer(node.inputs[0]), _get_turn(node)
        if before is not None and turn is not None and rewriter.may_merge([before, node], node):
            turn(rewriter, before, node)
    rewriter.drop_dead()


def _get_turn(node: Node) -> Turn | None:
    return _reshape if _is_reshape(node) else _TURNS.get(node.op)


def _is_reshape(node: Node) -> bool:
    operator = node.operator
    moves = MOVES in operator.traits and ELEMENTWISE not in operator.traits
    return moves and bool(operator.views)


def _undo(rewriter: Rewriter, before: Node, node: Node) -> None:
    if before.op == node.op:
        rewriter.bypass(node, {node.outputs[0]: before.inputs[0]})


def merge_transposes(rewriter: Rewriter, before: Node, node: Node) -> None:
    if before.op != "Transpose" or (rank := rewriter.tensors[node.inputs[0]].rank) is None:
        return
    first, second = get_order(before, rank), get_order(node, rank)
    order = tuple(first[axis] for axis in second)
    source = before.inputs[0]
    if list(order) != sorted(order):
        made = rewriter.make("Transpose", (source,), node.outputs, name=node.name, perm=order)
    elif rewriter.bypass(node, {node.outputs[0]: source}):
        return
    else:  # between two public names
        made = rewriter.make("Identity", (source,), node.outputs, name=node.name)
    rewriter.replace([node], [made])


def get_order(node: Node, rank: int) -> tuple[int, ...]:
    perm = node.attributes["perm"]
    return tuple(range(rank)[::-1]) if perm is None else tuple(perm)


def _cast(rewriter: Rewriter, before: Node, node: Node) -> None:
    if before.op != "Cast":
        return
    source = before.inputs[0]
    given, between, made = (
        rewriter.tensors[name].dtype for name in (source, *before.outputs, *node.outputs)
    )
    # Both must be exact: values that do not fit into integers convert differently from floats and
    # from integers.
    if not is_exact(given, between) or not (made == given or is_exact(given, made)):
        return
    if not (made == given and rewriter.bypass(node, {node.outputs[0]: source})):
        rewriter.reread(node, {node.inputs[0]: source})


def is_exact(given: np.dtype[Any], made: np.dtype[Any]) -> bool:
    """Return whether each number of dtype `given` is exact in `made`; 2²⁴ + 1 in float32 is not."""
    if given == made:
        return True
    if given.kind not in "biuf" or made.kind not in "iuf":
        return False
    if made.kind == "f" and given.kind in "iu":
        return 8 * given.itemsize - (given.kind == "i") <= np.finfo(made).nmant + 1
    return bool(np.can_cast(given, made, "safe"))


def _reshape(rewriter: Rewriter, before: Node, node: Node) -> None:
    if not _is_reshape(before):
        return
    source, made = before.inputs[0], node.outputs[0]
    target = rewriter.constants.get(node.inputs[1]) if node.op == "Reshape" else None
    spec = rewriter.tensors[source]
    same = spec.shape is not None and spec == rewriter.tensors[made]
    if same and rewriter.bypass(node, {made: source}):
        return
    if target is not None and (node.attributes["allowzero"] or not (target == 0).any()):
        rewriter.reread(node, {node.inputs[0]: source})
        return
    lengths = _find_target(rewriter.tensors[source].shape, rewriter.tensors[made].shape)
    if lengths is not None:
        shape = rewriter.constant(np.array(lengths, np.int64), f"{node.name}.shape")
        one = rewriter.make("Reshape", (source, shape), node.outputs, name=node.name)
        if rewriter.may_merge([before, node], one):
            rewriter.replace([node], [one])


def _find_target(given: Shape | None, wanted: Shape | None) -> list[int] | None:
    """Return the target to reshape `given` to `wanted`; None if two unknown lengths change axes."""
    if given is None or wanted is None or 0 in wanted:
        return None
    stays = [axis < len(given) and given[axis] == dim for axis, dim in enumerate(wanted)]
    lengths = [
        dim if isinstance(dim, int) else 0 if stay else -1
        for dim, stay in zip(wanted, stays, strict=True)
    ]
    return lengths if lengths.count(-1) < 2 else None


def _quantize(rewriter: Rewriter, before: Node, node: Node) -> None:
    if before.op == "DequantizeLinear" and is_undone(rewriter, before, node):
        rewriter.bypass(node, {node.outputs[0]: before.inputs[0]})


def is_undone(rewriter: Rewriter, before: Node, node: Node) -> bool:
    """Return whether the QuantizeLinear `node` inverts the DequantizeLinear `before` in `rewriter`.

    q · scale / scale is within half a step of q, since rounding is far smaller.
    """
    if before.inputs[1:] != node.inputs[1:]:
        return False
    q, scale = rewriter.tensors[before.inputs[0]], rewriter.constants.get(node.inputs[1])
    if q.dtype.kind not in "iu" or q.dtype.itemsize > 2 or scale is None:
        return False
    normal = scale.dtype == np.float32 and np.all((np.abs(scale) > 1e-30) & (np.abs(scale) < 1e30))
    alike = all(before.attributes[name] == node.attributes[name] for name in ("axis", "block_size"))
    return bool(normal and alike and node.attributes["precision"] is None)


_TURNS: Mapping[str, Turn] = {
    "Neg": _undo,
    "Not": _undo,
    "BitwiseNot": _undo,
    "Transpose": merge_transposes,
    "Cast": _cast,
    "QuantizeLinear": _quantize,
}
