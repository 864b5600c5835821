"""Nodes that give back what they are given: whoever read them reads their input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from ..ir import Graph, Node
from ..resampling import CROP, read_target, resample_axes
from ..tensor import Array
from ..traits import COMMUTATIVE, NEVER_NEGATIVE, ROUNDS, Trait
from .merging import MayMerge, always
from .pipeline import gated
from .rewriting import Rewriter

Question: TypeAlias = Callable[[Rewriter, Node], bool]
"""Says whether a node's first output is its first input, shape and all."""


def _always(rewriter: Rewriter, node: Node) -> bool:
    return True


def _is_alone(rewriter: Rewriter, node: Node) -> bool:
    """True for an operator of many inputs that has one."""
    return len(node.inputs) == 1


def _keeps_dtype(rewriter: Rewriter, node: Node) -> bool:
    """True where the dtype stays, as the shape always does."""
    return rewriter.tensors[node.inputs[0]].dtype == rewriter.tensors[node.outputs[0]].dtype


def _keeps_spec(rewriter: Rewriter, node: Node) -> bool:
    """True where dtype and shape stay: two shapes that are not known may be two."""
    source = rewriter.tensors[node.inputs[0]]
    # Equal symbols are equal lengths; shapes without a rank may be anything.
    return source.shape is not None and source == rewriter.tensors[node.outputs[0]]


def _steps_forward(rewriter: Rewriter, node: Node) -> bool:
    steps = _value(rewriter, node, 4)
    forward = len(node.inputs) < 5 or not node.inputs[4] or (steps is not None and all(steps == 1))
    return forward and _keeps_spec(rewriter, node)


def _pads_nothing(rewriter: Rewriter, node: Node) -> bool:
    pads = _value(rewriter, node, 1)
    return pads is not None and not pads.any()


def _repeats_nothing(rewriter: Rewriter, node: Node) -> bool:
    repeats = _value(rewriter, node, 1)
    return repeats is not None and bool(np.all(repeats == 1))


def _keeps_axes(rewriter: Rewriter, node: Node) -> bool:
    perm = node.attributes["perm"]
    rank = rewriter.tensors[node.inputs[0]].rank
    return rank in (0, 1) or (perm is not None and list(perm) == sorted(perm))


def _blocks_are_cells(rewriter: Rewriter, node: Node) -> bool:
    return bool(node.attributes["blocksize"] == 1)


def _pools_nothing(rewriter: Rewriter, node: Node) -> bool:
    # Strides and pads change the spec; a second output, of places, is no input of the node.
    cells = all(length == 1 for length in node.attributes["kernel_shape"])
    return cells and len(node.outputs) == 1 and _keeps_spec(rewriter, node)


def _reduces_nothing(rewriter: Rewriter, node: Node) -> bool:
    """True where all axes that go are of length 1, or there are none.

    Sums are not asked: 0 + -0.0 is 0.
    """
    return node.attributes["keepdims"] and _keeps_spec(rewriter, node)


def _resizes_nothing(rewriter: Rewriter, node: Node) -> bool:
    """True where every cell is its own nearest one; weighing neighbours by 0 would make nan."""
    x, values = rewriter.tensors[node.inputs[0]], rewriter.call(node).values
    known = all(name in rewriter.constants for name in node.inputs[2:] if name)
    if node.attributes["mode"] != "nearest" or not x.is_static or not known:
        return False
    # A crop reads another region: if it is as large as x, its spec does not tell.
    if node.attributes["coordinate_transformation_mode"] == CROP or not _keeps_spec(rewriter, node):
        return False
    axes = resample_axes(x.static_shape, node.attributes, read_target(values, node.attributes))
    return all(axis.length == axis.width for axis in axes)


def _takes_one(rewriter: Rewriter, node: Node) -> bool:
    """True for a Where of which the condition, then the last input, chooses one side alone."""
    return bool(node.inputs[2]) and _keeps_spec(rewriter, node)


