"""Texts about nodes that own something while a plan is open."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.ir import Node
from ...graph.nested import all_nodes
from ...graph.operator_lifecycle import HOOKS, has_life
from ...graph.printing import counted
from ..plans.plan import Plan

LISTED_NODES = 4


def life_lines(plan: Plan) -> Iterator[str]:
    """Yield what is opened and closed with the plan: nothing where no node is of a class."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for path, _, node in all_nodes(plan.graph):
        if has_life(node.operator):
            place = plan.assignment.get(path, "the device that runs it")
            found.setdefault((node.op, place, _hooks(node)), []).append(repr(path))
    if not found:
        return
    count = sum(map(len, found.values()))
    each = f", on each of {plan.variants} variants" if plan.variants > 1 else ""
    yield f"owned from opening to closing: {counted(count, 'instance')}, one for a node{each}"
    for (op, place, hooks), names in found.items():
        more = ", ..." if len(names) > LISTED_NODES else ""
        listed = ", ".join(names[:LISTED_NODES]) + more
        yield f"  {len(names)} {op} on {place}, with {hooks}: {listed}"


def _hooks(node: Node) -> str:
    """Return the hooks that a node's class has, in the order in which they are called."""
    hooks = [hook for hook in HOOKS if hasattr(node.operator.function, hook)]
    return ", ".join([*hooks[:-1], "run", *hooks[-1:]] if "close" in hooks else [*hooks, "run"])
