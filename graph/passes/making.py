"""Passes made of a rule: one node at a time, a window of them, some nodes, or their order.

Each returns a pass: a function from a graph to a graph, called as its rule is. What a rule returns
is checked; the nodes that it takes away are named where it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ..check import check
from ..errors import GraphError
from ..ir import Graph, Node
from ..nested import has_effects
from .merging import MayMerge, always
from .pipeline import Pass
from .rewriting import Rewriter

ROUNDS = 10

NodeRule: TypeAlias = Callable[[Rewriter, Node], Sequence[Node] | None]
"""Returns what stands in the place of a node, None where it stays."""

WindowRule: TypeAlias = Callable[[Rewriter, Sequence[Node]], Sequence[Node] | None]
"""Returns what stands in the place of some nodes in a row, None where they stay."""

GraphRule: TypeAlias = Callable[[Graph], tuple[Sequence[Node], Sequence[Node]] | None]
"""Returns nodes that go and nodes that come, None where nothing changes."""

OrderRule: TypeAlias = Callable[[Graph], Sequence[Node]]
"""Returns all nodes of a graph in another order."""


def preprocess(graph: Graph, may_merge: MayMerge = always) -> Graph:
    """Nodes -> the same ones, those that follow from constants alone before all others."""
    static, early, late = set(graph.constants), [], []
    for node in graph.nodes:
        if has_effects(node) or not static.issuperset(filter(None, node.inputs)):
            late.append(node)
        else:
            early.append(node)
            static.update(node.outputs)
    return _ordered(graph, (*early, *late))


def expander(rule: NodeRule) -> Pass:
    """Return the pass that asks a rule once about each node.

    What the rule writes is not asked about again.
    """

    def expand(graph: Graph, may_merge: MayMerge = always) -> Graph:
        rewriter = Rewriter(graph, may_merge)
        for node in rewriter.find():
            if node in rewriter:  # others may have taken it away
                _exchange(rewriter, [node], rule(rewriter, node))
        return rewriter.result()

    return _named(expand, rule)


def combiner(window: int, rule: WindowRule, rounds: int = ROUNDS) -> Pass:
    """Return the pass that slides a window over the nodes in their order, until nothing changes.

    Parameters
    ----------
    window : int
        How many nodes stand in it.
    rule : callable
    rounds : int
        How often the whole graph is gone through at most.

    Raises
    ------
    GraphError
        By this function if the window is empty; by the pass if the rule still matches after all
        rounds.
    """
    if window < 1:
        raise GraphError(f"a window of {window} nodes", fix="use one of at least one")

    def combine(graph: Graph, may_merge: MayMerge = always) -> Graph:
        rewriter = Rewriter(graph, may_merge)
        for _ in range(rounds):
            if not _slide(rewriter, window, rule):
                return rewriter.result()
        raise GraphError(
            f"the rule {_name(rule)!r} still matches after {rounds} rounds",
            at=graph.name,
            fix="repair the rule: what it writes must not match; or allow more rounds",
        )

    return _named(combine, rule)


def subgraph(rule: GraphRule) -> Pass:
    """Return the pass that takes some nodes away, adds others, and puts all in order again.

    Raises
    ------
    GraphError
        By the pass if nodes would wait for each other, or something would be missing.
    """

    def exchange(graph: Graph, may_merge: MayMerge = always) -> Graph:
        found = rule(graph)
        if found is None:
            return graph
        old, new = found
        lost = [node for node in old if has_effects(node) and node not in new]
        if lost:
            raise GraphError(
                f"the rule {_name(rule)!r} takes away what has effects",
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

    return _named(exchange, rule)


def schedule(rule: OrderRule) -> Pass:
    """Return the pass that puts the nodes in another order.

    Raises
    ------
    GraphError
        By the pass if that is not the same nodes, or not a topological order.
    """

    def reorder(graph: Graph, may_merge: MayMerge = always) -> Graph:
        order = tuple(rule(graph))
        known = {node.name: node for node in graph.nodes}
        strange = [node for node in order if known.pop(node.name, None) != node]
        if strange or known:
            where = next(iter(strange or known.values()))
            raise GraphError(
                f"the rule {_name(rule)!r} {'adds' if strange else 'leaves out'} a node",
                at=str(where),
                fix="return each node of the graph once",
            )
        return check(_ordered(graph, order))

    return _named(reorder, rule)


def _slide(rewriter: Rewriter, window: int, rule: WindowRule) -> bool:
    """Go once over the nodes; return whether anything was replaced."""
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


def _ordered(graph: Graph, nodes: tuple[Node, ...]) -> Graph:
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _named(made: Pass, rule: Callable[..., Any]) -> Pass:
    made.__name__ = _name(rule)
    return made


def _name(rule: Callable[..., Any]) -> str:
    return getattr(rule, "__name__", type(rule).__name__)
