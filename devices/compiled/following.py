"""Nodes behind a convolution that can be computed while its outputs are in cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...graph.ir import Graph, Node
from .epilogue import CLIP, HARD_SIGMOID, HARD_SWISH, LEAKY_RELU, PLAIN, RELU, Numbers


class Fused(NamedTuple):
    """A convolution up to one of the nodes behind it.

    Attributes
    ----------
    output : str
        What that node writes.
    numbers : Numbers
    residual : str or None
        The tensor that is added.
    """

    output: str
    numbers: Numbers = PLAIN
    residual: str | None = None


@dataclass(frozen=True, slots=True)
class _State:
    """What is fused so far, and what may come next: operators stand in the order of `Numbers`."""

    fused: Fused
    activated: bool = False


def following(graph: Graph, conv: Node, behind: Sequence[Node]) -> list[Fused]:
    """Return the convolution alone, then with each further node that can be fused to it.

    `behind` are the nodes that run after it, in order. A node is fused if it comes next, and
    nothing but it reads what lies between.
    """
    state = _State(Fused(conv.outputs[0]))
    found = [state.fused]
    for node in behind:
        tensor = state.fused.output
        if tensor in graph.fetched or graph.consumers[tensor] != (node,):
            break
        if node.inputs.count(tensor) != 1 or len(node.outputs) != 1:
            break
        if graph.tensors[node.outputs[0]] != graph.tensors[tensor]:
            break
        extended = _extend(graph, state, node)
        if extended is None:
            break
        state = extended
        found.append(state.fused)
    return found


def _extend(graph: Graph, state: _State, node: Node) -> _State | None:
    numbers, tensor = state.fused.numbers, state.fused.output
    output = node.outputs[0]
    if node.op in ("Add", "Mul"):
        (other,) = [name for name in node.inputs if name != tensor]
        if other in graph.constants:
            value = graph.constants[other]
            if value.size != 1:
                return None
            return _scale(state, node, value.item())
        fits = graph.tensors[other] == graph.tensors[tensor]
        if node.op == "Mul" or not fits or state.activated or numbers.adds or numbers.scales:
            return None
        return _State(Fused(output, numbers._replace(adds=True), other))
    activation = None if state.activated or numbers.scales else activation_of(graph, node)
    if activation is None:
        return None
    code, a, b = activation
    numbers = numbers._replace(activation=code, a=a, b=b)
    return _State(Fused(output, numbers, state.fused.residual), activated=True)


def _scale(state: _State, node: Node, value: float) -> _State | None:
    numbers = state.fused.numbers
    if numbers.shift != 0:
        return None
    if node.op == "Add":
        numbers = numbers._replace(scales=True, shift=value)
    else:
        numbers = numbers._replace(scales=True, scale=numbers.scale * value)
    fused = Fused(node.outputs[0], numbers, state.fused.residual)
    return replace(state, fused=fused)


def activation_of(graph: Graph, node: Node) -> tuple[int, float, float] | None:
    """Return the code and numbers of an activation, None where it has none."""
    attributes = node.attributes
    if node.op == "Relu":
        return RELU, 0.0, 0.0
    if node.op == "HardSwish":
        return HARD_SWISH, 0.0, 0.0
    if node.op == "HardSigmoid":
        return HARD_SIGMOID, attributes["alpha"], attributes["beta"]
    if node.op == "LeakyRelu" and attributes["alpha"] != 0:  # 0·∞ is not 0
        return LEAKY_RELU, attributes["alpha"], 0.0
    if node.op == "Clip":
        bounds = (*node.inputs[1:], "", "")[:2]
        if all(not name or name in graph.constants for name in bounds):
            low, high = (
                graph.constants[name].item() if name else default
                for name, default in zip(bounds, (-np.inf, np.inf), strict=True)
            )
            return CLIP, low, high
    return None
