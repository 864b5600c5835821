"""Remove Clip before a quantization that saturates at the same bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..ir import Graph, Node
from .merging import MayMerge, always
from .pipeline import gated
from .quantized import quantization_of
from .rewriting import Rewriter


@gated("QuantizeLinear")
def absorb_clip(graph: Graph, may_merge: MayMerge = always) -> Graph:
    """Relu or Clip, then QuantizeLinear -> QuantizeLinear, if that saturates where they cut off.

    The same bits: quantizing keeps the order, so what lies beyond a bound that becomes the last
    integer becomes it too. Bounds, scale and zero point must be constants, and nothing else may
    read what lies between.
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
    """Return the node ahead of a quantization, if it can go."""
    clip, made = rewriter.producer(node.inputs[0]), quantization_of(rewriter, node)
    if clip is None or made is None or not rewriter.is_private(node.inputs[0]):
        return None
    bounds = _bounds(rewriter, clip)
    if bounds is None or not rewriter.may_merge([clip, node], node):
        return None
    low, high = bounds
    limits = np.iinfo(made.zero.dtype)
    saturates = (made.quantized(low) <= limits.min).all()
    saturates &= (made.quantized(high) >= limits.max).all()
    return clip if saturates else None


def _bounds(rewriter: Rewriter, clip: Node) -> tuple[float, float] | None:
    """Return between which constants a node keeps values."""
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
