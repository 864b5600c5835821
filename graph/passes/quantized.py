"""By which constants a node quantizes or dequantizes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..dims import normalize_axis
from ..dtypes import kind_of
from ..ir import Node
from ..tensor import Array
from .rewriting import Rewriter


class Quantization(NamedTuple):
    """How reals are written as integers: q = real / scale, rounded, + zero point, saturated.

    Attributes
    ----------
    tensor : str
        The integers.
    scale, zero : Array
        Float32, positive, and the integers' dtype; of one shape.
    axis : int or None
        Along which the scales lie; None where there is one.
    names : tuple of str
        Those of scale and zero point; empty where no zero point is given, which then is 0.
    """

    tensor: str
    scale: Array
    zero: Array
    axis: int | None
    names: tuple[str, ...]

    def quantized(self, value: float) -> Array:
        """Return a real as integers, one for each scale, not saturated."""
        return np.rint(np.float32(value) / self.scale) + self.zero.astype(np.float64)


def quantization_of(rewriter: Rewriter, node: Node | None) -> Quantization | None:
    """Return how a node quantizes or dequantizes, if that is known and to plain integers.

    None too where it is done by blocks, or in another precision than float32.
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
    if rewriter.tensors[real].dtype != np.float32 or not _usual(scale, node):
        return None
    zero = known[1] if len(known) > 1 else np.zeros(scale.shape, integers.dtype)
    axis = None
    if scale.size > 1:
        if integers.rank is None:
            return None
        axis = normalize_axis(node.attributes["axis"], integers.rank)
    return Quantization(tensor, scale, zero, axis, names if len(names) > 1 else ())


def _usual(scale: Array, node: Node) -> bool:
    """True for positive scales of whole tensors or slices, and attributes that change nothing."""
    if scale.dtype != np.float32 or scale.ndim > 1:
        return False
    finite = bool(np.isfinite(scale).all() and (scale > 0).all())
    plain = ("block_size", "output_dtype", "precision")
    return finite and not any(node.attributes.get(name) for name in plain)
