"""Elementwise nodes that are fused into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait.graph.building.builder import GraphBuilder
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import TensorSpec
from single_node import AnyArray

from .drawing import (
    FINITE,
    Draw,
    NodeCase,
    Strategy,
    broadcast_part,
    choose,
    integer,
    shape,
    tensor,
)

UNARY = ("Neg", "Abs", "Relu", "Sign")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min")
DTYPES = ("float32", "float64", "int32")
MOST_NODES = 6


def fused(draw: Draw) -> NodeCase:
    """Draw a body of nodes, each of which reads the one before it, and inputs."""
    dtype, of = choose(draw, DTYPES), shape(draw)
    inputs = [tensor(draw, dtype, of, FINITE)]
    shapes = [broadcast_part(draw, of) for _ in range(integer(draw, 0, 3))]
    inputs += [tensor(draw, dtype, one, FINITE) for one in shapes]
    return NodeCase(inputs, {"body": _body(draw, inputs)})


def _body(draw: Draw, inputs: Sequence[AnyArray]) -> Graph:
    """Draw nodes; the ranks of a body's tensors are not known."""
    b = GraphBuilder("body")
    given = [b.input(f"i{i}", x.dtype, x.shape) for i, x in enumerate(inputs)]
    full = [given[0]]
    for _ in range(integer(draw, 1, MOST_NODES)):
        last = full[-1]
        match integer(draw, 0, 3):
            case 0:
                made = b.op(choose(draw, UNARY), last)
            case 1:
                made = b.op("Where", b.op("Less", choose(draw, full), last), last, full[0])
            case _:
                other = choose(draw, [*given, *full])
                operands = [last, other] if integer(draw, 0, 1) else [other, last]
                made = b.op(choose(draw, BINARY), *operands)
        full.append(made)
    for name in given[1:]:  # all are read
        full.append(b.op("Add", full[-1], name))
    b.output("y", b.op("Abs", full[-1]))
    body = b.build()
    unranked = {name: TensorSpec(spec.dtype) for name, spec in body.tensors.items()}
    return replace(body, tensors=unranked)


STRATEGIES: dict[str, Strategy] = {"Fused": fused}
