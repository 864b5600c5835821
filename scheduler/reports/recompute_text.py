"""Texts about tensors that are computed again for gradients rather than kept."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.gradients.recomputation import is_again
from ...graph.infer import cost_of
from ...graph.ir import Graph, Node
from ...graph.printing import bytes_text, counted, seconds_text
from ..plans.plan import Plan
from .plain import flops_of


def again_lines(plan: Plan) -> Iterator[str]:
    """Yield what recomputation costs, and what need not be kept for it: nothing without any."""
    graph = plan.graph
    nodes = [node for node in graph.nodes if is_again(node)]
    if not nodes:
        return
    line = f"  computed again for gradients: {counted(len(nodes), 'node')}"
    total = flops_of(graph)
    if total is None:
        yield line
        return
    flops = sum(cost_of(graph, node).flops for node in nodes)
    seconds = sum(plan.costs.node_s(plan.assignment[n.name], graph, n) for n in nodes)
    nbytes = sum(_handed_nbytes(graph, node) for node in nodes)
    yield (
        f"{line}, {flops / 1e6:.3f} of {total / 1e6:.3f} Mflop, "
        f"predicted {seconds_text(seconds)}; {bytes_text(nbytes)} are not kept until then"
    )


def _handed_nbytes(graph: Graph, node: Node) -> int:
    """Return the bytes of what a node writes for gradients to read, not for other copies."""
    views = {output for output, _ in node.operator.views}
    return sum(
        graph.tensors[tensor].nbytes
        for index, tensor in enumerate(node.outputs)
        if tensor and index not in views
        if not all(map(is_again, graph.consumers[tensor]))
    )
