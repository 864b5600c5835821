"""Select the nodes that compute in float16 where that is allowed, as their operators state.

Products start it: they gain from half the bytes and from faster units. Nodes after them stay in
float16 while they only move numbers, or add and multiply a few of them.
"""

from __future__ import annotations

import numpy as np

from ..core.ir import ASSIGN, Graph, Node
from ..core.traits import IN_SUMS, PRODUCT
from ..values.tensor import Array

UPDATED = "small steps are lost beside weights, and the squares of small gradients are 0"
"""The reason why the next values of variables are float32."""

_LEAST, _MOST = (float(number) for number in (np.finfo(np.float16).tiny, np.finfo(np.float16).max))


def get_half_inputs(node: Node) -> range:
    if node.attributes.get("training_mode"):
        return range(0)
    return node.operator.float16.inputs


def is_half_product(node: Node) -> bool:
    return PRODUCT in node.operator.traits and bool(get_half_inputs(node))


def find_updates(graph: Graph) -> frozenset[str]:
    """Return the names of the nodes of `graph` from products, or sums, to assignments.

    Weights stay float32, as in Micikevicius et al., *Mixed Precision Training* (2018).
    """
    wanted, found = set[str](), set[str]()
    for node in reversed(graph.nodes):
        leads = node.op == ASSIGN or not wanted.isdisjoint(node.outputs)
        if leads and not is_half_product(node) and node.operator.float16 != IN_SUMS:
            found.add(node.name)
            wanted.update(filter(None, node.inputs))
    return frozenset(found)


def fits(constant: Array) -> bool:
    """Return whether the largest number in `constant` neither overflows nor underflows in float16.

    Small numbers among larger ones may vanish.
    """
    sizes = np.abs(constant[np.isfinite(constant)])
    most = float(sizes.max(initial=0.0))
    return most <= _MOST and (most >= _LEAST or most == 0)
