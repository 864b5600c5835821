"""Remove Clip before a quantization that saturates at the same bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..core.ir import Node
from .pipeline import make_pass
from .quantized import read_quantization
from .rewriting import Rewriter


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
