"""Nodes that run in the order of items: they have effects, or keep state between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ..core.ir import Node
from ..core.nested import list_graphs, walk_nodes
from ..core.operator import Operator
from ..functions.function_state import find_state
from .each import EACH

CALLS = "_plait_calls"
"""An attribute of plait's functions: the user's functions that they call."""

_found: WeakKeyDictionary[Callable[..., Any], str] = WeakKeyDictionary()


def is_ordered(operator: Operator) -> bool:
    """Return whether the calls of `operator`, a Python function, follow the order of the items."""
    if operator.function is None:
        return False
    if operator.ordered is not None:
        return operator.ordered
    if operator.is_async:  # concurrent unless the user declares otherwise
        return operator.effects and operator.concurrency == 1
    return operator.effects or bool(find_kept(operator))


def find_kept(operator: Operator) -> str:
    """Return the variable in which the function of `operator` seems to keep state; "" if none."""
    function = operator.function
    if function is None or operator.owns or operator.is_async:
        return ""
    if function not in _found:
        targets = getattr(function, CALLS, (function,))
        _found[function] = next(filter(None, map(find_state, targets)), "")
    return _found[function]


def explain_order(operator: Operator) -> str:
    if operator.ordered:
        return "as declared"
    kept = find_kept(operator)
    return f"it keeps state in {kept!r}" if kept else "it has effects"


def find_order(node: Node) -> tuple[str, ...]:
    """Return the ordered operators that `node` calls, nested ones included."""
    if node.op == EACH:  # rows of several items run together
        return ()
    found = [node.op] if is_ordered(node.operator) else []
    for graph in list_graphs(node):
        found += [inner.op for _, _, inner in walk_nodes(graph) if is_ordered(inner.operator)]
    return tuple(dict.fromkeys(found))
