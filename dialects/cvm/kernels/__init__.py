"""Kernels of the exact operators of CVM: the same bits for any int32 input, on any array module."""

from . import detection, elementwise, pooling, products, reduction, selecting, shaping

__all__ = [
    "detection",
    "elementwise",
    "pooling",
    "products",
    "reduction",
    "selecting",
    "shaping",
]
