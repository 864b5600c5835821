"""Texts about nodes that compute in float16, and why others do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ...graph.ir import Node
from ...graph.passes.half_operators import UPDATED, starts_half, updates
from ...graph.printing import counted
from ..plans.plan import Plan

LISTED_OPS = 6


def precision_lines(plan: Plan) -> Iterator[str]:
    """Yield what there is to say of precision: nothing where all is as the graph has it."""
    if not plan.request.precision:
        return
    devices = ", ".join(plan.request.precision)
    if plan.memory is None:
        yield f"  float16 is allowed on {devices}; where, is decided when shapes are known"
        return
    asked = plan.request.precision
    nodes = [node for node in plan.graph.nodes if plan.assignment[node.name] in asked]
    halved = [node for node in nodes if node.name in plan.request.halved]
    casts = sum(node.op == "Cast" for node in halved)
    yield (
        f"  in float16 on {devices}: {len(halved) - casts} of {counted(len(nodes) - casts, 'node')}"
        f", {counted(casts, 'conversion')}"
    )
    updated = updates(plan.graph)
    single = Counter(
        (node.op, UPDATED if node.name in updated else _reason(node))
        for node in nodes
        if _is_single(plan, node)
    )
    for (op, reason), count in single.most_common(LISTED_OPS):
        yield f"    {count} {op} in float32: {reason}"


def _is_single(plan: Plan, node: Node) -> bool:
    written = [plan.graph.tensors[name].dtype for name in node.outputs if name]
    return node.op != "Cast" and node.name not in plan.request.halved and np.float32 in written


def _reason(node: Node) -> str:
    if starts_half(node):
        return "the device does not compute it in float16, or a constant does not fit"
    if node.operator.float16.inputs:
        return "it reads nothing that is float16, or a constant does not fit"
    return node.operator.float16.reason
