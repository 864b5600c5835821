"""Measured factors by which kernels of each kind of device are slower than its figures say.

By `benchmarks/bench_kernels.py` on 2026-11-23, on one core of an Intel Xeon with AVX-512, for
twelve networks and some single operators: `benchmarks/results/kernels.json`. Work that a device
fuses into the node before it is free, so that factors of elementwise operators are small.
Convolutions to few channels were measured on one core of an AMD EPYC with AVX2, on the same day.
"""

from __future__ import annotations

from collections.abc import Mapping

_MEASURED: Mapping[str, tuple[float | None, ...]] = {
    "Add": (0.34, 0.17, 0.62),
    "Attention": (8.3, 9.2, 0.28),
    "AveragePool": (3.2, 3.4, 1.6),
    "BatchNormalization": (1.6, 1.8, 0.59),
    "Cast": (0.7, 0.77, 0.74),
    "Concat": (0.12, 0.3, 0.61),
    "Conv": (1.9, 1.3, 1.2),
    "Conv depthwise": (6, 2.3, 1.1),
    "Conv pointwise": (2.3, 2.4, 2),
    "Conv to 1": (4.2, 1.9, 16),
    "Conv to 2": (3.6, 1.5, 9.3),
    "Conv to 4": (3.1, None, 4.6),
    "Conv to 8": (2.4, None, 2.3),
    "ConvTranspose": (6, 4, 5.2),
    "Div": (0.39, 0.42, 0.37),
    "Equal": (6.8, 6.8, 3.2),
    "Erf": (3.6, 3.7, 1.1),
    "Exp": (0.99, 1, 0.46),
    "GRU": (9.3, 9.5, 2.5),
    "Gelu": (6.2, 6.2, 2.5),
    "Gemm": (1.4, 1.4, 1.3),
    "GlobalAveragePool": (1.3, 1.3, 0.91),
    "GlobalMaxPool": (0.82, 0.86, 0.9),
    "HardSwish": (1.1, 0.01, 0.55),
    "LRN": (6.3, 6.7, 57),
    "LSTM": (7.2, 7.3, 2.4),
    "LayerNormalization": (12, 13, 2.2),
    "MatMul": (3.6, 1.9, 1.4),
    "MaxPool": (3.3, 3.8, 0.78),
    "Mul": (0.7, 0.62, 0.59),
    "ReduceMean": (1.1, 1.4, 0.57),
    "ReduceSum": (0.19, 0.31, 4.5),
    "Relu": (0.35, 0.15, 0.63),
    "Resize": (2.1, 2.3, 2.1),
    "Sigmoid": (2.1, 2.2, 0.75),
    "Softmax": (3, 2.9, 1),
    "Sqrt": (0.49, 0.53, 0.53),
    "Sub": (0.39, 0.4, 0.36),
    "Swish": (2.7, 3.7, None),
    "Tanh": (0.71, 0.71, 0.75),
    "Transpose": (0.35, 0.48, 0.41),
}
"""By operator or family of kernels, for `cpu`, `compiled` and `ort`; 1 where there is None."""

_COLUMNS = zip(("cpu", "compiled", "ort"), zip(*_MEASURED.values(), strict=True), strict=True)

FACTORS: Mapping[str, Mapping[str, float]] = {
    kind: {op: one for op, one in zip(_MEASURED, column, strict=True) if one is not None}
    for kind, column in _COLUMNS
}
"""By kind of device, and operator or family of kernels; 1 where one is not named."""
