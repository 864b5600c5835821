"""The determinant, and its gradient, the cofactors: an operator of plait's own."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ShapeError
from ..operator import Call, Specs, define
from ..tensor import TensorSpec
from ..traits import ARRAY_KERNEL, IN_SUMS, PRIMITIVE
from .inputs import FLOATS, check_dtype, check_rank, may_equal


def _elimination(call: Call, outputs: Specs) -> int:
    """Cost: Gaussian elimination, n³/3 multiplications and as many additions."""
    return 2 * call.spec(0).size * call.spec(0).static_shape[-1] // 3


@define("Det", inputs="x", cost=_elimination, float16=IN_SUMS, lacks=PRIMITIVE | ARRAY_KERNEL)
def infer_determinant(call: Call) -> Sequence[TensorSpec]:
    """Infer: a number for each square matrix."""
    x = _square(call)
    return (TensorSpec(x.dtype, None if x.shape is None else x.shape[:-2]),)


def _square(call: Call) -> TensorSpec:
    x = call.spec(0)
    check_dtype(x, FLOATS)
    check_rank(x, 2, "[..., n, n]")
    if x.shape is not None and not may_equal(x.shape[-2], x.shape[-1]):
        raise ShapeError(f"{x} is not a stack of square matrices", fix="slice or pad it")
    return x


def _decomposition(call: Call, outputs: Specs) -> int:
    """Cost: singular values with vectors on both sides, about 21 n³."""
    return 21 * call.spec(0).size * call.spec(0).static_shape[-1]


@define(
    "Cofactors", inputs="x", cost=_decomposition, float16=IN_SUMS, lacks=PRIMITIVE | ARRAY_KERNEL
)
def infer_cofactors(call: Call) -> Sequence[TensorSpec]:
    """Infer: like the square matrices."""
    return (_square(call),)
