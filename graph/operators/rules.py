"""Shape rules, cost rules and alias rules that several families share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.operator import Alias, Call, CostRule, InferRule, Pairs, Specs
from ..values.dims import broadcast, normalize_axis
from ..values.tensor import Shape, TensorSpec
from .inputs import check_dtype, find_common_dtype, list_present

FIRST: Pairs = ((0, 0),)
"""The output on the bytes of the first input."""

EITHER: Pairs = ((0, 0), (0, 1))
"""The output on the bytes of the first or the second input."""

TRANSCENDENTAL = 10
"""Operations that count for one exp, tanh, ...: about the polynomial that computes it."""


def same(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like the first input."""
    return (call.spec(0),)


def same_of(kinds: str) -> InferRule:
    """Return the rule: the output is like the first input, with a dtype of `kinds`."""

    def infer(call: Call) -> Sequence[TensorSpec]:
        check_dtype(call.spec(0), kinds)
        return (call.spec(0),)

    return infer


def same_along_axis(kinds: str) -> InferRule:
    """Return the rule of `same_of(kinds)` for operators with an attribute ``axis``."""

    def infer(call: Call) -> Sequence[TensorSpec]:
        x = call.spec(0)
        check_dtype(x, kinds)
        if x.rank is not None:
            normalize_axis(call.attributes["axis"], x.rank)
        return (x,)

    return infer


def broadcast_shape(specs: Sequence[TensorSpec]) -> Shape | None:
    shapes = [spec.shape for spec in specs if spec.shape is not None]
    return broadcast(shapes) if len(shapes) == len(specs) else None


def broadcast_of(kinds: str, dtype: str | None = None) -> InferRule:
    """Make a rule that broadcasts inputs of one dtype in `kinds`; outputs have it, or `dtype`."""

    def infer(call: Call) -> Sequence[TensorSpec]:
        specs = list_present(call)
        common = find_common_dtype(specs, kinds)
        return (TensorSpec(dtype or common, broadcast_shape(specs)),)

    return infer


def per_element(operations: int) -> CostRule:
    def cost(call: Call, outputs: Specs) -> int:
        return operations * outputs[0].size

    return cost


def per_input_element(operations: int) -> CostRule:
    def cost(call: Call, outputs: Specs) -> int:
        return operations * call.spec(0).size

    return cost


def alias_part(
    spec: TensorSpec, starts: Sequence[int], lengths: Sequence[int], output: int = 0
) -> Iterator[Alias]:
    """Yield the alias of `output`, the box of `lengths` at `starts` in `spec`, if it is one run."""
    offset = _run_offset(spec.static_shape, starts, lengths)
    if offset is not None:
        yield Alias(output, 0, offset * spec.dtype.itemsize)


def alias_joined(call: Call) -> Iterator[Alias]:
    """Yield the inputs of `call` one after the other along an axis, where each is one run."""
    specs = list_present(call)
    shape = list(specs[0].static_shape)
    axis = normalize_axis(call.attributes["axis"], len(shape))
    shape[axis] = sum(spec.static_shape[axis] for spec in specs)
    begin = 0
    for index, spec in enumerate(specs):
        starts = [begin if i == axis else 0 for i in range(len(shape))]
        offset = _run_offset(shape, starts, spec.static_shape)
        if offset is not None and spec.size:
            yield Alias(0, index, offset * spec.dtype.itemsize)
        begin += spec.static_shape[axis]


def _run_offset(shape: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> int | None:
    """Return how many elements precede the box of `lengths` at `starts`; None if it is not one run.

    It is one run if all axes before the first axis with several places have one place, and all
    axes after it are whole.
    """
    offset, stride, whole = 0, 1, True
    for length, start, count in zip(shape[::-1], starts[::-1], lengths[::-1], strict=True):
        if not whole and count != 1:
            return None
        offset += start * stride
        stride *= length
        whole = whole and count == length
    return offset
