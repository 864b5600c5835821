"""Elementwise operators: one output element from the elements at the same place."""

from __future__ import annotations

from collections.abc import Sequence

from ..dims import broadcast
from ..errors import ShapeError
from ..operator import Call, define
from ..tensor import TensorSpec


def same(call: Call) -> Sequence[TensorSpec]:
    """Infer: the output is like the first input."""
    return (call.spec(0),)


def broadcast_specs(call: Call) -> Sequence[TensorSpec]:
    """Infer: inputs of one dtype, broadcast together by numpy's rule."""
    specs = [spec for spec in call.inputs if spec is not None]
    if len({spec.dtype for spec in specs}) > 1:
        raise ShapeError(
            f"inputs have different dtypes: {', '.join(map(str, specs))}", fix="insert a Cast"
        )
    if any(spec.shape is None for spec in specs):
        return (TensorSpec(specs[0].dtype, None),)
    return (TensorSpec(specs[0].dtype, broadcast([spec.shape or () for spec in specs])),)


define("Add", inputs="a b", inplace=((0, 0), (0, 1)))(broadcast_specs)
define("Relu", inputs="x", inplace=((0, 0),))(same)
define("Identity", inputs="x", views=((0, 0),))(same)
