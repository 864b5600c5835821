"""What shape rules of several families ask of their inputs."""

from __future__ import annotations

from ..dims import broadcast
from ..errors import ShapeError
from ..operator import Call
from ..tensor import Dim, Shape, TensorSpec


def require_vector(call: Call, index: int, length: Dim, what: str) -> None:
    """Raise ShapeError unless an input is a vector that can have that length."""
    spec = call.spec(index)
    if spec.shape is None:
        return
    if len(spec.shape) != 1 or not may_equal(spec.shape[0], length):
        raise ShapeError(
            f"{what} must be a vector of length {length}, got {spec}",
            fix=f"pass one value per channel: a tensor of shape [{length}]",
        )


def require_broadcastable(spec: TensorSpec, shape: Shape, what: str) -> None:
    """Raise ShapeError unless a tensor can be repeated to fill the shape."""
    if spec.shape is None:
        return
    merged = broadcast([spec.shape, shape])
    if len(merged) > len(shape) or not all(map(may_equal, merged, shape)):
        raise ShapeError(
            f"{what} {spec} cannot be repeated to the shape [{', '.join(map(str, shape))}]",
            fix="make each of its dimensions 1 or equal to the one it stands against",
        )


def require_rank(spec: TensorSpec, minimum: int, layout: str) -> None:
    """Raise ShapeError when a tensor is known to have fewer dimensions."""
    if spec.rank is not None and spec.rank < minimum:
        raise ShapeError(
            f"the input must have at least {minimum} dimensions, got {spec}",
            fix=f"reshape it to {layout}",
        )


def may_equal(a: Dim, b: Dim) -> bool:
    """True unless two dimensions are different numbers."""
    return a == b or isinstance(a, str) or isinstance(b, str)
