"""The determinant, by the array module's LU decomposition, and cofactors by singular values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.tensor import Array, TensorSpec
from .precision import wide_copies, widen
from .registry import ArrayModule, Arrays, kernel
from .steps import Step


def _scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return wide_copies((call.spec(0), outputs[0]))


@kernel("Det", scratch=_scratch, binds=True)
def determinant(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = the determinant of each matrix; that of an empty one is 1.  Source: ONNX Det."""
    wide = widen(xp, inputs, outputs, scratch)
    return wide.around([partial(_determinants, xp, *wide.inputs, *wide.outputs)])


def _determinants(xp: ArrayModule, x: Array, y: Array) -> None:
    xp.copyto(y, xp.linalg.det(x))


@kernel("Cofactors", scratch=_scratch, binds=True)
def cofactors(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y[i, j] = the determinant without row i and column j, negative where i + j is odd.

    With x = U·S·V these are det U · det V · U·T·V, where T holds for each singular value the
    product of all others: so a matrix need not have an inverse.
    """
    wide = widen(xp, inputs, outputs, scratch)
    return wide.around([partial(_cofactors, xp, *wide.inputs, *wide.outputs)])


def _cofactors(xp: ArrayModule, x: Array, y: Array) -> None:
    known = xp.isfinite(x).all(axis=(-2, -1), keepdims=True)
    u, values, v = xp.linalg.svd(xp.where(known, x, 0))
    count = values.shape[-1]
    others = xp.where(xp.eye(count, dtype=bool), 1, values[..., None, :]).prod(axis=-1)
    sign = xp.linalg.det(u) * xp.linalg.det(v)
    xp.matmul(u * (xp.rint(sign)[..., None] * others)[..., None, :], v, out=y)
    xp.copyto(y, xp.nan, where=~known)
