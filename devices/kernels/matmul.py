"""Matrix products, on the array module's BLAS where the dtype has one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.tensor import Array, TensorSpec
from .registry import ArrayModule, Arrays, kernel
from .steps import Step


def _single_for_half(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Scratch for a, b and y in float32: numpy multiplies float16 without BLAS."""
    if outputs[0].dtype != np.float16:
        return ()
    specs = (call.spec(0), call.spec(1), outputs[0])
    return [TensorSpec(np.float32, spec.shape) for spec in specs]


@kernel("MatMul", scratch=_single_for_half, binds=True)
def matmul(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = a · b.  Source: ONNX MatMul, which is numpy's."""
    a, b, y = inputs[0], inputs[1], outputs[0]
    if scratch:
        return _in_single(xp, (a, b, y), scratch, _bound_product(xp, *scratch))
    return _bound_product(xp, a, b, y)


def _bound_product(xp: ArrayModule, a: Array, b: Array, y: Array) -> Step:
    """Bind a product; a stack of matrices times one matrix becomes one tall product."""
    if a.ndim >= b.ndim > 2 and all(length == 1 for length in b.shape[:-2]):
        b = b.reshape(b.shape[-2:])
    if a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous and a.size and y.size:
        a, y = a.reshape(-1, a.shape[-1]), y.reshape(-1, y.shape[-1])
    return partial(xp.matmul, a, b, y)


def _in_single(xp: ArrayModule, halves: Arrays, singles: Arrays, multiply: Step) -> Step:
    def step() -> None:
        for half, single in zip(halves[:2], singles[:2], strict=True):
            xp.copyto(single, half)
        multiply()
        xp.copyto(halves[2], singles[2])

    return step


def _gemm_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Scratch for beta·C, and for float16 for a, b and y as well."""
    y = outputs[0]
    scaled = call.has(2) and call.attributes["beta"] not in (0, 1)
    if y.dtype == np.float16:
        return [*_single_for_half(call, outputs), *_scaled(call, np.dtype(np.float32), scaled)]
    return _scaled(call, y.dtype, scaled)


def _scaled(call: Call, dtype: np.dtype[Any], scaled: bool) -> list[TensorSpec]:
    return [TensorSpec(dtype, call.spec(2).shape)] if scaled else []


@kernel("Gemm", scratch=_gemm_scratch, binds=True)
def gemm(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = alpha·A·B + beta·C.  Source: ONNX Gemm."""
    (a, b, *rest), (y,) = inputs, outputs
    c = rest[0] if rest else None
    if y.dtype != np.float16:
        return partial(_gemm, xp, attributes, a, b, c, y, *scratch)
    singles = scratch[:3]
    multiply = partial(_gemm, xp, attributes, singles[0], singles[1], c, singles[2], *scratch[3:])
    return _in_single(xp, (a, b, y), singles, multiply)


def _gemm(
    xp: ArrayModule,
    attributes: Attributes,
    a: Array,
    b: Array,
    c: Array | None,
    y: Array,
    scaled: Array | None = None,
) -> None:
    alpha, beta = attributes["alpha"], attributes["beta"]
    xp.matmul(a.T if attributes["transA"] else a, b.T if attributes["transB"] else b, out=y)
    if alpha != 1:
        xp.multiply(y, alpha, out=y, casting="unsafe")
    if c is None or beta == 0:
        return
    if scaled is not None:
        xp.multiply(c, beta, out=scaled, casting="unsafe")
    xp.add(y, c if scaled is None else scaled, out=y)
