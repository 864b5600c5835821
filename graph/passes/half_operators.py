"""Nodes that compute in float16 where that is allowed, as their operators state.

What starts it are products: there half the bytes and faster units pay. What follows them keeps to
float16 while it only moves numbers, or adds and multiplies a few of them.
"""

from __future__ import annotations

import numpy as np

from ..ir import ASSIGN, Graph, Node
from ..tensor import Array
from ..traits import IN_SUMS, PRODUCT

UPDATED = "small steps are lost beside weights, and the squares of small gradients are 0"
"""Why what becomes a variable's next value is float32."""

_LEAST, _MOST = (float(number) for number in (np.finfo(np.float16).tiny, np.finfo(np.float16).max))


def halved_inputs(node: Node) -> range:
    """Return which inputs of a node become float16 with it; none where it may not."""
    if node.attributes.get("training_mode"):
        return range(0)
    return node.operator.float16.inputs


def starts_half(node: Node) -> bool:
    """True for products that compute in float16: half the bytes and faster units pay there."""
    return PRODUCT in node.operator.traits and bool(halved_inputs(node))


def updates(graph: Graph) -> frozenset[str]:
    """Return the names of the nodes that lead from products, or sums, to what is assigned.

    So weights stay float32, as Micikevicius et al., *Mixed Precision Training* (2018), have it.
    """
    wanted, found = set[str](), set[str]()
    for node in reversed(graph.nodes):
        leads = node.op == ASSIGN or not wanted.isdisjoint(node.outputs)
        if leads and not starts_half(node) and node.operator.float16 != IN_SUMS:
            found.add(node.name)
            wanted.update(filter(None, node.inputs))
    return frozenset(found)


def fits(constant: Array) -> bool:
    """True for a constant that is not 0, nor infinite, in float16 unless it is so already.

    Small numbers beside larger ones may vanish.
    """
    sizes = np.abs(constant[np.isfinite(constant)])
    most = float(sizes.max(initial=0.0))
    return most <= _MOST and (most >= _LEAST or most == 0)
