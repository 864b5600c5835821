"""Nodes that work in any order of axes: what changes in them when the axes come in another.

An order is that of a Transpose: of y = Transpose(x, perm=order), axis i is axis order[i] of x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..dims import normalize_axes, normalize_axis
from ..ir import Node
from ..resampling import CROP
from ..tensor import Array
from ..traits import ELEMENTWISE
from .rewriting import Rewriter

Order: TypeAlias = tuple[int, ...]


class Reordered(NamedTuple):
    """A node that reads x in place of Transpose(x, perm=order), and yields as much.

    Attributes
    ----------
    moved : tuple of int
        Which inputs come in the other order.
    constants : Mapping of int to Array
        Inputs that have other values.
    attributes : Mapping
        All of them.
    settles : bool
        True where the node yields what it did, as it has no more axes in another order.
    """

    moved: tuple[int, ...]
    constants: Mapping[int, Array]
    attributes: Mapping[str, Any]
    settles: bool = False


Rule: TypeAlias = Callable[[Rewriter, Node, Order], Reordered | None]

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


def reordered(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    """Return what a node becomes, None where it cannot work in another order of axes."""
    rule, outputs = _rule_of(node), (rewriter.tensors[name] for name in node.outputs if name)
    if rule is None or (rule is not _elementwise and _rank(rewriter, node, 0) != len(order)):
        return None
    if any(spec.rank is None for spec in outputs):
        return None
    found = rule(rewriter, node, order)
    return found if found is not None and found.moved else None


def _rule_of(node: Node) -> Rule | None:
    return _elementwise if ELEMENTWISE in node.operator.traits else _RULES.get(node.op)


def _elementwise(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    """Constants are turned, scalars stay; anything else must have as many axes as the result."""
    rank, moved, constants = len(order), list[int](), dict[int, Array]()
    # More axes than the order names come from another input, which broadcasting puts in front.
    if rewriter.tensors[node.outputs[0]].rank != rank:
        return None
    for index, name in enumerate(node.inputs):
        # One number is broadcast alike along axes in any order.
        if not name or rewriter.tensors[name].shape in ((), (1,)):
            continue
        value = rewriter.constants.get(name)
        if value is None:
            if rewriter.tensors[name].rank != rank:
                return None
            moved.append(index)
        # A constant with a declared precision is not to be replaced by another one.
        elif value.ndim > rank or name in rewriter.graph.precisions:
            return None
        elif value.size > 1:
            # Broadcasting fills up axes in front; once these are somewhere else, they have to be
            # written out.
            aligned = value.reshape((1,) * (rank - value.ndim) + value.shape)
            constants[index] = aligned.transpose(np.argsort(order))
        elif value.ndim == rank:
            constants[index] = value
    return Reordered(tuple(moved), constants, node.attributes)


def _first_alone(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    return Reordered((0,), {}, node.attributes)


def _axis_attribute(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    axis = order[normalize_axis(node.attributes["axis"], len(order))]
    return Reordered((0,), {}, {**node.attributes, "axis": axis})


def _concat(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    """Constants among the parts are turned."""
    found, constants = _axis_attribute(rewriter, node, order), dict[int, Array]()
    assert found is not None, "any axis can be named anew"
    for index, name in enumerate(node.inputs):
        if name in rewriter.graph.precisions:
            return None
        if name in rewriter.constants:
            constants[index] = rewriter.constants[name].transpose(np.argsort(order))
    moved = tuple(index for index in range(len(node.inputs)) if index not in constants)
    return found._replace(moved=moved, constants=constants)


def _gather(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    return _axis_attribute(rewriter, node, order) if _rank(rewriter, node, 1) == 1 else None


def _arg_extremum(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    found, axis = _axis_attribute(rewriter, node, order), node.attributes["axis"]
    return _without(found, node.attributes["keepdims"], [axis], order)


def _quantization(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    rank = _rank(rewriter, node, 1)
    if rank == 0:
        return _first_alone(rewriter, node, order)
    blocks = node.attributes["block_size"]
    return _axis_attribute(rewriter, node, order) if rank == 1 and not blocks else None


def _reduction(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    keeps = node.attributes["keepdims"]
    axes = _integers(rewriter, node, 1)
    if axes is None:
        return None
    # An empty list names all axes or, if the attribute says so, none.
    if not axes:
        all_of_them = len(node.inputs) < 2 or not node.attributes["noop_with_empty_axes"]
        found = Reordered((0,), {}, node.attributes)
        return _without(found, keeps or not all_of_them, range(len(order)), order)
    found = Reordered((0,), {1: _named_anew(axes, order)}, node.attributes)
    return _without(found, keeps, axes, order)


def _squeeze(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    axes = _integers(rewriter, node, 1)
    if not axes:
        return None
    found = Reordered((0,), {1: _named_anew(axes, order)}, node.attributes)
    return _without(found, False, axes, order)


def _without(
    found: Reordered | None, keeps: bool, axes: Sequence[int], order: Order
) -> Reordered | None:
    """Return the same unless axes go and those that are left come in another order."""
    if keeps or found is None:
        return found
    gone = normalize_axes(axes, len(order))
    left = [axis for place, axis in enumerate(order) if place not in gone]
    # If those that stay are in order, so is the result, and no Transpose has to follow.
    return found._replace(settles=True) if left == sorted(left) else None


def _cumulative(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    value = rewriter.constants.get(node.inputs[1])
    if value is None:
        return None
    axis = order[normalize_axis(int(value.item()), len(order))]
    return Reordered((0,), {1: np.full_like(value, axis)}, node.attributes)


def _pad(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    axes, pads = _integers(rewriter, node, 3), _integers(rewriter, node, 1)
    if axes is None or pads is None:
        return None
    if axes:
        return Reordered((0,), {3: _named_anew(axes, order)}, node.attributes)
    turned = np.stack([_placed(side, order) for side in np.reshape(pads, (2, -1))]).reshape(-1)
    return Reordered((0,), {1: turned}, node.attributes)


def _slice(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    starts, axes = _integers(rewriter, node, 1), _integers(rewriter, node, 3)
    if not starts or axes is None:
        return None
    # Left out, the first axes are meant, and those are others now: they have to be named.
    axes = axes or tuple(range(len(starts)))
    return Reordered((0,), {3: _named_anew(axes, order)}, node.attributes)


def _tile(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    repeats = _integers(rewriter, node, 1)
    if not repeats:
        return None
    return Reordered((0,), {1: _placed(repeats, order)}, node.attributes)


def _expand(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    shape, missing = _integers(rewriter, node, 1), 0
    # Shapes are aligned from behind, and a length of 1 keeps what is there. A longer shape adds
    # axes in front, which are in no order.
    if shape is None or (missing := len(order) - len(shape)) < 0:
        return None
    return Reordered((0,), {1: _placed((1,) * missing + shape, order)}, node.attributes)


def _resize(rewriter: Rewriter, node: Node, order: Order) -> Reordered | None:
    axes = node.attributes["axes"]
    if node.attributes["coordinate_transformation_mode"] == CROP:
        return None
    if axes is not None:
        named = tuple(int(axis) for axis in _named_anew(axes, order))
        return Reordered((0,), {}, {**node.attributes, "axes": named})
    turned = dict[int, Array]()
    for index in (2, 3):
        if index < len(node.inputs) and node.inputs[index]:
            value = rewriter.constants.get(node.inputs[index])
            if value is None:
                return None
            if value.size:
                turned[index] = _placed(value, order)
    return Reordered((0,), turned, node.attributes)


def _rank(rewriter: Rewriter, node: Node, index: int) -> int | None:
    return rewriter.tensors[node.inputs[index]].rank if node.inputs[index] else None


def _integers(rewriter: Rewriter, node: Node, index: int) -> tuple[int, ...] | None:
    """Return a constant input, () where it is left out, None where it is computed."""
    if index >= len(node.inputs) or not node.inputs[index]:
        return ()
    value = rewriter.constants.get(node.inputs[index])
    return None if value is None else tuple(map(int, value.reshape(-1)))


def _named_anew(axes: Sequence[int], order: Order) -> Array:
    """Return what axes are called in the other order."""
    return np.array([order[axis] for axis in normalize_axes(axes, len(order))], np.int64)


def _placed(values: Sequence[int] | Array, order: Order) -> Array:
    """Return one number for each axis, in the other order."""
    given = np.asarray(values)
    made = np.empty_like(given)
    # Not given[order]: number i is about axis i behind the Transpose, which is axis order[i] before
    # it.
    made[list(order)] = given
    return made


_RULES: Mapping[str, Rule] = {
    **{f"Reduce{what}": _reduction for what in _REDUCTIONS},
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax", "Split"), _axis_attribute),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_extremum),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantization),
    "CastLike": _first_alone,
    "Concat": _concat,
    "CumSum": _cumulative,
    "Expand": _expand,
    "Gather": _gather,
    "Pad": _pad,
    "Resize": _resize,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Tile": _tile,
}
