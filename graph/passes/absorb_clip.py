"""What cuts values off ahead of a quantisation that saturates there anyway."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ir import Graph, Node
from ..tensor import Array
from .merging import MayMerge, always
from .rewriting import Rewriter


def absorb_clip(graph: Graph, may_merge: MayMerge = always) -> Graph:
    """Relu or Clip, then QuantizeLinear -> QuantizeLinear, if it saturates where they cut off.

    The same bits: quantising never turns an order round, so what lies beyond a bound that is
    quantised to the last integer is quantised to it too. The bounds, scale and zero point must be
    constants, and nothing else may read what lies between.
    """
    rewriter = Rewriter(graph, may_merge)
    for found in rewriter.find("QuantizeLinear"):
        node = found
        while (clip := _needless(rewriter, node)) is not None:
            direct = replace(node, inputs=(clip.inputs[0], *node.inputs[1:]))
            rewriter.replace([clip, node], [direct])
            node = direct
    return rewriter.result()


def _needless(rewriter: Rewriter, node: Node) -> Node | None:
    """Return the node ahead of a quantisation, if it can go."""
    clip = rewriter.producer(node.inputs[0])
    if clip is None or not rewriter.is_private(node.inputs[0]):
        return None
    bounds = _bounds(rewriter, clip)
    scale = rewriter.constants.get(node.inputs[1])
    if bounds is None or scale is None or scale.dtype != np.float32 or not (scale > 0).all():
        return None
    low, high = bounds
    limits = np.iinfo(rewriter.tensors[node.outputs[0]].dtype) if _is_integer(rewriter, node) else 0
    if limits == 0 or not rewriter.may_merge([clip, node], node):
        return None
    zero = _zero(rewriter, node)
    if zero is None:
        return None
    saturates_low = np.isneginf(low) or (_quantized(low, scale, zero) <= limits.min).all()
    saturates_high = np.isposinf(high) or (_quantized(high, scale, zero) >= limits.max).all()
    return clip if saturates_low and saturates_high else None
