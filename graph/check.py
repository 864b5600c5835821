"""The invariants of a graph, checked without trusting whoever made it.

Unique names; inputs defined earlier; known outputs; no cycle; complete specs (seeds H1). Cheap:
linear in nodes and edges.
"""

from __future__ import annotations

import numpy as np

from .errors import GraphError
from .ir import Graph, Node
from .tensor import spec_of


def check(graph: Graph) -> Graph:
    """Return the graph unchanged if it keeps all invariants.

    Raises
    ------
    GraphError
        If not; the message names the node or tensor.
    """
    defined = _check_given(graph)
    names: set[str] = set()
    for node in graph.nodes:
        if not node.name:
            raise _broken("a node has no name", str(node))
        if node.name in names:
            raise _broken(f"two nodes are named {node.name!r}", str(node))
        names.add(node.name)
        _check_node(graph, node, defined)
    for name in graph.outputs:
        if name not in defined:
            raise _broken(f"graph output {name!r} is written by no node", graph.name)
    if len(set(graph.outputs)) != len(graph.outputs):
        raise _broken("an output is listed twice", graph.name)
    extra = set(graph.tensors) - defined
    if extra:
        raise _broken(f"tensor {min(extra)!r} has a spec but no origin", graph.name)
    return graph


def _check_given(graph: Graph) -> set[str]:
    defined: set[str] = set()
    for name in (*graph.inputs, *graph.constants):
        if not name:
            raise _broken("an input or constant has no name", graph.name)
        if name in defined:
            raise _broken(f"tensor {name!r} is defined twice", graph.name)
        if name not in graph.tensors:
            raise _broken(f"tensor {name!r} has no spec", graph.name)
        defined.add(name)
    for name, array in graph.constants.items():
        if not isinstance(array, np.ndarray) or spec_of(array) != graph.tensors[name]:
            raise _broken(f"constant {name!r} does not match its spec", graph.name)
    return defined


def _check_node(graph: Graph, node: Node, defined: set[str]) -> None:
    for name in node.inputs:
        if name and name not in defined:
            raise _broken(_undefined(graph, name), str(node))
    present = [bool(name) for name in node.inputs]
    node.operator.check_arity(len(node.inputs), present, len(node.outputs), str(node))
    if set(node.attributes) != set(node.operator.attributes):
        raise _broken("attributes are not complete", str(node))
    for name in node.outputs:
        if name in defined:
            raise _broken(f"tensor {name!r} is written twice", str(node))
        if name and name not in graph.tensors:
            raise _broken(f"tensor {name!r} has no spec", str(node))
        if name:
            defined.add(name)


def _undefined(graph: Graph, name: str) -> str:
    if name in graph.producers:
        return f"input {name!r} is only written by a later node (wrong order, or a cycle)"
    return f"input {name!r} is written by no node"


def _broken(what: str, at: str) -> GraphError:
    return GraphError(what, at=at, fix="build graphs with GraphBuilder, or repair the pass")
