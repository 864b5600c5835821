"""Exact operators that compute an element from the elements at the same place."""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.core.attribute import Attribute, Kind
from ....graph.core.operator import Call
from ....graph.operators.inputs import may_equal
from ....graph.operators.rules import EITHER, FIRST, per_element
from ....graph.values.dims import broadcast
from ....graph.values.errors import OperatorError, ShapeError
from ....graph.values.tensor import Shape
from .rules import INT32_MAX, accept_any, broadcast_shapes, declare, keep_shape, make_int

for _op in ("broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_max"):
    declare(_op, inputs="a b", inplace=EITHER, ready=accept_any)(broadcast_shapes)

declare("broadcast_greater", inputs="a b", inplace=EITHER, ready=accept_any)(broadcast_shapes)
declare("broadcast_div", inputs="a b", cost=per_element(4), ready=accept_any)(broadcast_shapes)


@declare("elemwise_add", inputs="a b", inplace=EITHER, ready=accept_any)
@declare("elemwise_sub", inputs="a b", inplace=EITHER, ready=accept_any)
def infer_elementwise(call: Call) -> Sequence[Shape | None]:
    a, b = call.spec(0), call.spec(1)
    if a.shape is None or b.shape is None:
        return (a.shape or b.shape,)
    if len(a.shape) != len(b.shape) or not all(map(may_equal, a.shape, b.shape)):
        raise ShapeError(f"{a} and {b} differ in shape", fix="use cvm.broadcast_add or _sub")
    return (broadcast([a.shape, b.shape]),)


for _op in ("relu", "abs", "negative"):
    declare(_op, inplace=FIRST, ready=accept_any)(keep_shape)

declare("precision", cost=per_element(4), ready=accept_any)(keep_shape)


@declare(
    "clip",
    attributes={"a_min": make_int(-INT32_MAX, INT32_MAX), "a_max": make_int(-INT32_MAX, INT32_MAX)},
    cost=per_element(2),
    inplace=FIRST,
    ready=accept_any,
)
def infer_clip(call: Call) -> Sequence[Shape | None]:
    low, high = call.attributes["a_min"], call.attributes["a_max"]
    if low >= high:
        raise OperatorError(f"a_min {low} is not below a_max {high}", fix="exchange them")
    return keep_shape(call)


_CLIP = {"precision": make_int(1, 32), "is_sign": Attribute(Kind.BOOL, True)}
"""`is_sign` changes nothing: the range is always symmetric."""

declare("cvm_clip", attributes=_CLIP, cost=per_element(2), inplace=FIRST, ready=accept_any)(
    keep_shape
)

for _op in ("right_shift", "left_shift"):
    declare(
        _op,
        attributes={**_CLIP, "shift_bit": make_int(1, 32)},
        cost=per_element(4),
        inplace=FIRST,
        ready=accept_any,
    )(keep_shape)


@declare("where", inputs="condition x y", inplace=((0, 2),))
def infer_where(call: Call) -> Sequence[Shape | None]:
    # The condition is for each element, or for each row.
    condition, x, y = (call.spec(index).static_shape for index in range(3))
    if x != y:
        raise ShapeError(f"x {list(x)} and y {list(y)} differ in shape", fix="make them equal")
    if condition not in (x, x[:1]):
        raise ShapeError(
            f"the condition {list(condition)} fits neither elements nor rows of {list(x)}",
            fix=f"pass one of shape {list(x)} or {list(x[:1])}",
        )
    return (x,)
