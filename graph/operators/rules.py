"""Shape and cost rules, and pairs for in-place writing, that several families share."""

from __future__ import annotations

from collections.abc import Sequence

from ..dims import broadcast, normalise_axis
from ..operator import Call, CostRule, InferRule, Pairs, Specs
from ..tensor import Shape, TensorSpec
from .inputs import check_dtype, common_dtype, present

FIRST: Pairs = ((0, 0),)
"""The output on the bytes of the first input."""

EITHER: Pairs = ((0, 0), (0, 1))
"""The output on the bytes of the first or the second input."""

TRANSCENDENTAL = 10
"""Operations that count for one exp, tanh, ...: about the polynomial that computes it."""


def same(call: Call) -> Sequence[TensorSpec]:
    """Infer: the output is like the first input."""
    return (call.spec(0),)


def same_of(kinds: str) -> InferRule:
    """Return the rule: the output is like the first input, whose dtype is of one of the kinds."""

    def infer(call: Call) -> Sequence[TensorSpec]:
        check_dtype(call.spec(0), kinds)
        return (call.spec(0),)

    return infer


def same_along_axis(kinds: str) -> InferRule:
    """Return the rule of `same_of`, for operators that have an axis as their attribute."""

    def infer(call: Call) -> Sequence[TensorSpec]:
        x = call.spec(0)
        check_dtype(x, kinds)
        if x.rank is not None:
            normalise_axis(call.attributes["axis"], x.rank)
        return (x,)

    return infer


def broadcast_shape(specs: Sequence[TensorSpec]) -> Shape | None:
    """Return the shape to which the specs broadcast, None where one's rank is unknown."""
    shapes = [spec.shape for spec in specs if spec.shape is not None]
    return broadcast(shapes) if len(shapes) == len(specs) else None


def broadcast_of(kinds: str, dtype: str | None = None) -> InferRule:
    """Return the rule: inputs of one dtype of the kinds, broadcast together by numpy's rule.

    The output has the inputs' dtype, or `dtype`.
    """

    def infer(call: Call) -> Sequence[TensorSpec]:
        specs = present(call)
        common = common_dtype(specs, kinds)
        return (TensorSpec(dtype or common, broadcast_shape(specs)),)

    return infer


def per_element(operations: int) -> CostRule:
    """Return the cost rule: so many operations per element of the first output."""

    def cost(call: Call, outputs: Specs) -> int:
        return operations * outputs[0].size

    return cost


def per_input_element(operations: int) -> CostRule:
    """Return the cost rule: so many operations per element of the first input."""

    def cost(call: Call, outputs: Specs) -> int:
        return operations * call.spec(0).size

    return cost
