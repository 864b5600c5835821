"""Bits that the integers of an exact graph need: inferred, node by node, before any run.

A tensor of precision p holds x with |x| ≤ 2ᵖ⁻¹ - 1: the range is symmetric, so that 127 is within
8 bits and -128 is not. Inputs and constants declare theirs, or have that of their dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...graph.errors import LogicError, ShapeError
from ...graph.ir import Graph, Node
from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from .operators.reduction import reduced_axes
from .operators.rules import PREFIX

MAX_PRECISION = 32
FACTOR_PRECISION = 8
"""The most bits that the input and the weights of a conv2d or dense may have."""

Rule: TypeAlias = Callable[[Call, Sequence[int], Specs], int | tuple[int, ...]]
"""Returns the bits of each output, given those of the inputs that are present."""

_KEEPS_BITS = ("Identity",)
"""Operators besides the exact ones whose output needs what the input needs."""


def infer_precision(graph: Graph) -> Mapping[str, int]:
    """Return the precision of every signed integer tensor.

    Outputs of operators that are not exact ones have the precision of their dtype.

    Raises
    ------
    LogicError
        If a tensor needs more than 32 bits, or a node is given more than its operator allows.
    ShapeError
        If a length that is summed over is a symbol.
    """
    found: dict[str, int] = {}
    for name in (*graph.inputs, *graph.constants):
        if graph.tensors[name].dtype.kind == "i":
            # What is not declared may be any number of its dtype.
            found[name] = graph.precisions.get(name, _width(graph.tensors[name]))
    for node in graph.nodes:
        bits = _outputs_of(graph, node, found)
        named = zip(filter(None, node.outputs), bits, strict=True)
        found.update({name: p for name, p in named if graph.tensors[name].dtype.kind == "i"})
    return found


def largest(precision: int) -> int:
    """Return the largest magnitude that a number of so many bits has."""
    return (1 << (precision - 1)) - 1


def check_parameters(graph: Graph) -> None:
    """Raise LogicError if a constant holds a number beyond its declared precision."""
    for name, precision in graph.precisions.items():
        value = graph.constants.get(name)
        if value is None or not value.size:
            continue
        peak = magnitude(value)
        if peak > largest(precision):
            raise LogicError(
                f"a magnitude of {peak} is beyond {precision} bits",
                at=f"constant {name!r}, {graph.name}",
                fix=f"declare more bits, or clip to ±{largest(precision)}",
            )


def magnitude(value: np.ndarray[Any, np.dtype[Any]]) -> int:
    """Return the largest |x| of integers; that of the least integer is exact too."""
    # As Python's integers, since the absolute value of the least one has no place in its dtype.
    return max(int(value.max()), -int(value.min()))


def sum_bits(count: int) -> int:
    """Return the bits that a sum of so many numbers has more than they: `count`'s bit length."""
    return count.bit_length()


def number_precision(number: int) -> int:
    """Return the precision of tensors whose largest magnitude is a number; at times one too many.

    As the rule of the models has it: 126 gives 8 bits, 127 gives 9 although it fits into 8.
    """
    return (number + 1).bit_length() + 1


def _width(spec: TensorSpec) -> int:
    return 8 * spec.dtype.itemsize


def _outputs_of(graph: Graph, node: Node, found: Mapping[str, int]) -> Sequence[int]:
    """Return the bits of a node's outputs that have a name."""
    outputs = graph.output_specs(node)
    if node.op in _KEEPS_BITS:
        return [found.get(node.inputs[0], _width(outputs[0]))]
    rule = RULES.get(node.op)
    if rule is None:
        return [_width(spec) for spec in outputs]
    try:
        bits = rule(graph.call(node), [found[name] for name in node.inputs if name], outputs)
    except (LogicError, ShapeError) as error:
        error.at = str(node)
        raise
    listed = (bits,) if isinstance(bits, int) else bits
    named = [precision for name, precision in zip(node.outputs, listed, strict=True) if name]
    for precision in named:
        if not 1 <= precision <= MAX_PRECISION:
            raise LogicError(
                f"the output needs {precision} bits, the limit is {MAX_PRECISION}",
                at=str(node),
                fix="clip or shift the inputs to fewer bits: cvm.cvm_clip, cvm.right_shift",
            )
    return named


def _first(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    return bits[0]


def _second(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    return bits[1]


def _most(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    return max(bits)


def _one_more(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    return max(bits) + 1


def _product(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    return bits[0] + bits[1]


def _total(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    shape = call.spec(0).shape or ()
    reduced = reduced_axes(len(shape), call.attributes)
    # Its size is how many numbers are added up; a length that is a symbol raises there.
    summed = TensorSpec("int32", [shape[axis] for axis in reduced])
    return bits[0] + sum_bits(summed.size)


def _weighted_sum(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    for what, precision in zip(("the input", "the weights"), bits, strict=False):
        if precision > FACTOR_PRECISION:
            raise LogicError(
                f"{what} may need {precision} bits, the limit here is {FACTOR_PRECISION}",
                fix=f"put cvm.cvm_clip(precision={FACTOR_PRECISION}) before, or declare fewer bits",
            )
    weights = call.spec(1)
    total = bits[0] + bits[1] + sum_bits(weights.size // weights.static_shape[0])
    # One more for the bias that is added.
    return max(total, bits[2]) + 1 if len(bits) > 2 else total


def _where(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    return max(bits[1:])


def _bit_length(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    # The result is a number of bits itself.
    return MAX_PRECISION.bit_length()


def _bounds(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    return number_precision(max(abs(call.attributes["a_min"]), abs(call.attributes["a_max"])))


def _as_told(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    precision: int = call.attributes["precision"]
    return precision


def _shifted(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    shift = call.attributes["shift_bit"]
    if bits[0] + shift > MAX_PRECISION:
        raise LogicError(
            f"{bits[0]} bits shifted by {shift} need more than {MAX_PRECISION}",
            fix="shift by less, or clip before",
        )
    return _as_told(call, bits, outputs)


def _counted(call: Call, bits: Sequence[int], outputs: Specs) -> tuple[int, ...]:
    # The models' rule takes all numbers of a sample for the bound of a count, not its rows.
    sample = TensorSpec("int32", (call.spec(0).shape or ())[1:])
    return number_precision(sample.size), bits[0]


_OPERATORS: tuple[tuple[Rule, str], ...] = (
    (
        _first,
        "max broadcast_div broadcast_greater relu max_pool2d upsampling abs negative repeat tile"
        " flatten expand_dims reshape squeeze transpose strided_slice slice_like take"
        " non_max_suppression",
    ),
    (_second, "lut"),
    (_most, "broadcast_max concatenate"),
    (_one_more, "broadcast_add broadcast_sub elemwise_add elemwise_sub"),
    (_product, "broadcast_mul"),
    (_total, "sum"),
    (_weighted_sum, "conv2d dense"),
    (_where, "where"),
    (_bit_length, "precision"),
    (_bounds, "clip"),
    (_as_told, "cvm_clip right_shift"),
    (_shifted, "left_shift"),
    (_counted, "get_valid_counts"),
)

RULES: Mapping[str, Rule] = {PREFIX + op: rule for rule, ops in _OPERATORS for op in ops.split()}
"""How many bits the outputs of each exact operator need."""
