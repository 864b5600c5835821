"""Kernels of linear algebra: matrix products, Einsum, determinants.

Products use the array module's BLAS if it has the dtype; Einsum is contracted in an order that
is chosen when the plan is opened; determinants use LU decomposition, cofactors singular
values. Kernels take ``(xp, inputs, outputs, attributes, scratch) -> Step``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.linear_algebra import parse_equation
from ...graph.values.dtypes import is_extension
from ...graph.values.tensor import Array, TensorSpec
from .arguments import get_optional
from .precision import compute_dtype, declare_wide_copies, declare_wide_ends, widen
from .registry import ArrayModule, Arrays, Step, kernel


def _declare_matmul_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return declare_wide_copies((call.spec(0), call.spec(1), outputs[0]))


@kernel("MatMul", scratch=_declare_matmul_scratch, binds=True)
def matmul(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    wide = widen(xp, inputs, outputs, scratch)
    return wide.around([bind_product(xp, *wide.inputs, *wide.outputs)])


def bind_product(xp: ArrayModule, a: Array, b: Array, y: Array) -> Step:
    # A stack of matrices times one matrix becomes one tall product.
    if a.ndim >= b.ndim > 2 and all(length == 1 for length in b.shape[:-2]):
        b = b.reshape(b.shape[-2:])
    if a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous and a.size and y.size:
        a, y = a.reshape(-1, a.shape[-1]), y.reshape(-1, y.shape[-1])
    return partial(xp.matmul, a, b, y)


def _to_factor(number: float, dtype: np.dtype[Any]) -> Any:
    """Return `number`, as an integer if it is whole and `dtype` has integers.

    float64 is too short for these.
    """
    if dtype.kind not in "iu" or not number.is_integer():
        return number
    return np.array(int(number) % 2**64, np.uint64).astype(dtype)[()]


def _declare_gemm_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    copies = _declare_matmul_scratch(call, outputs)
    if not call.has(2) or call.attributes["beta"] in (0, 1):
        return copies
    return [*copies, TensorSpec(compute_dtype(outputs[0].dtype), call.spec(2).shape)]


@kernel("Gemm", scratch=_declare_gemm_scratch, binds=True)
def gemm(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    wide = widen(xp, inputs[:2], outputs, scratch)
    (a, b), (y,), c = wide.inputs, wide.outputs, get_optional(inputs, 2)
    assert a is not None
    assert b is not None
    alpha, beta = (_to_factor(attributes[name], y.dtype) for name in ("alpha", "beta"))
    a, b = a.T if attributes["transA"] else a, b.T if attributes["transB"] else b
    steps: list[Step] = [partial(xp.matmul, a, b, y)]
    if alpha != 1:
        steps.append(partial(xp.multiply, y, alpha, out=y, casting="unsafe"))
    if c is not None and beta not in (0, 1):
        (scaled,) = wide.scratch
        steps.append(partial(xp.multiply, c, beta, out=scaled, casting="unsafe"))
        c = scaled
    if c is not None and beta != 0:
        steps.append(partial(xp.add, y, c, y))
    return wide.around(steps)


def _declare_einsum_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    specs = (*call.inputs, *outputs)
    return declare_wide_copies(specs) if any(is_extension(spec.dtype) for spec in outputs) else ()


@kernel("Einsum", scratch=_declare_einsum_scratch, binds=True)
def einsum(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    if scratch:
        wide = widen(xp, inputs, outputs, scratch)
        return wide.around([einsum(xp, wide.inputs, wide.outputs, attributes, ())])
    equation = parse_equation(attributes["equation"], [x.ndim for x in inputs])
    y, operands = outputs[0], []
    for x, axes in zip(inputs, equation.inputs, strict=True):
        operands += [x, list(axes)]
    operands.append(list(equation.output))
    if xp is not np:
        return lambda: xp.copyto(y, xp.einsum(*operands))
    path = np.einsum_path(*operands, optimize="greedy")[0] if len(inputs) > 1 else False
    return partial(np.einsum, *operands, out=y, optimize=path)


@kernel("Det", scratch=declare_wide_ends, binds=True)
def determinant(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y = the determinant of each matrix; that of an empty one is 1.
    wide = widen(xp, inputs, outputs, scratch)
    return wide.around([partial(_compute_determinants, xp, *wide.inputs, *wide.outputs)])


def _compute_determinants(xp: ArrayModule, x: Array, y: Array) -> None:
    xp.copyto(y, xp.linalg.det(x))


@kernel("Cofactors", scratch=declare_wide_ends, binds=True)
def cofactors(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y[i, j] = the determinant without row i and column j, negative where i + j is odd. With x =
    # U·S·V these are det U · det V · U·T·V, where T holds for each singular value the product of
    # all others: so a matrix need not have an inverse.
    wide = widen(xp, inputs, outputs, scratch)
    return wide.around([partial(_compute_cofactors, xp, *wide.inputs, *wide.outputs)])


def _compute_cofactors(xp: ArrayModule, x: Array, y: Array) -> None:
    known = xp.isfinite(x).all(axis=(-2, -1), keepdims=True)
    u, values, v = xp.linalg.svd(xp.where(known, x, 0))
    count = values.shape[-1]
    others = xp.where(xp.eye(count, dtype=bool), 1, values[..., None, :]).prod(axis=-1)
    sign = xp.linalg.det(u) * xp.linalg.det(v)
    xp.matmul(u * (xp.rint(sign)[..., None] * others)[..., None, :], v, out=y)
    xp.copyto(y, xp.nan, where=~known)
