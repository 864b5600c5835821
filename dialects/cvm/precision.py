"""Bits that the integers of an exact graph need: inferred, node by node, before any run.

A tensor of precision p holds x with |x| ≤ 2ᵖ⁻¹ - 1: the range is symmetric, so 127 has 8 bits and
-128 has 9. Inputs and constants have a declared precision, or that of their dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call, Specs
from ...graph.values.errors import LogicError, ShapeError
from ...graph.values.tensor import TensorSpec
from .operators.reduction import list_reduced_axes
from .operators.rules import PREFIX

MAX_PRECISION = 32
FACTOR_PRECISION = 8
"""The limit of bits for the input and the weights of a conv2d or dense."""

Rule: TypeAlias = Callable[[Call, Sequence[int], Specs], int | tuple[int, ...]]
"""Returns the bits of each output, given those of the inputs that are present."""

_KEEPS_BITS = ("Identity",)
"""Inexact operators with the same precision in and out."""


def infer_precision(graph: Graph) -> Mapping[str, int]:
    """Return the precision of every signed integer tensor of `graph`, by name.

    Outputs of operators that are not exact ones have the precision of their dtype.

    Raises
    ------
    LogicError
        If a tensor needs more than 32 bits, or an input more than its operator allows.
    ShapeError
        If a summed length is a symbol.
    """
    found: dict[str, int] = {}
    for name in (*graph.inputs, *graph.constants):
        if graph.tensors[name].dtype.kind == "i":
            # Without a declaration it may hold any number of its dtype.
            found[name] = graph.precisions.get(name, _get_width(graph.tensors[name]))
    for node in graph.nodes:
        bits = _infer_outputs(graph, node, found)
        named = zip(filter(None, node.outputs), bits, strict=True)
        found.update({name: p for name, p in named if graph.tensors[name].dtype.kind == "i"})
    return found


def compute_limit(precision: int) -> int:
    """Return the largest magnitude of a number with `precision` bits."""
    return (1 << (precision - 1)) - 1


def check_parameters(graph: Graph) -> None:
    """Raise LogicError if a constant of `graph` holds a number beyond its declared precision."""
    for name, precision in graph.precisions.items():
        value = graph.constants.get(name)
        if value is None or not value.size:
            continue
        peak = find_magnitude(value)
        if peak > compute_limit(precision):
            raise LogicError(
                f"a magnitude of {peak} is beyond {precision} bits",
                at=f"constant {name!r}, {graph.name}",
                fix=f"declare more bits, or clip to ±{compute_limit(precision)}",
            )


def find_magnitude(value: np.ndarray[Any, np.dtype[Any]]) -> int:
    """Return the largest |x| of integers `value`, exactly even for the dtype's least one."""
    # As Python integers: the absolute value of the least one does not fit in its dtype.
    return max(int(value.max()), -int(value.min()))


def sum_bits(count: int) -> int:
    return count.bit_length()


def compute_precision(number: int) -> int:
    """Return the precision for the largest magnitude `number`, by the rule of cvm's models.

    It may have one bit too many: 126 gives 8 bits, 127 gives 9 although it fits in 8.
    """
    return (number + 1).bit_length() + 1


def _get_width(spec: TensorSpec) -> int:
    return 8 * spec.dtype.itemsize


def _infer_outputs(graph: Graph, node: Node, found: Mapping[str, int]) -> Sequence[int]:
    outputs = graph.output_specs(node)
    if node.op in _KEEPS_BITS:
        return [found.get(node.inputs[0], _get_width(outputs[0]))]
    rule = RULES.get(node.op)
    if rule is None:
        return [_get_width(spec) for spec in outputs]
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


def _infer_total(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    shape = call.spec(0).shape or ()
    reduced = list_reduced_axes(len(shape), call.attributes)
    # Its size is the number of summands; it raises for a symbol.
    summed = TensorSpec("int32", [shape[axis] for axis in reduced])
    return bits[0] + sum_bits(summed.size)


def _infer_weighted_sum(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    for what, precision in zip(("the input", "the weights"), bits, strict=False):
        if precision > FACTOR_PRECISION:
            raise LogicError(
                f"{what} may need {precision} bits, the limit here is {FACTOR_PRECISION}",
                fix=f"put cvm.cvm_clip(precision={FACTOR_PRECISION}) before, or declare fewer bits",
            )
    weights = call.spec(1)
    total = bits[0] + bits[1] + sum_bits(weights.size // weights.static_shape[0])
    # One more for the bias.
    return max(total, bits[2]) + 1 if len(bits) > 2 else total


def _infer_clip(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    return compute_precision(max(abs(call.attributes["a_min"]), abs(call.attributes["a_max"])))


def _read_precision(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    precision: int = call.attributes["precision"]
    return precision


def _infer_shift(call: Call, bits: Sequence[int], outputs: Specs) -> int:
    shift = call.attributes["shift_bit"]
    if bits[0] + shift > MAX_PRECISION:
        raise LogicError(
            f"{bits[0]} bits shifted by {shift} need more than {MAX_PRECISION}",
            fix="shift by less, or clip before",
        )
    return _read_precision(call, bits, outputs)


def _infer_counts(call: Call, bits: Sequence[int], outputs: Specs) -> tuple[int, ...]:
    # The models' rule bounds a count by all numbers of a sample, not by its rows.
    sample = TensorSpec("int32", (call.spec(0).shape or ())[1:])
    return compute_precision(sample.size), bits[0]


_OPERATORS: tuple[tuple[Rule, str], ...] = (
    (
        lambda call, bits, outputs: bits[0],
        "max broadcast_div broadcast_greater relu max_pool2d upsampling abs negative repeat tile"
        " flatten expand_dims reshape squeeze transpose strided_slice slice_like take"
        " non_max_suppression",
    ),
    (lambda call, bits, outputs: bits[1], "lut"),
    (lambda call, bits, outputs: max(bits), "broadcast_max concatenate"),
    (
        lambda call, bits, outputs: max(bits) + 1,
        "broadcast_add broadcast_sub elemwise_add elemwise_sub",
    ),
    (lambda call, bits, outputs: bits[0] + bits[1], "broadcast_mul"),
    (_infer_total, "sum"),
    (_infer_weighted_sum, "conv2d dense"),
    (lambda call, bits, outputs: max(bits[1:]), "where"),
    (lambda call, bits, outputs: MAX_PRECISION.bit_length(), "precision"),
    (_infer_clip, "clip"),
    (_read_precision, "cvm_clip right_shift"),
    (_infer_shift, "left_shift"),
    (_infer_counts, "get_valid_counts"),
)

RULES: Mapping[str, Rule] = {PREFIX + op: rule for rule, ops in _OPERATORS for op in ops.split()}
"""The rules for the outputs of each exact operator."""
