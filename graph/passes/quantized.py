"""Read the constants by which a node quantizes or dequantizes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.ir import Node
from ..values.dims import normalize_axis
from ..values.dtypes import kind_of
from ..values.tensor import Array
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
