"""Operators that no device has, written out in simpler ones that some device has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from ..decompositions import Decomposition, decomposed, decompositions
from ..errors import ShapeError
from ..infer import asking
from ..ir import Graph, Node
from ..nested import has_effects
from .merging import MayMerge, Placing, always
from .rewriting import Rewriter

WhyNot: TypeAlias = Callable[[Graph, Node], str | None]
"""Says why a node of a graph can run nowhere; None where it can."""

DEEPEST = 4
"""How often what was written out is written out again: HardSwish, HardSigmoid, Max, ..."""


def expand_unsupported(graph: Graph, may_merge: MayMerge = always) -> Graph:
    """A node that no device can run -> simpler nodes that some device can, each of them.

    By the rules of `plait.graph.decompositions`, the first whose nodes can all run. Where none is,
    the node stays, and the error that follows says what was tried.
    """
    if not isinstance(may_merge, Placing):
        return graph
    rewriter = Rewriter(graph, may_merge)
    for node in rewriter.find(*decompositions()):
        if may_merge.why_not(rewriter.view, node) is None:
            continue
        made = written_out(rewriter, node, may_merge.why_not)
        if made is not None:
            rewriter.replace([node], made)
    return rewriter.result()


def written_out(rewriter: Rewriter, node: Node, why_not: WhyNot) -> list[Node] | None:
    """Return nodes that can all run in place of one that cannot; None where no rule has such.

    They are not in the rewriter's graph; the tensors and constants that they need are.
    """
    return None if has_effects(node) else _written_out(rewriter, node, why_not, DEEPEST)


def can_be_written_out(graph: Graph, node: Node, why_not: WhyNot) -> bool:
    """Say whether nodes that can all run could stand in place of one, which need not be there."""
    if node.op not in decompositions():
        return False
    read, written = dict.fromkeys(filter(None, node.inputs)), tuple(filter(None, node.outputs))
    constants = {name: graph.constants[name] for name in read if name in graph.constants}
    inputs = tuple(name for name in read if name not in constants)
    tensors = {name: graph.tensors[name] for name in (*read, *written)}
    alone = Graph(graph.name, inputs, written, (node,), tensors, constants)
    return written_out(Rewriter(alone), node, why_not) is not None


def attempts(graph: Graph, node: Node, why_not: WhyNot) -> Iterator[str]:
    """Yield what a node could be written out as, and what speaks against it."""
    rewriter = Rewriter(graph)
    for rule in decompositions().get(node.op, ()):
        made = _decomposed(rewriter, node, rule)
        if made is None:
            continue
        listed = ", ".join(dict.fromkeys(one.op for one in made))
        lacking = (
            (one, why)
            for one in made
            if _written_out(rewriter, one, why_not, DEEPEST - 1, rule) is None
            and (why := why_not(rewriter.view, one)) is not None
        )
        found = next(lacking, None)
        yield f"written out as {listed}: " + (
            f"{found[0].op}: {found[1]}" if found else "the pass expand_unsupported is left out"
        )


def _decomposed(rewriter: Rewriter, node: Node, rule: Decomposition) -> list[Node] | None:
    """Return what a rule writes for a node; None if it says nothing, or writes what does not fit.

    A kernel may take more than the simpler operators do, such as zero points of another shape.
    """
    try:
        with asking(node, rewriter.call(node)):
            return decomposed(rewriter, node, rule)
    except ShapeError:
        return None


def _written_out(
    rewriter: Rewriter, node: Node, why_not: WhyNot, depth: int, *used: Decomposition
) -> list[Node] | None:
    """Return nodes that can all run in place of one: itself, if it can."""
    if why_not(rewriter.view, node) is None:
        return [node]
    if not depth:
        return None
    for rule in decompositions().get(node.op, ()):
        if rule in used:
            continue
        made = _decomposed(rewriter, node, rule)
        parts: list[Node] = []
        for one in made or ():
            found = _written_out(rewriter, one, why_not, depth - 1, *used, rule)
            if found is None:
                break
            parts += found
        else:
            if made:
                return parts
    return None
