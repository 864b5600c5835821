"""Remove nodes that return their input unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from ..core.ir import Node
from ..core.traits import COMMUTATIVE, NEVER_NEGATIVE, ROUNDS, Trait
from ..operators.resampling import CROP, read_target, resample_axes
from ..values.tensor import Array
from .pipeline import make_pass
from .rewriting import Rewriter

Question: TypeAlias = Callable[[Rewriter, Node], bool]
"""Returns whether a node's first output equals its first input."""


def _is_alone(rewriter: Rewriter, node: Node) -> bool:
    return len(node.inputs) == 1


def _has_same_dtype(rewriter: Rewriter, node: Node) -> bool:
    return rewriter.tensors[node.inputs[0]].dtype == rewriter.tensors[node.outputs[0]].dtype


def _is_same_spec(rewriter: Rewriter, node: Node) -> bool:
    """Return whether `node` keeps dtype and shape in `rewriter`; False if the rank is unknown."""
    source = rewriter.tensors[node.inputs[0]]
    # Equal symbols are equal lengths; shapes without a rank may be anything.
    return source.shape is not None and source == rewriter.tensors[node.outputs[0]]


def _has_forward_steps(rewriter: Rewriter, node: Node) -> bool:
    steps = _get_constant(rewriter, node, 4)
    forward = len(node.inputs) < 5 or not node.inputs[4] or (steps is not None and all(steps == 1))
    return forward and _is_same_spec(rewriter, node)


def _has_no_pads(rewriter: Rewriter, node: Node) -> bool:
    pads = _get_constant(rewriter, node, 1)
    return pads is not None and not pads.any()


def _has_no_repeats(rewriter: Rewriter, node: Node) -> bool:
    repeats = _get_constant(rewriter, node, 1)
    return repeats is not None and bool(np.all(repeats == 1))


def _has_same_axes(rewriter: Rewriter, node: Node) -> bool:
    perm = node.attributes["perm"]
    rank = rewriter.tensors[node.inputs[0]].rank
    return rank in (0, 1) or (perm is not None and list(perm) == sorted(perm))


def _has_unit_blocks(rewriter: Rewriter, node: Node) -> bool:
    return bool(node.attributes["blocksize"] == 1)


def _has_unit_windows(rewriter: Rewriter, node: Node) -> bool:
    # Strides and pads change the spec. The second output, of indices, is not an input.
    cells = all(length == 1 for length in node.attributes["kernel_shape"])
    return cells and len(node.outputs) == 1 and _is_same_spec(rewriter, node)


def _has_unit_axes(rewriter: Rewriter, node: Node) -> bool:
    """Return whether all axes that `node` reduces have length 1. Not for sums: 0 + -0.0 is 0."""
    return node.attributes["keepdims"] and _is_same_spec(rewriter, node)


def _has_same_cells(rewriter: Rewriter, node: Node) -> bool:
    """Return whether `node`, a Resize, keeps each cell. Only nearest: 0 · infinity would be nan."""
    x, values = rewriter.tensors[node.inputs[0]], rewriter.call(node).values
    known = all(name in rewriter.constants for name in node.inputs[2:] if name)
    if node.attributes["mode"] != "nearest" or not x.is_static or not known:
        return False
    # A crop may read another region of the same size.
    if node.attributes["coordinate_transformation_mode"] == CROP or not _is_same_spec(
        rewriter, node
    ):
        return False
    axes = resample_axes(x.static_shape, node.attributes, read_target(values, node.attributes))
    return all(axis.length == axis.width for axis in axes)


def _is_one_sided(rewriter: Rewriter, node: Node) -> bool:
    """Return whether `node`, a Where, reads one side only, which `_put_source_first` marks."""
    return bool(node.inputs[2]) and _is_same_spec(rewriter, node)


def _is_not_training(rewriter: Rewriter, node: Node) -> bool:
    training = _get_constant(rewriter, node, 2)
    absent = len(node.inputs) < 3 or not node.inputs[2]
    return absent or (training is not None and not training.any())


def _ask_operand(number: float) -> Question:
    """Make a question about the second input: whether all elements are `number`, signs included."""

    def answer(rewriter: Rewriter, node: Node) -> bool:
        value = _get_constant(rewriter, node, 1)
        return value is not None and _is_all(value, number) and _is_same_spec(rewriter, node)

    return answer


def _has_neutral_addend(rewriter: Rewriter, node: Node) -> bool:
    """Return whether `node` adds 0 to integers, or -0.0 to floats: 0.0 would change -0.0."""
    value = _get_constant(rewriter, node, 1)
    if value is None or not _is_same_spec(rewriter, node):
        return False
    return _is_all(value, -0.0 if value.dtype.kind == "f" else 0)


def _has_all_bits(rewriter: Rewriter, node: Node) -> bool:
    value = _get_constant(rewriter, node, 1)
    if value is None or not value.size or not _is_same_spec(rewriter, node):
        return False
    return bool(np.all(value == np.invert(value.dtype.type(0))))


def _is_repeated(rewriter: Rewriter, node: Node) -> bool:
    writer = rewriter.producer(node.inputs[0])
    return writer is not None and writer.op == node.op


def _is_positive_part(rewriter: Rewriter, node: Node) -> bool:
    """Return whether the input of `node`, a Relu in `rewriter`, is never negative.

    Only for floats: in int8 even |-128| is -128.
    """
    is_float = rewriter.tensors[node.inputs[0]].dtype.kind == "f"
    return _is_repeated(rewriter, node) or (
        is_float and _ask_writer(NEVER_NEGATIVE)(rewriter, node)
    )


