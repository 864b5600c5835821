"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from ..attribute import Attribute, Kind
from ..dims import broadcast
from ..errors import ShapeError
from ..operator import Call, Specs, define
from ..tensor import Dim, Shape, TensorSpec
from ..traits import FOLLOWS, FULLY_CONNECTED, PRIMITIVE, PRODUCT
from .inputs import NUMBERS, check_broadcastable, common_dtype, may_equal, present


def _product_cost(call: Call, outputs: Specs) -> int:
    shape = call.spec(0).static_shape
    inner = shape[0] if call.attributes.get("transA") else shape[-1]
    return 2 * outputs[0].size * inner


def _check_inner(a: TensorSpec, b: TensorSpec, left: Dim, right: Dim) -> None:
    if not may_equal(left, right):
        raise ShapeError(
            f"{a} times {b}: the inner lengths {left} and {right} differ",
            fix="transpose one of them, or correct its shape",
        )


@define(
    "MatMul", inputs="a b", cost=_product_cost, traits=PRODUCT, float16=FOLLOWS, lacks=PRIMITIVE
)
def infer_matmul(call: Call) -> Sequence[TensorSpec]:
    """Infer: numpy's rules; a vector is a row on the left, a column on the right."""
    a, b = call.spec(0), call.spec(1)
    return (TensorSpec(common_dtype((a, b), NUMBERS), product_shape(a, b)),)


def product_shape(a: TensorSpec, b: TensorSpec) -> Shape | None:
    """Return the shape of a product by numpy's rules, None where a rank is not known.

    Raises
    ------
    ShapeError
        If the factors do not fit together.
    """
    if 0 in (a.rank, b.rank):
        raise ShapeError(f"{a} times {b}: a scalar is not a matrix", fix="use Mul")
    if a.shape is None or b.shape is None:
        return None
    _check_inner(a, b, a.shape[-1], b.shape[-2] if len(b.shape) > 1 else b.shape[0])
    batch = broadcast((a.shape[:-2], b.shape[:-2]))
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    return (*batch, *rows, *columns)


@define(
    "Gemm",
    inputs="a b c?",
    attributes={
        "alpha": Attribute(Kind.FLOAT, 1.0),
        "beta": Attribute(Kind.FLOAT, 1.0),
        "transA": Attribute(Kind.BOOL, False),
        "transB": Attribute(Kind.BOOL, False),
    },
    cost=_product_cost,
    traits=PRODUCT | FULLY_CONNECTED,
    float16=FOLLOWS,
)
def infer_gemm(call: Call) -> Sequence[TensorSpec]:
    """Infer: alpha·A·B + beta·C on matrices, where C broadcasts to the product."""
    dtype = common_dtype(present(call), NUMBERS)
    a, b = call.spec(0), call.spec(1)
    for spec in (a, b):
        if spec.rank not in (None, 2):
            raise ShapeError(f"{spec} is not a matrix", fix="use MatMul, or Flatten it")
    if a.shape is None or b.shape is None:
        return (TensorSpec(dtype, None),)
    rows, left = a.shape[::-1] if call.attributes["transA"] else a.shape
    right, columns = b.shape[::-1] if call.attributes["transB"] else b.shape
    _check_inner(a, b, left, right)
    if call.has(2):
        check_broadcastable(call.spec(2), (rows, columns), "C")
    return (TensorSpec(dtype, (rows, columns)),)
