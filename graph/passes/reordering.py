"""Nodes that work in any order of axes, and how they change with the order.

An order is that of a Transpose: in y = Transpose(x, perm=order), axis i is axis order[i] of x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..core.ir import Node
from ..core.traits import ELEMENTWISE
from ..operators.resampling import CROP
from ..values.dims import normalize_axes, normalize_axis
from ..values.tensor import Array
from .rewriting import Rewriter

Order: TypeAlias = tuple[int, ...]


class Reordering(NamedTuple):
    """Changes of a node that reads x in place of Transpose(x, perm=order)."""

    moved: tuple[int, ...]
    """The inputs that come in the other order."""
    constants: Mapping[int, Array]
    """New values of inputs."""
    attributes: Mapping[str, Any]
    """All of them."""
    settles: bool = False
    """True if its results do not change, as they lack the reordered axes."""


Rule: TypeAlias = Callable[[Rewriter, Node, Order], Reordering | None]

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


def reorder(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    rule = _reorder_elementwise if ELEMENTWISE in node.operator.traits else _RULES.get(node.op)
    outputs = (rewriter.tensors[name] for name in node.outputs if name)
    if rule is None or (
        rule is not _reorder_elementwise and _get_rank(rewriter, node, 0) != len(order)
    ):
        return None
    if any(spec.rank is None for spec in outputs):
        return None
    found = rule(rewriter, node, order)
    return found if found is not None and found.moved else None


def _reorder_elementwise(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    """Transpose constants of `node` to `order`, keep scalars; other inputs must have its rank."""
    rank, moved, constants = len(order), list[int](), dict[int, Array]()
    # Broadcasting with another input adds axes in front, which the order lacks.
    if rewriter.tensors[node.outputs[0]].rank != rank:
        return None
    for index, name in enumerate(node.inputs):
        # A single number broadcasts to any order of axes.
        if not name or rewriter.tensors[name].shape in ((), (1,)):
            continue
        value = rewriter.constants.get(name)
        if value is None:
            if rewriter.tensors[name].rank != rank:
                return None
            moved.append(index)
        # A declared precision belongs to this very constant.
        elif value.ndim > rank or name in rewriter.graph.precisions:
            return None
        elif value.size > 1:
            # Broadcasting adds axes in front; elsewhere they must be explicit.
            aligned = value.reshape((1,) * (rank - value.ndim) + value.shape)
            constants[index] = aligned.transpose(np.argsort(order))
        elif value.ndim == rank:
            constants[index] = value
    return Reordering(tuple(moved), constants, node.attributes)


def _reorder_first(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    return Reordering((0,), {}, node.attributes)


def _reorder_axis(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    axis = order[normalize_axis(node.attributes["axis"], len(order))]
    return Reordering((0,), {}, {**node.attributes, "axis": axis})


def _reorder_concat(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    found, constants = _reorder_axis(rewriter, node, order), dict[int, Array]()
    assert found is not None, "any axis can be mapped"
    for index, name in enumerate(node.inputs):
        if name in rewriter.graph.precisions:
            return None
        if name in rewriter.constants:
            constants[index] = rewriter.constants[name].transpose(np.argsort(order))
    moved = tuple(index for index in range(len(node.inputs)) if index not in constants)
    return found._replace(moved=moved, constants=constants)


def _reorder_gather(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    return _reorder_axis(rewriter, node, order) if _get_rank(rewriter, node, 1) == 1 else None


def _reorder_arg_extremum(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    found, axis = _reorder_axis(rewriter, node, order), node.attributes["axis"]
    return _remove_axes(found, node.attributes["keepdims"], [axis], order)


def _reorder_quantization(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    rank = _get_rank(rewriter, node, 1)
    if rank == 0:
        return _reorder_first(rewriter, node, order)
    blocks = node.attributes["block_size"]
    return _reorder_axis(rewriter, node, order) if rank == 1 and not blocks else None


def _reorder_reduction(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    keeps = node.attributes["keepdims"]
    axes = _read_integers(rewriter, node, 1)
    if axes is None:
        return None
    # An empty list means all axes, or none if the attribute is set.
    if not axes:
        all_of_them = len(node.inputs) < 2 or not node.attributes["noop_with_empty_axes"]
        found = Reordering((0,), {}, node.attributes)
        return _remove_axes(found, keeps or not all_of_them, range(len(order)), order)
    found = Reordering((0,), {1: _map_axes(axes, order)}, node.attributes)
    return _remove_axes(found, keeps, axes, order)


def _reorder_squeeze(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    axes = _read_integers(rewriter, node, 1)
    if not axes:
        return None
    found = Reordering((0,), {1: _map_axes(axes, order)}, node.attributes)
    return _remove_axes(found, False, axes, order)


def _remove_axes(
    found: Reordering | None, keeps: bool, axes: Sequence[int], order: Order
) -> Reordering | None:
    """Return `found` if it `keeps` the axes, or if the remaining ones are in `order`; else None."""
    if keeps or found is None:
        return found
    gone = normalize_axes(axes, len(order))
    left = [axis for place, axis in enumerate(order) if place not in gone]
    # With the remaining axes in order, the result needs no Transpose.
    return found._replace(settles=True) if left == sorted(left) else None


def _reorder_cumulative(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    value = rewriter.constants.get(node.inputs[1])
    if value is None:
        return None
    axis = order[normalize_axis(int(value.item()), len(order))]
    return Reordering((0,), {1: np.full_like(value, axis)}, node.attributes)


def _reorder_pad(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    axes, pads = _read_integers(rewriter, node, 3), _read_integers(rewriter, node, 1)
    if axes is None or pads is None:
        return None
    if axes:
        return Reordering((0,), {3: _map_axes(axes, order)}, node.attributes)
    turned = np.stack([_permute(side, order) for side in np.reshape(pads, (2, -1))]).reshape(-1)
    return Reordering((0,), {1: turned}, node.attributes)


def _reorder_slice(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    starts, axes = _read_integers(rewriter, node, 1), _read_integers(rewriter, node, 3)
    if not starts or axes is None:
        return None
    # Omitted axes are the first ones; these are others now and must be explicit.
    axes = axes or tuple(range(len(starts)))
    return Reordering((0,), {3: _map_axes(axes, order)}, node.attributes)


def _reorder_tile(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    repeats = _read_integers(rewriter, node, 1)
    if not repeats:
        return None
    return Reordering((0,), {1: _permute(repeats, order)}, node.attributes)


def _reorder_expand(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    shape, missing = _read_integers(rewriter, node, 1), 0
    # Shapes are aligned at the last axis, and a length of 1 changes nothing. A longer shape adds
    # axes in front, which the order lacks.
    if shape is None or (missing := len(order) - len(shape)) < 0:
        return None
    return Reordering((0,), {1: _permute((1,) * missing + shape, order)}, node.attributes)


def _reorder_resize(rewriter: Rewriter, node: Node, order: Order) -> Reordering | None:
    axes = node.attributes["axes"]
    if node.attributes["coordinate_transformation_mode"] == CROP:
        return None
    if axes is not None:
        named = tuple(int(axis) for axis in _map_axes(axes, order))
        return Reordering((0,), {}, {**node.attributes, "axes": named})
    turned = dict[int, Array]()
    for index in (2, 3):
        if index < len(node.inputs) and node.inputs[index]:
            value = rewriter.constants.get(node.inputs[index])
            if value is None:
                return None
            if value.size:
                turned[index] = _permute(value, order)
    return Reordering((0,), turned, node.attributes)


def _get_rank(rewriter: Rewriter, node: Node, index: int) -> int | None:
    return rewriter.tensors[node.inputs[index]].rank if node.inputs[index] else None


def _read_integers(rewriter: Rewriter, node: Node, index: int) -> tuple[int, ...] | None:
    """Return input `index` of `node`, a constant, as integers: () if omitted, None if computed."""
    if index >= len(node.inputs) or not node.inputs[index]:
        return ()
    value = rewriter.constants.get(node.inputs[index])
    return None if value is None else tuple(map(int, value.reshape(-1)))


def _map_axes(axes: Sequence[int], order: Order) -> Array:
    return np.array([order[axis] for axis in normalize_axes(axes, len(order))], np.int64)


def _permute(values: Sequence[int] | Array, order: Order) -> Array:
    given = np.asarray(values)
    made = np.empty_like(given)
    # Not given[order]: axis i after the Transpose is axis order[i] before it.
    made[list(order)] = given
    return made


_RULES: Mapping[str, Rule] = {
    **{f"Reduce{what}": _reorder_reduction for what in _REDUCTIONS},
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax", "Split"), _reorder_axis),
    **dict.fromkeys(("ArgMax", "ArgMin"), _reorder_arg_extremum),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _reorder_quantization),
    "CastLike": _reorder_first,
    "Concat": _reorder_concat,
    "CumSum": _reorder_cumulative,
    "Expand": _reorder_expand,
    "Gather": _reorder_gather,
    "Pad": _reorder_pad,
    "Resize": _reorder_resize,
    "Slice": _reorder_slice,
    "Squeeze": _reorder_squeeze,
    "Tile": _reorder_tile,
}