def _ask_writer(trait: Trait) -> Question:
    """Make a question about the input: whether an operator with `trait` wrote it."""

    def answer(rewriter: Rewriter, node: Node) -> bool:
        writer = rewriter.producer(node.inputs[0])
        return writer is not None and trait in writer.operator.traits

    return answer


def _is_clipped(rewriter: Rewriter, node: Node) -> bool:
    """Return whether `node` lacks bounds, or its input was clipped to these or tighter ones."""
    low, high = _get_bounds(rewriter, node)
    if low == -np.inf and high == np.inf:
        return True
    writer = rewriter.producer(node.inputs[0])
    if writer is None or writer.op != "Clip" or None in (low, high):
        return False
    closer = _get_bounds(rewriter, writer)
    # False for nan and for crossed bounds, with which Clip returns one bound for all x.
    if closer[0] is None or closer[1] is None or low is None or high is None:
        return False
    return bool(low <= closer[0] <= closer[1] <= high)


_QUESTIONS: Mapping[str, Question] = {
    "Identity": lambda rewriter, node: True,
    **dict.fromkeys(("Cast", "CastLike", "BitCast"), _has_same_dtype),
    "Dropout": _is_not_training,
    "Reshape": _is_same_spec,
    "Flatten": _is_same_spec,
    "Expand": _is_same_spec,
    "Slice": _has_forward_steps,
    "Pad": _has_no_pads,
    "Tile": _has_no_repeats,
    "Transpose": _has_same_axes,
    "Squeeze": _is_same_spec,
    "Unsqueeze": _is_same_spec,
    "DepthToSpace": _has_unit_blocks,
    "SpaceToDepth": _has_unit_blocks,
    "Resize": _has_same_cells,
    "MaxPool": _has_unit_windows,
    "Where": _is_one_sided,
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceProd"), _has_unit_axes),
    **dict.fromkeys(("Concat", "Max", "Min"), _is_alone),
    "Mul": _ask_operand(1),
    "Div": _ask_operand(1),
    "Pow": _ask_operand(1),
    "Add": _has_neutral_addend,
    # -0.0 - 0.0 is -0.0, unlike -0.0 + 0.0: here it is 0.0 that changes nothing.
    "Sub": _ask_operand(0),
    "And": _ask_operand(1),
    **dict.fromkeys(("Or", "Xor", "BitwiseOr", "BitwiseXor", "BitShift"), _ask_operand(0)),
    "BitwiseAnd": _has_all_bits,
    "Relu": _is_positive_part,
    **dict.fromkeys(("Abs", "Sign"), _is_repeated),
    "Clip": _is_clipped,
}


def _get_question(node: Node) -> Question | None:
    # Any rounding yields whole numbers, and every rounding leaves those as they are.
    return _ask_writer(ROUNDS) if ROUNDS in node.operator.traits else _QUESTIONS.get(node.op)


@make_pass(*_QUESTIONS, trait=ROUNDS)
def bypass_identities(rewriter: Rewriter) -> None:
    """Bypass Identity(x), x · 1, Cast to x's dtype, Relu(Relu(x)) and the like.

    Every value stays, including infinities, nan and the sign of 0. A pinned node stays, unless its
    neighbour has the same pin; so does a node between an input, or a constant, and an output.
    """
    # By name, since bypassing replaces the objects of readers. In order, so that one sweep removes
    # a whole chain.
    for name in [node.name for node in rewriter.graph.nodes if _get_question(node)]:
        node = rewriter.node(name)
        source = _find_source(rewriter, node)
        if source is not None and rewriter.may_drop(node):
            rewriter.bypass(node, {node.outputs[0]: source})


def _find_source(rewriter: Rewriter, node: Node) -> str | None:
    if not node.inputs[0] or not node.outputs[0]:
        return None
    asked, question = _put_source_first(rewriter, node), _get_question(node)
    if question is None or not question(rewriter, asked):
        return None
    source, made = (rewriter.tensors[name] for name in (asked.inputs[0], node.outputs[0]))
    # A tensor of another dtype or shape cannot take its place.
    return asked.inputs[0] if source == made else None


def _put_source_first(rewriter: Rewriter, node: Node) -> Node:
    inputs = node.inputs
    # Questions look for the constant in the second input.
    if COMMUTATIVE in node.operator.traits and inputs[0] in rewriter.constants:
        inputs = inputs[::-1]
    if node.op == "Where":
        condition, yes, no = inputs
        value = rewriter.constants.get(condition)
        chosen = yes if value is not None and value.all() else no
        # A constant condition decides if all its elements are equal. Any condition will do if both
        # sides are one tensor.
        one_sided = yes == no or (value is not None and value.all() == value.any())
        inputs = (chosen, "", condition if one_sided else "")
    return Node(node.name, node.op, inputs, node.outputs, node.attributes)


def _get_constant(rewriter: Rewriter, node: Node, index: int) -> Array | None:
    name = node.inputs[index] if index < len(node.inputs) else ""
    return rewriter.constants.get(name)


def _is_all(value: Array, number: float) -> bool:
    """Return whether all elements of `value` equal `number`; for floats, 0 and -0 differ."""
    # An empty array would equal any number.
    if value.dtype.kind not in "biuf" or not value.size:
        return False
    equal = bool(np.all(value == number))
    if number == 0 and value.dtype.kind == "f":
        return equal and bool(np.all(np.signbit(value) == np.signbit(number)))
    return equal


def _get_bounds(rewriter: Rewriter, node: Node) -> tuple[float | None, float | None]:
    """Return the bounds of `node`, a Clip in `rewriter`: infinite if left out, None if computed."""
    found: list[float | None] = [-np.inf, np.inf]
    for index in (1, 2):
        if index < len(node.inputs) and node.inputs[index]:
            value = _get_constant(rewriter, node, index)
            found[index - 1] = None if value is None else value.item()
    return found[0], found[1]
