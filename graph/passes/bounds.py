"""Merge the bounds of consecutive nodes that clip values."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..core.ir import Node
from .pipeline import make_pass
from .rewriting import Rewriter

_BOUNDING = ("Clip", "Max", "Min", "Relu")


class Bounds(NamedTuple):
    """A node that clips `source` to at least `low` and at most `high`."""

    source: str
    low: float
    high: float


@make_pass("Clip", "Max", "Min")
def merge_bounds(rewriter: Rewriter) -> None:
    """Merge consecutive Clip, Relu, Max and Min with numbers into one Clip or Relu.

    Max(x, 0) and Clip(x, 0, ∞) are Relu. The tensors between may have no other reader. The sign of
    a zero result is left open, as it is in Max.
    """
    for name in [node.name for node in rewriter.graph.nodes if node.op in _BOUNDING]:
        _merge(rewriter, rewriter.node(name))


def read_bounds(rewriter: Rewriter, node: Node | None) -> Bounds | None:
    if node is None or node.op not in _BOUNDING:
        return None
    source, *given = node.inputs
    if node.op == "Relu":
        return Bounds(source, 0, math.inf)
    if node.op != "Clip":
        if len(node.inputs) != 2:
            return None
        if source in rewriter.constants:
            source, given = given[0], [source]
        given = given if node.op == "Max" else ["", *given]
    found = [-math.inf, math.inf]
    for index, name in enumerate(given):
        if name:
            value = rewriter.constants.get(name)
            if value is None or value.size != 1 or name in rewriter.graph.precisions:
                return None
            found[index] = value.item()
    spec = rewriter.tensors[source]
    same = spec == rewriter.tensors[node.outputs[0]] and (
        spec.shape is not None or node.op == "Clip"
    )
    return Bounds(source, *found) if same and found[0] <= found[1] else None


def _merge(rewriter: Rewriter, node: Node) -> None:
    outer = read_bounds(rewriter, node)
    if outer is None or outer.source in rewriter.constants:
        return
    writer = rewriter.producer(outer.source)
    inner = read_bounds(rewriter, writer) if rewriter.is_private(outer.source) else None
    nodes = [node]
    if inner is not None and writer is not None and rewriter.may_merge([writer, node], node):
        low, high = (min(max(bound, outer.low), outer.high) for bound in inner[1:])
        outer, nodes = Bounds(inner.source, low, high), [writer, node]
    is_relu = outer.low == 0 and outer.high == math.inf
    if is_relu and rewriter.tensors[outer.source].dtype.kind not in "if":
        return
    if len(nodes) == 1 and (node.op == "Relu" or not is_relu):
        return
    made = _make_relu(rewriter, node, outer) if is_relu else _clip(rewriter, node, outer)
    if rewriter.may_merge(nodes, made):
        rewriter.replace(nodes, [made])


def _make_relu(rewriter: Rewriter, node: Node, bounds: Bounds) -> Node:
    return rewriter.make("Relu", (bounds.source,), node.outputs, name=node.name)


def _clip(rewriter: Rewriter, node: Node, bounds: Bounds) -> Node:
    dtype = rewriter.tensors[bounds.source].dtype
    names = [
        ""
        if math.isinf(bound)
        else rewriter.constant(np.array(bound, dtype), f"{node.name}.{what}")
        for what, bound in (("low", bounds.low), ("high", bounds.high))
    ]
    return rewriter.make("Clip", (bounds.source, *names), node.outputs, name=node.name)