def _trains_nothing(rewriter: Rewriter, node: Node) -> bool:
    training = _value(rewriter, node, 2)
    absent = len(node.inputs) < 3 or not node.inputs[2]
    return absent or (training is not None and not training.any())


def _second_is(number: float) -> Question:
    """Return whether the second input is that number all over, a float's sign of 0 included."""

    def answer(rewriter: Rewriter, node: Node) -> bool:
        value = _value(rewriter, node, 1)
        return value is not None and _is_all(value, number) and _keeps_spec(rewriter, node)

    return answer


def _adds_nothing(rewriter: Rewriter, node: Node) -> bool:
    """True for x + 0 of integers, x + (-0.0) of floats: 0.0 would change the sign of -0.0."""
    value = _value(rewriter, node, 1)
    if value is None or not _keeps_spec(rewriter, node):
        return False
    return _is_all(value, -0.0 if value.dtype.kind == "f" else 0)


def _has_all_bits(rewriter: Rewriter, node: Node) -> bool:
    """True where the second input has every bit set."""
    value = _value(rewriter, node, 1)
    if value is None or not value.size or not _keeps_spec(rewriter, node):
        return False
    return bool(np.all(value == np.invert(value.dtype.type(0))))


def _is_done(rewriter: Rewriter, node: Node) -> bool:
    """True where the same operator wrote the input."""
    writer = rewriter.producer(node.inputs[0])
    return writer is not None and writer.op == node.op


def _is_positive_part(rewriter: Rewriter, node: Node) -> bool:
    """True for a Relu of what Relu wrote, or of floats that are never negative.

    Integers may be: |-128| is -128 in int8.
    """
    is_float = rewriter.tensors[node.inputs[0]].dtype.kind == "f"
    return _is_done(rewriter, node) or (is_float and _follows(NEVER_NEGATIVE)(rewriter, node))


def _follows(trait: Trait) -> Question:
    """Return whether an operator of that trait wrote the input."""

    def answer(rewriter: Rewriter, node: Node) -> bool:
        writer = rewriter.producer(node.inputs[0])
        return writer is not None and trait in writer.operator.traits

    return answer


def _is_clipped(rewriter: Rewriter, node: Node) -> bool:
    """True where bounds are left out, or the input was clipped to them or to closer ones."""
    low, high = _bounds(rewriter, node)
    if low == -np.inf and high == np.inf:
        return True
    writer = rewriter.producer(node.inputs[0])
    if writer is None or writer.op != "Clip" or None in (low, high):
        return False
    closer = _bounds(rewriter, writer)
    # The chain below fails for nan, and for bounds that cross: Clip makes one bound of all x then.
    if closer[0] is None or closer[1] is None or low is None or high is None:
        return False
    return bool(low <= closer[0] <= closer[1] <= high)


_QUESTIONS: Mapping[str, Question] = {
    "Identity": _always,
    **dict.fromkeys(("Cast", "CastLike", "BitCast"), _keeps_dtype),
    "Dropout": _trains_nothing,
    "Reshape": _keeps_spec,
    "Flatten": _keeps_spec,
    "Expand": _keeps_spec,
    "Slice": _steps_forward,
    "Pad": _pads_nothing,
    "Tile": _repeats_nothing,
    "Transpose": _keeps_axes,
    "Squeeze": _keeps_spec,
    "Unsqueeze": _keeps_spec,
    "DepthToSpace": _blocks_are_cells,
    "SpaceToDepth": _blocks_are_cells,
    "Resize": _resizes_nothing,
    "MaxPool": _pools_nothing,
    "Where": _takes_one,
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceProd"), _reduces_nothing),
    **dict.fromkeys(("Concat", "Max", "Min"), _is_alone),
    "Mul": _second_is(1),
    "Div": _second_is(1),
    "Pow": _second_is(1),
    "Add": _adds_nothing,
    # -0.0 - 0.0 is -0.0, unlike -0.0 + 0.0: here it is 0.0 that changes nothing.
    "Sub": _second_is(0),
    "And": _second_is(1),
    **dict.fromkeys(("Or", "Xor", "BitwiseOr", "BitwiseXor", "BitShift"), _second_is(0)),
    "BitwiseAnd": _has_all_bits,
    "Relu": _is_positive_part,
    **dict.fromkeys(("Abs", "Sign"), _is_done),
    "Clip": _is_clipped,
}


