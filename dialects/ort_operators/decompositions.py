"""Operators of ONNX Runtime's in those of ONNX, for devices other than `ort`."""

from __future__ import annotations

import numpy as np

from ...graph.decompositions import DecompositionBuilder, decomposition


@decomposition("com.microsoft.MatMulNBits")
def matmul_n_bits(
    builder: DecompositionBuilder,
    a: str, weights: str, scales: str, zeros: str = "", order: str = "", bias: str = "",
) -> str | None:  # fmt: skip
    """DequantizeLinear by blocks, then MatMul; weights of 4 bits get a byte each."""
    attributes = builder.attributes
    k, n, bits, size = (attributes[name] for name in ("K", "N", "bits", "block_size"))
    count = -(-k // size)
    if bits not in (4, 8) or order or builder.shape(weights) is None:
        return None
    if zeros and builder.spec(zeros).dtype != np.uint8:
        return None
    # Columns of features: DequantizeLinear yields what MatMul takes, nothing is turned for items.
    columns = _columns(builder, weights, bits, n, count * size, k)
    if zeros:
        width = count + count % 2 if bits == 4 else count
        offsets = _columns(builder, zeros, bits, n, width, count)
    else:
        offsets = builder.constant(np.full((count, n), 2 ** (bits - 1), np.uint8))
    steps = builder("Transpose", builder("Reshape", scales, (n, count)), perm=(1, 0))
    floats = builder("DequantizeLinear", columns, steps, offsets, axis=0, block_size=size)
    product = builder("MatMul", a, floats)
    return builder("Add", product, bias) if bias else product


def _columns(
    builder: DecompositionBuilder, packed: str, bits: int, n: int, width: int, used: int
) -> str:
    """Return n rows of so many integers as columns of bytes, of which the first are used."""
    values = packed
    if bits == 4:  # the lower half of a byte is the first of two
        flat = builder("Reshape", packed, (-1, 1))
        low = builder("BitwiseAnd", flat, np.asarray(15, np.uint8))
        high = builder("BitShift", flat, np.asarray(4, np.uint8), direction="RIGHT")
        values = builder("Concat", low, high, axis=1)
    columns = builder("Transpose", builder("Reshape", values, (n, width)), perm=(1, 0))
    return columns if width == used else builder("Slice", columns, (0,), (used,), (0,))
