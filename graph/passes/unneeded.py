"""Remove dead nodes, and merge duplicates of nodes and constants."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.attribute import LongTuple
from ..core.ir import Graph, Node, find_needed
from ..core.nested import draws, has_effects, list_graphs
from ..core.traits import COMMUTATIVE
from .constants import ConstantPool
from .rewriting import MayMerge, Rewriter, allow_any


def remove_dead(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
    """Remove nodes of `graph` that no output and no effect needs; `may_merge` is ignored."""
    kept = [*find_needed(graph.outputs, graph.nodes, has_effects)]
    return graph if len(kept) == len(graph.nodes) else graph.with_nodes(kept[::-1])


def dead_nodes(graph: Graph) -> dict[str, str]:
    """Return the reason for each dead node of `graph`, by name: no output and no effect needs it.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("half_used")
    >>> x = b.input("x", "float32", (4,))
    >>> left = b.op("Exp", b.op("Neg", x, name="neg", outputs=["a"])[0], name="exp", outputs=["b"])
    >>> b.output("y", b.op("Relu", x))
    >>> dead_nodes(b.build())
    {'neg': "'a' is only read by 'exp', which is dead", 'exp': "nothing reads 'b'"}
    """
    live = {node.name for node in find_needed(graph.outputs, graph.nodes, has_effects)}
    return {node.name: _explain_dead(graph, node) for node in graph.nodes if node.name not in live}


def _explain_dead(graph: Graph, node: Node) -> str:
    written = [name for name in node.outputs if name]
    tensors = ", ".join(map(repr, written)) or "what it writes"
    readers = dict.fromkeys(reader.name for name in written for reader in graph.consumers[name])
    if not readers:
        return f"nothing reads {tensors}"
    one, few = ("is" if len(names) == 1 else "are" for names in (written, readers))
    return f"{tensors} {one} only read by {', '.join(map(repr, readers))}, which {few} dead"


_PLAIN = frozenset({bool, int, str})


def share_constants(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
    """Share constants of `graph` that have the same dtype, shape, bits and declared precision.

    Constants that are fetched stay, for their names are public. `may_merge` is ignored.
    """
    pool = ConstantPool({}, graph.precisions)
    to: dict[str, str] = {}
    for name, value in graph.constants.items():
        if (known := pool.add(name, value)) != name and name not in graph.fetched:
            to[name] = known
    if not to:
        return graph
    nodes = [_rename_inputs(node, to) for node in graph.nodes]
    return graph.with_nodes(nodes)


def merge_common(graph: Graph, may_merge: MayMerge = allow_any) -> Graph:
    """Merge nodes of `graph` that have the same operator, inputs and attributes into one.

    Inputs that commute may be in either order. Nodes with effects, Python functions (which may know
    more than their inputs) and nodes with nested graphs stay; so do two nodes with fetched outputs.
    `may_merge` can refuse a change.
    """
    rewriter = Rewriter(graph, may_merge)
    first: dict[Hashable, list[str]] = {}
    for name in [node.name for node in graph.nodes]:
        node = rewriter.node(name)
        if not _is_pure(node):
            continue
        # Only candidates are compared: thousands of nodes may read the same tensor.
        alike = first.setdefault((node.op, _make_key(node)), [])
        merges = any(_merge(rewriter, rewriter.node(earlier), node) for earlier in alike)
        # If two stay since both are fetched, later ones need be compared with one of them.
        if not merges and not any(_is_met(rewriter, rewriter.node(one), node) for one in alike):
            alike.append(name)
    return rewriter.result()


def _merge(rewriter: Rewriter, earlier: Node, node: Node) -> bool:
    to = {b: a for a, b in zip(earlier.outputs, node.outputs, strict=True) if a and b}
    return rewriter.may_merge([earlier, node], earlier) and rewriter.bypass(node, to)


def _is_met(rewriter: Rewriter, earlier: Node, node: Node) -> bool:
    """Return whether every node that could merge with `node` could merge with `earlier`."""
    fetched, also = (list(map(rewriter.is_output, one.outputs)) for one in (earlier, node))
    return fetched == also and rewriter.may_merge([earlier, node], earlier)


def _rename_inputs(node: Node, to: dict[str, str]) -> Node:
    if to.keys().isdisjoint(node.inputs):
        return node
    return replace(node, inputs=tuple(to.get(name, name) for name in node.inputs))


def _is_pure(node: Node) -> bool:
    operator = node.operator
    if operator.function is not None or operator.effects or node.op == "Dropout":
        return False
    return not list_graphs(node) and not draws(node)


def _make_key(node: Node) -> Hashable:
    attributes = tuple((name, _freeze(value)) for name, value in node.attributes.items())
    is_commutative = COMMUTATIVE in node.operator.traits
    operands = tuple(sorted(node.inputs)) if is_commutative else node.inputs
    return operands, tuple(map(bool, node.outputs)), attributes


def _freeze(value: Any) -> Hashable:
    """Return `value` as a hashable key that distinguishes 1 from 1.0 and equates nan with nan."""
    if type(value) is LongTuple:
        return LongTuple, id(value)  # to compare elements would take longer than the node is worth
    if type(value) is tuple:
        kinds = set(map(type, value))
        if kinds == {float}:  # by their bits: 0.0 is not -0.0
            return float, array("d", value).tobytes()
        if len(kinds) == 1 and _PLAIN.issuperset(kinds):
            return kinds.pop(), value
        if _PLAIN.issuperset(kinds):
            return *map(type, value), value
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, tuple | list):
        return tuple(map(_freeze, value))
    return type(value), value
