"""Decompose operators that no device has into simpler ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from ..core.infer import asking
from ..core.ir import Graph, Node
from ..core.nested import has_effects, list_graphs
from ..decompositions.rules import Decomposition, decompose, decompositions
from ..operators.control import waits
from ..values.errors import ShapeError
from .rewriting import MayMerge, Placing, Rewriter, allow_any

WhyNot: TypeAlias = Callable[[Graph, Node], str | None]
"""Returns why no device can run a node of a graph, or None."""

DEEPEST = 4
"""Limit for nested decompositions: HardSwish, HardSigmoid, Max, ..."""


def expand_unsupported(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
    """Replace each node that no device can run by simpler ones that some devices can run.

    The first rule of `plait.graph.decompositions` applies that leads to supported nodes alone.
    Without such a rule the node stays; the planner's error lists the attempts. Only a `Placing`
    knows the devices: with any other `may_merge`, all nodes stay.
    """
    if not isinstance(may_merge, Placing):
        return graph
    rewriter = Rewriter(graph, may_merge)
    for node in rewriter.find(*decompositions()):
        if may_merge.why_not(rewriter.view, node) is None:
            continue
        made = expand_node(rewriter, node, partial(_explain_refusal, may_merge.why_not))
        if made is not None:
            rewriter.replace([node], made)
    return rewriter.result()


def _explain_refusal(why_not: WhyNot, graph: Graph, node: Node) -> str | None:
    if not waits(node):
        return why_not(graph, node)
    inner = ((one, each) for one in list_graphs(node) for each in one.nodes)
    return next(filter(None, (_explain_refusal(why_not, *pair) for pair in inner)), None)


def expand_node(rewriter: Rewriter, node: Node, why_not: WhyNot) -> list[Node] | None:
    """Return nodes that can replace `node` in `rewriter` and that `why_not` accepts, or None.

    Their tensors and constants are added to the rewriter's graph, the nodes are not.
    """
    return None if has_effects(node) else _write_out(rewriter, node, why_not, DEEPEST)


def can_be_written_out(graph: Graph, node: Node, why_not: WhyNot) -> bool:
    """Return whether nodes that `why_not` accepts could replace `node`, which `graph` may lack."""
    if node.op not in decompositions():
        return False
    alone = graph.select([node], filter(None, node.outputs))
    return expand_node(Rewriter(alone), node, why_not) is not None


def describe_attempts(graph: Graph, node: Node, why_not: WhyNot) -> Iterator[str]:
    rewriter = Rewriter(graph)
    for rule in decompositions().get(node.op, ()):
        made = _decompose(rewriter, node, rule)
        if made is None:
            continue
        listed = ", ".join(dict.fromkeys(one.op for one in made))
        lacking = (
            (one, why)
            for one in made
            if _write_out(rewriter, one, why_not, DEEPEST - 1, rule) is None
            and (why := why_not(rewriter.view, one)) is not None
        )
        found = next(lacking, None)
        yield f"written out as {listed}: " + (
            f"{found[0].op}: {found[1]}" if found else "the pass expand_unsupported is left out"
        )


def _decompose(rewriter: Rewriter, node: Node, rule: Decomposition) -> list[Node] | None:
    """Apply `rule` to `node` in `rewriter`; return None if that fails or makes invalid nodes.

    Kernels may accept more than the simpler operators, such as zero points of another shape.
    """
    try:
        with asking(node, rewriter.call(node)):
            return decompose(rewriter, node, rule)
    except ShapeError:
        return None


def _write_out(
    rewriter: Rewriter, node: Node, why_not: WhyNot, depth: int, *used: Decomposition
) -> list[Node] | None:
    """Return nodes that `why_not` accepts and that compute `node` in `rewriter`, or None.

    At most `depth` rules follow one another, and none that is already `used`.
    """
    if why_not(rewriter.view, node) is None:
        return [node]
    if not depth:
        return None
    for rule in decompositions().get(node.op, ()):
        if rule in used:
            continue
        made = _decompose(rewriter, node, rule)
        parts: list[Node] = []
        for one in made or ():
            found = _write_out(rewriter, one, why_not, depth - 1, *used, rule)
            if found is None:
                break
            parts += found
        else:
            if made:
                return parts
    return None
