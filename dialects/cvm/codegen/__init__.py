"""Generated kernels of CVM's exact operators: int32 in, int32 out, arithmetic modulo 2³²."""

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