def _question(node: Node) -> Question | None:
    # Any rounding yields whole numbers, and every rounding leaves those as they are.
    return _follows(ROUNDS) if ROUNDS in node.operator.traits else _QUESTIONS.get(node.op)


@gated(*_QUESTIONS, trait=ROUNDS)
def bypass_identities(graph: Graph, may_merge: MayMerge = always) -> Graph:
    """Identity(x), x · 1, Cast to x's dtype, Relu(Relu(x)) and their like -> x.

    Only where every number stays, infinities, nan and the sign of 0 too. What is pinned stays,
    unless what is next to it is pinned alike; so does what stands between an input, or a constant,
    and an output.
    """
    rewriter = Rewriter(graph, may_merge)
    # By name, as a node is another object once its input has been bypassed; in order, so that one
    # sweep takes out a whole chain.
    for name in [node.name for node in graph.nodes if _question(node)]:
        node = rewriter.node(name)
        source = _source(rewriter, node)
        if source is not None and rewriter.may_drop(node):
            rewriter.bypass(node, {node.outputs[0]: source})
    return rewriter.result()


def _source(rewriter: Rewriter, node: Node) -> str | None:
    """Return the input that a node gives back."""
    if not node.inputs[0] or not node.outputs[0]:
        return None
    asked, question = _asked(rewriter, node), _question(node)
    if question is None or not question(rewriter, asked):
        return None
    source, made = (rewriter.tensors[name] for name in (asked.inputs[0], node.outputs[0]))
    # Whatever the question found, a tensor of another dtype or shape cannot take its place.
    return asked.inputs[0] if source == made else None


def _asked(rewriter: Rewriter, node: Node) -> Node:
    """Return a node with what it may give back as the first of its inputs."""
    inputs = node.inputs
    # Questions look for the constant behind what may be given back.
    if COMMUTATIVE in node.operator.traits and inputs[0] in rewriter.constants:
        inputs = inputs[::-1]
    if node.op == "Where":
        condition, yes, no = inputs
        value = rewriter.constants.get(condition)
        chosen = yes if value is not None and value.all() else no
        # A condition that is the same all over is the constant that decides; one that varies does
        # not matter where both sides are one tensor.
        one_sided = yes == no or (value is not None and value.all() == value.any())
        inputs = (chosen, "", condition if one_sided else "")
    return Node(node.name, node.op, inputs, node.outputs, node.attributes)


def _value(rewriter: Rewriter, node: Node, index: int) -> Array | None:
    name = node.inputs[index] if index < len(node.inputs) else ""
    return rewriter.constants.get(name)


def _is_all(value: Array, number: float) -> bool:
    """True when all elements are a number; of floats 0 and -0 are two numbers."""
    # Of no elements anything is true, and they say nothing of what they are broadcast with.
    if value.dtype.kind not in "biuf" or not value.size:
        return False
    equal = bool(np.all(value == number))
    if number == 0 and value.dtype.kind == "f":
        return equal and bool(np.all(np.signbit(value) == np.signbit(number)))
    return equal


def _bounds(rewriter: Rewriter, node: Node) -> tuple[float | None, float | None]:
    """Return the bounds of a Clip: infinite where they are left out, None where they vary."""
    found: list[float | None] = [-np.inf, np.inf]
    for index in (1, 2):
        if index < len(node.inputs) and node.inputs[index]:
            value = _value(rewriter, node, index)
            found[index - 1] = None if value is None else value.item()
    return found[0], found[1]
