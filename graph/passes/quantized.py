"""Quantizations: their constants, and passes that merge or swap them with the nodes before."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..core.ir import Node
from ..core.traits import MAXIMA, SELECTS
from ..values.dims import normalize_axis
from ..values.dtypes import kind_of
from ..values.names import Names
from ..values.tensor import Array
from .pipeline import make_pass
from .rewriting import Rewriter


class Quantization(NamedTuple):
    """A map from reals to integers: q = real / scale, rounded, + zero point, saturated."""

    tensor: str
    """The integers."""
    scale: Array
    zero: Array
    """Positive float32, and the integers' dtype; of one shape."""
    axis: int | None
    """The axis of the scales; None for one scale."""
    names: tuple[str, ...]
    """The tensors of scale and zero point; empty without a zero point, which then is 0."""

    def quantize(self, value: float) -> Array:
        """Quantize `value` by each scale, without saturation."""
        return np.rint(np.float32(value) / self.scale) + self.zero.astype(np.float64)


def read_quantization(rewriter: Rewriter, node: Node | None) -> Quantization | None:
    """Return the quantization of `node` in `rewriter`, a QuantizeLinear or DequantizeLinear.

    None for other nodes, unknown constants, blocks, and precisions other than float32.
    """
    if node is None or node.op not in ("QuantizeLinear", "DequantizeLinear"):
        return None
    tensor, real = node.inputs[0], node.outputs[0]
    if node.op == "QuantizeLinear":
        tensor, real = real, tensor
    integers, names = rewriter.tensors[tensor], tuple(filter(None, node.inputs[1:]))
    known = [rewriter.constants.get(name) for name in names]
    scale = known[0]
    if scale is None or known[-1] is None or kind_of(integers.dtype) not in "iu":
        return None
    if rewriter.tensors[real].dtype != np.float32 or not _is_plain(scale, node):
        return None
    zero = known[1] if len(known) > 1 else np.zeros(scale.shape, integers.dtype)
    axis = None
    if scale.size > 1:
        if integers.rank is None:
            return None
        axis = normalize_axis(node.attributes["axis"], integers.rank)
    return Quantization(tensor, scale, zero, axis, names if len(names) > 1 else ())


def _is_plain(scale: Array, node: Node) -> bool:
    if scale.dtype != np.float32 or scale.ndim > 1:
        return False
    finite = bool(np.isfinite(scale).all() and (scale > 0).all())
    plain = ("block_size", "output_dtype", "precision")
    return finite and not any(node.attributes.get(name) for name in plain)


@make_pass("QuantizeLinear")
def absorb_clip(rewriter: Rewriter) -> None:
    """Drop each Relu or Clip before a QuantizeLinear that saturates within its bounds.

    The bits are equal: quantizing is monotonic, so values beyond a bound that becomes the last
    integer become it, too. Bounds, scale and zero point must be constants, and the tensor between
    the nodes may have no other reader.
    """
    for found in rewriter.find("QuantizeLinear"):
        node = found
        while (clip := _find_needless_clip(rewriter, node)) is not None:
            direct = replace(node, inputs=(clip.inputs[0], *node.inputs[1:]))
            rewriter.replace([clip, node], [direct])
            node = direct


def _find_needless_clip(rewriter: Rewriter, node: Node) -> Node | None:
    clip, made = rewriter.producer(node.inputs[0]), read_quantization(rewriter, node)
    if clip is None or made is None or not rewriter.is_private(node.inputs[0]):
        return None
    bounds = _read_bounds(rewriter, clip)
    if bounds is None or not rewriter.may_merge([clip, node], node):
        return None
    low, high = bounds
    limits = np.iinfo(made.zero.dtype)
    saturates = (made.quantize(low) <= limits.min).all()
    saturates &= (made.quantize(high) >= limits.max).all()
    return clip if saturates else None


def _read_bounds(rewriter: Rewriter, clip: Node) -> tuple[float, float] | None:
    if clip.op == "Relu":
        return 0.0, math.inf
    if clip.op != "Clip":
        return None
    found = [-math.inf, math.inf]
    for index, name in enumerate(clip.inputs[1:]):
        if name:
            bound = rewriter.constants.get(name)
            if bound is None:
                return None
            found[index] = float(bound.item())
    low, high = found
    return (low, high) if low <= high else None


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
