"""Build passes from rules: of one node, a window of nodes, some nodes, or their order.

A pass is a function from a graph to a graph, and has the name of its rule. Results of rules are
checked; errors name the replaced nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ..core.check import check
from ..core.ir import Graph, Node
from ..core.nested import has_effects
from ..values.errors import GraphError
from .pipeline import Pass, name_of
from .rewriting import MayMerge, Rewriter, allow_any

ROUNDS = 10

NodeRule: TypeAlias = Callable[[Rewriter, Node], Sequence[Node] | None]
"""Returns the replacement of a node, or None."""

WindowRule: TypeAlias = Callable[[Rewriter, Sequence[Node]], Sequence[Node] | None]
"""Returns the replacement of consecutive nodes, or None."""

GraphRule: TypeAlias = Callable[[Graph], tuple[Sequence[Node], Sequence[Node]] | None]
"""Returns the nodes to remove and those to add, or None."""

OrderRule: TypeAlias = Callable[[Graph], Sequence[Node]]
"""Returns all nodes of a graph in a new order."""


def preprocess(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
    """Move nodes of `graph` that depend on constants alone first; `may_merge` is ignored."""
    static, early, late = set(graph.constants), [], []
    for node in graph.nodes:
        if has_effects(node) or not static.issuperset(filter(None, node.inputs)):
            late.append(node)
        else:
            early.append(node)
            static.update(node.outputs)
    return _replace_order(graph, (*early, *late))


def expander(rule: NodeRule) -> Pass:
    """Return the pass that applies `rule` once to each node, but not to its results."""

    def expand(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
        rewriter = Rewriter(graph, may_merge)
        for node in rewriter.find():
            if node in rewriter:  # may be gone, by an earlier replacement
                _exchange(rewriter, [node], rule(rewriter, node))
        return rewriter.result()

    return _name_pass(expand, rule)


def combiner(window: int, rule: WindowRule, rounds: int = ROUNDS) -> Pass:
    """Return the pass that slides a window over the nodes in order, until nothing changes.

    Parameters
    ----------
    window : int
        Nodes in the window.
    rule : callable
        Takes the `Rewriter` and the nodes in the window; returns their replacements, or None.
    rounds : int, optional
        Limit of sweeps over the graph.

    Raises
    ------
    GraphError
        At once if the window is empty; by the pass if the rule still matches after all rounds.
    """
    if window < 1:
        raise GraphError(f"a window of {window} nodes", fix="use one of at least one")

    def combine(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
        rewriter = Rewriter(graph, may_merge)
        for _ in range(rounds):
            if not _sweep(rewriter, window, rule):
                return rewriter.result()
        raise GraphError(
            f"the rule {name_of(rule)!r} still matches after {rounds} rounds",
            at=graph.name,
            fix="repair the rule: what it writes must not match; or allow more rounds",
        )

    return _name_pass(combine, rule)


def subgraph(rule: GraphRule) -> Pass:
    """Return the pass that replaces the nodes that `rule` selects, and sorts all topologically.

    Raises
    ------
    GraphError
        By the pass if the result has a cycle or lacks a tensor, or if effects would be lost.
    """

    def exchange(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
        found = rule(graph)
        if found is None:
            return graph
        old, new = found
        lost = [node for node in old if has_effects(node) and node not in new]
        if lost:
            raise GraphError(
                f"the rule {name_of(rule)!r} takes away what has effects",
                at=str(lost[0]),
                fix="repair the rule",
            )
        if not all(may_merge(graph, old, node) for node in new):
            return graph
        editor = graph.edit()
        for node in old:
            editor.remove(node.name)
        for node in new:
            editor.insert(node)
        return editor.result()

    return _name_pass(exchange, rule)


def schedule(rule: OrderRule) -> Pass:
    """Return the pass that puts the nodes in the order that `rule` returns.

    Raises
    ------
    GraphError
        By the pass if the nodes are not the same, or the order is not topological.
    """

    def reorder(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
        order = tuple(rule(graph))
        known = {node.name: node for node in graph.nodes}
        strange = [node for node in order if known.pop(node.name, None) != node]
        if strange or known:
            where = next(iter(strange or known.values()))
            raise GraphError(
                f"the rule {name_of(rule)!r} {'adds' if strange else 'leaves out'} a node",
                at=str(where),
                fix="return each node of the graph once",
            )
        return check(_replace_order(graph, order))

    return _name_pass(reorder, rule)


def _sweep(rewriter: Rewriter, window: int, rule: WindowRule) -> bool:
    nodes, start, changed = rewriter.find(), 0, False
    while start + window <= len(nodes):
        chosen = nodes[start : start + window]
        if _exchange(rewriter, chosen, rule(rewriter, chosen)):
            changed = True
            start += window
        else:
            start += 1
    return changed


def _exchange(rewriter: Rewriter, old: Sequence[Node], new: Sequence[Node] | None) -> bool:
    if new is None or not all(rewriter.may_merge(old, node) for node in new):
        return False
    rewriter.replace(old, new)
    return True


def _replace_order(graph: Graph, nodes: tuple[Node, ...]) -> Graph:
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _name_pass(made: Pass, rule: Callable[..., Any]) -> Pass:
    made.__name__ = name_of(rule)
    return made
