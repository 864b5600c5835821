"""Run passes in order, record their changes, and name a pass that breaks a graph.

A pass is a function ``(graph, may_merge) -> graph``; those of plait are in `PASSES`. Nested graphs
come first: branches of If, bodies of Loop and Scan, and graphs inside of them. A nested graph is
simplified for all inputs that its node may pass, which are more than its own specs say: shapes of
states may differ between iterations.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import update_wrapper
from typing import Any, Protocol, TypeAlias, TypeVar

from ..core.check import check
from ..core.ir import Graph, Node
from ..core.nested import call_graph, has_effects
from ..core.operator import find_operator
from ..core.traits import NO_TRAITS, Trait
from ..operators.control import CONTROL_FLOW, infer_nested_inputs
from ..values.errors import GraphError, ShapeError, join_lines
from ..values.registry import Registry
from .rewriting import MayMerge, Placing, Rewriter, allow_any, check_growth, count_size


@dataclass(frozen=True, slots=True)
class Applied:
    """The changes of a pass to a graph.

    Attributes
    ----------
    name : str
        Of the pass.
    before, after : int
        Number of nodes.
    rewritten : tuple of str
        Nodes of another operator or with other inputs, as ``"name: Mul -> HardSwish"``.
    added, removed : tuple of str
        Nodes.
    inside : str
        Path of the node that holds the graph; empty for the whole graph.
    """

    name: str
    before: int
    after: int
    rewritten: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    seconds: float
    inside: str = ""

    def __str__(self) -> str:
        counts = {
            "rewritten": len(self.rewritten),
            "added": len(self.added),
            "removed": len(self.removed),
        }
        listed = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        where = f" in {self.inside}" if self.inside else ""
        nodes = f"{self.before:,} -> {self.after:,} nodes"
        return join_lines([f"{self.name}{where}: {nodes} ({listed or 'constants'})"])

    def within(self, node: str) -> Applied:
        """Return these changes with names as paths inside of `node`."""
        rewritten, added, removed = (
            tuple(f"{node}/{name}" for name in names)
            for names in (self.rewritten, self.added, self.removed)
        )
        inside = f"{node}/{self.inside}" if self.inside else node
        return replace(self, rewritten=rewritten, added=added, removed=removed, inside=inside)


def compare_graphs(name: str, before: Graph, after: Graph, seconds: float) -> Applied:
    old, new = ({node.name: node for node in graph.nodes} for graph in (before, after))
    changed = ((old[n], node) for n, node in new.items() if n in old and old[n] is not node)
    rewritten = tuple(_describe_change(a, b) for a, b in changed if a != b)
    added = tuple(n for n in new if n not in old)
    removed = tuple(n for n in old if n not in new)
    counts = len(before.nodes), len(after.nodes)
    return Applied(name, *counts, rewritten, added, removed, seconds)


def _describe_change(a: Node, b: Node) -> str:
    return f"{a.name}: {a.op} -> {b.op}" if a.op != b.op else f"{a.name}: {a.op}"


Pass: TypeAlias = Callable[[Graph, MayMerge], Graph]

Rewrite: TypeAlias = Callable[[Rewriter], None]


class RewritingPass(Protocol):
    """A `Pass` with a `Rewriter`: `may_merge` can refuse its changes."""

    def __call__(self, graph: Graph, may_merge: MayMerge = allow_any) -> Graph: ...


ROUNDS = 4
"""Limit of repetitions, as long as a pass changes the graph."""

CHECKED = "PLAIT_CHECK_PASSES"
"""The environment variable that requests a check of the graph after each pass."""

_anchors: dict[Pass, tuple[frozenset[str], Trait]] = {}

P = TypeVar("P", bound=Pass)


def gate(*ops: str, trait: Trait = NO_TRAITS) -> Callable[[P], P]:
    """Declare that a pass acts only on graphs with an operator of `ops` or with `trait`."""

    def decorate(one: P) -> P:
        _anchors[one] = frozenset(ops), trait
        return one

    return decorate


def make_pass(*ops: str, trait: Trait = NO_TRAITS) -> Callable[[Rewrite], RewritingPass]:
    """Make a pass, with the `gate` of these arguments, that rewrites a graph by one `Rewriter`."""

    def decorate(rewrite: Rewrite) -> RewritingPass:
        def run(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
            rewriter = Rewriter(graph, may_merge)
            rewrite(rewriter)
            return rewriter.result()

        del update_wrapper(run, rewrite).__wrapped__  # which has another signature
        return gate(*ops, trait=trait)(run)

    return decorate


def run_passes(
    graph: Graph,
    passes: Sequence[Pass],
    may_merge: MayMerge = allow_any,
    *,
    checked: bool | None = None,
) -> tuple[Graph, tuple[Applied, ...]]:
    """Run `passes` on `graph`; return it with the changes of each pass that made some.

    Passes repeat as long as one changes the graph, at most `ROUNDS` times; first in nested graphs.
    With `checked`, or ``PLAIT_CHECK_PASSES=1``, the graph is checked after each. `may_merge` can
    refuse changes.

    Raises
    ------
    GraphError
        If a pass broke the graph: the message names it.
    """
    strict = bool(os.environ.get(CHECKED)) if checked is None else checked

    def simplify(nested: Graph, rule: MayMerge) -> tuple[Graph, tuple[Applied, ...]]:
        return run_passes(nested, passes, rule, checked=strict)

    # Nested graphs first: a simpler branch may let the node around it be replaced.
    graph, inner = simplify_inside(graph, may_merge, simplify)
    done = list(inner)
    ops = _list_ops(graph)
    for _ in range(ROUNDS):
        start = graph
        for one in passes:
            if _may_act(one, ops):
                before, graph = graph, _run(graph, one, may_merge, done, strict)
                ops = ops if graph is before else _list_ops(graph)
        # Identity, since passes return the given graph if they change nothing.
        if graph is start:
            break
    return graph, tuple(done)


def _may_act(one: Pass, ops: frozenset[str]) -> bool:
    # Users' passes declare no operators.
    if one not in _anchors:
        return bool(ops)
    named, trait = _anchors[one]
    if not named.isdisjoint(ops):
        return True
    return bool(trait) and any(trait in find_operator(op).traits for op in ops)


def _list_ops(graph: Graph) -> frozenset[str]:
    return frozenset(node.op for node in graph.nodes)


def name_of(one: Callable[..., Any]) -> str:
    return getattr(one, "__name__", type(one).__name__)


def _run(graph: Graph, one: Pass, may_merge: MayMerge, done: list[Applied], strict: bool) -> Graph:
    start = time.perf_counter()
    after = one(graph, may_merge)
    if after is graph:
        return graph
    # A rule that matches its own results would fill memory before any check of the graph.
    check_growth(
        count_size(graph.nodes), count_size(after.nodes), f"pass {name_of(one)!r}, {graph.name}"
    )
    done.append(compare_graphs(name_of(one), graph, after, time.perf_counter() - start))
    if strict:
        _check(graph, after, name_of(one))
    return after


def _check(before: Graph, after: Graph, name: str) -> None:
    try:
        check(after)
    except GraphError as error:
        raise GraphError(
            f"the pass {name!r} broke the graph: {error.what}", at=error.at, fix=error.fix
        ) from error
    effects = [{n.name for n in graph.nodes if has_effects(n)} for graph in (before, after)]
    if effects[0] != effects[1]:
        lost = ", ".join(sorted(effects[0] ^ effects[1]))
        raise _broken_pass_error(name, f"nodes with effects came or went: {lost}", after)
    # Their order counts, too.
    for what in ("inputs", "outputs"):
        if getattr(before, what) != getattr(after, what):
            raise _broken_pass_error(name, f"the {what} are others now", after)
    for tensor in (*before.inputs, *before.outputs):
        was, now = before.tensors[tensor], after.tensors[tensor]
        # A shape may become known, but a known one must not change.
        if was.dtype != now.dtype or (was != now and was.is_static and now.is_static):
            raise _broken_pass_error(name, f"{tensor!r} was {was}, and is {now} now", after)


def _broken_pass_error(name: str, what: str, graph: Graph) -> GraphError:
    return GraphError(
        f"the pass {name!r} broke the graph: {what}", at=graph.name, fix="repair the pass"
    )


def select(
    passes: Sequence[Pass | str], all_passes: Sequence[Pass], optional: Sequence[Pass] = ()
) -> tuple[Pass, ...]:
    """Resolve `passes` to functions, in order.

    A name stands for plait's pass; with ``-`` before it, that pass is left out; with ``+``, it runs
    before the others: those listed, or `all_passes` except the `optional` ones if none is listed.
    Raises GraphError if a name is unknown.
    """
    by_name: Registry[str, Pass] = Registry()
    for known in (*all_passes, *optional):
        by_name.register(name_of(known), known)
    added: list[Pass] = []
    listed: list[Pass] = []
    left_out: set[Pass] = set()
    for one in passes:
        if not isinstance(one, str):
            listed.append(one)
        elif one.startswith("-"):
            left_out.add(_find(one[1:], by_name))
        elif one.startswith("+"):
            added.append(_find(one[1:], by_name))
        else:
            listed.append(_find(one, by_name))
    base = all_passes if (left_out or added) and not listed else listed
    # Passes that were added do not run again in their usual place.
    rest = (one for one in base if one not in left_out and one not in added)
    return (*added, *rest)


def _find(name: str, by_name: Registry[str, Pass]) -> Pass:
    found = by_name.find(name)
    if found is None:
        raise by_name.unknown_error("pass", name)
    return found


Simplify = Callable[[Graph, MayMerge], tuple[Graph, Sequence[Applied]]]


def simplify_inside(
    graph: Graph, may_merge: MayMerge, simplify: Simplify
) -> tuple[Graph, tuple[Applied, ...]]:
    """Apply `simplify` with `may_merge` to graphs in control flow of `graph`; return changes."""
    done: list[Applied] = []
    nodes = list(graph.nodes)
    for index, node in enumerate(nodes):
        if node.op not in CONTROL_FLOW:
            continue
        made: dict[str, Graph] = {}
        for key, nested in node.attributes.items():
            if not isinstance(nested, Graph):
                continue
            try:
                simple, applied = simplify(
                    _specialize_nested(graph, node, nested), _make_inner_rule(node.name, may_merge)
                )
            except ShapeError:  # a branch that never runs may be invalid: it stays
                continue
            if applied:
                made[key] = simple
                done += (one.within(node.name) for one in applied)
        if made:
            nodes[index] = replace(node, attributes={**node.attributes, **made})
    return (replace(graph, nodes=tuple(nodes)) if done else graph), tuple(done)


def _specialize_nested(graph: Graph, node: Node, nested: Graph) -> Graph:
    results = [graph.tensors.get(name) for name in node.outputs]
    return call_graph(nested, infer_nested_inputs(node.op, graph.call(node), results))


def _make_inner_rule(path: str, may_merge: MayMerge) -> MayMerge:
    """Return `may_merge` for nodes inside of the node `path`; pins name them by their paths."""
    inside = _Inside(path, may_merge)
    return _PlacingInside(path, may_merge) if isinstance(may_merge, Placing) else inside


class _Inside:
    def __init__(self, path: str, may_merge: MayMerge) -> None:
        self._path = path
        self._may_merge = may_merge

    def __call__(self, graph: Graph, nodes: Sequence[Node], one: Node) -> bool:
        return self._may_merge(graph, [self._named(node) for node in nodes], self._named(one))

    def _named(self, node: Node) -> Node:
        return replace(node, name=f"{self._path}/{node.name}") if node.name else node


class _PlacingInside(_Inside):
    def __init__(self, path: str, placing: Placing) -> None:
        super().__init__(path, placing.inside())
        self._placing = placing

    def why_not(self, graph: Graph, node: Node) -> str | None:
        return self._placing.why_not(graph, self._named(node))

    def inside(self) -> Placing:
        """Return the rule itself, which already is for nested graphs."""
        return self


@gate()
def fuse_chains(graph: Graph, may_merge: MayMerge) -> Graph:
    """Return `graph` unchanged: f(g(x)) is fused later, on the devices that want it."""
    return graph
