"""The invariants of a graph, checked independently of its construction.

Unique names; inputs defined earlier; known outputs; no cycle; attributes as declared by their
operator; specs as inferred by the operators' rules (seeds H1). Linear in nodes and edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..values.dims import may_agree
from ..values.errors import GraphError
from ..values.tensor import Shape, TensorSpec, spec_of
from .infer import infer_node
from .ir import Graph, Node, make_call
from .nested import list_graphs
from .state import check_no_state, check_state


def check(graph: Graph) -> Graph:
    """Return `graph` unchanged if it keeps all invariants.

    Each tensor's spec is inferred again: it must have the inferred dtype and rank, and the same
    lengths if both are numbers. A spec may be more precise than the rule, because passes may know
    more.

    Raises
    ------
    GraphError
        If not; the message names the node or tensor.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    >>> graph = b.build()
    >>> pl.check(graph) is graph
    True
    """
    check_structure(graph)
    _check_specs(graph)
    return graph


def check_structure(graph: Graph) -> Graph:
    """Return `graph` unchanged if it keeps all invariants; specs are not inferred again.

    For callers that have just inferred them. Raises GraphError if not; the message names the node
    or tensor.
    """
    missing = graph.prepared - graph.variables.keys()
    if missing:
        raise GraphError(
            f"{min(missing)!r} is computed when a plan is opened, and by nothing in here",
            at=graph.name,
            fix="use all of the plan's graph: plan.whole",
        )
    defined = _check_given(graph)
    names: set[str] = set()
    for node in graph.nodes:
        if not node.name:
            raise _broken_error("a node has no name", str(node))
        if node.name in names:
            raise _broken_error(f"two nodes are named {node.name!r}", str(node))
        names.add(node.name)
        _check_node(graph, node, defined)
    for name in graph.outputs:
        if name not in defined:
            raise _broken_error(f"graph output {name!r} is written by no node", graph.name)
    if len(set(graph.outputs)) != len(graph.outputs):
        raise _broken_error("an output is listed twice", graph.name)
    extra = set(graph.tensors) - defined
    if extra:
        raise _broken_error(f"tensor {min(extra)!r} has a spec but no origin", graph.name)
    check_state(graph)
    return graph


def _check_given(graph: Graph) -> set[str]:
    defined: set[str] = set()
    for name in (*graph.inputs, *graph.constants):
        if not name:
            raise _broken_error("an input or constant has no name", graph.name)
        if name in defined:
            raise _broken_error(f"tensor {name!r} is defined twice", graph.name)
        if name not in graph.tensors:
            raise _broken_error(f"tensor {name!r} has no spec", graph.name)
        defined.add(name)
    defined.update(graph.variables)
    for name, array in graph.constants.items():
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise _broken_error(f"constant {name!r} is not an array of numbers", graph.name)
        if spec_of(array) != graph.tensors[name]:
            raise _broken_error(f"constant {name!r} does not match its spec", graph.name)
    for name, precision in graph.precisions.items():
        if name in defined:  # passes may leave the precision of what they removed
            check_precision(precision, graph.tensors[name], f"tensor {name!r}, {graph.name}")
    return defined


def check_distinct(outputs: Sequence[str], at: str) -> None:
    named = [name for name in outputs if name]
    if len(set(named)) != len(named):
        raise GraphError(f"two outputs have one name: {', '.join(named)}", at=at, fix="rename one")


def check_precision(precision: Any, spec: TensorSpec, at: str) -> int:
    """Return `precision`, the bits declared for the integers of `spec`, as an int.

    Raises GraphError, at `at`, if it is not between 1 and the dtype's width, or the dtype is not a
    signed integer's.
    """
    whole = isinstance(precision, int | np.integer) and not isinstance(precision, bool)
    if spec.dtype.kind != "i":
        raise GraphError(
            f"{spec} has no precision", at=at, fix="declare one for signed integers only"
        )
    width = 8 * spec.dtype.itemsize
    if not whole or not 1 <= precision <= width:
        raise GraphError(
            f"{precision!r} is not a precision of {spec}", at=at, fix=f"use 1 to {width} bits"
        )
    return int(precision)


def _check_node(graph: Graph, node: Node, defined: set[str]) -> None:
    for name in node.inputs:
        if name and name not in defined:
            raise _broken_error(_explain_undefined(graph, name), str(node))
    present = [bool(name) for name in node.inputs]
    node.operator.check_arity(len(node.inputs), present, len(node.outputs), node)
    _check_attributes(node)
    for value in node.attributes.values():
        if isinstance(value, Graph):
            check_no_state(check_structure(value), str(node))
    for name in node.outputs:
        if name in defined:
            raise _broken_error(f"tensor {name!r} is written twice", str(node))
        if name and name not in graph.tensors:
            raise _broken_error(f"tensor {name!r} has no spec", str(node))
        if name:
            defined.add(name)


def _check_attributes(node: Node) -> None:
    """Raise GraphError unless `node` has exactly the attributes that its operator stores."""
    if set(node.attributes) != set(node.operator.attributes):
        raise _broken_error("attributes are not complete", str(node))
    for name, stored in node.operator.complete(node.attributes, node).items():
        given = node.attributes[name]
        same = given is stored or (type(given) is type(stored) and given == stored)
        if not same:
            raise _broken_error(
                f"attribute {name!r} is {given!r}, which would be {stored!r}", str(node)
            )


def _check_specs(graph: Graph) -> None:
    lengths: dict[str, Shape] = {}
    for node in graph.nodes:
        for nested in list_graphs(node):
            _check_specs(nested)
        call = make_call(node, graph.tensors, graph.constants, lengths)
        for name, spec in zip(node.outputs, infer_node(node, call, lengths), strict=False):
            known = graph.tensors[name] if name else spec
            if spec.dtype != known.dtype or not may_agree(spec.shape, known.shape):
                raise _broken_error(
                    f"tensor {name!r} is {known}, but its node gives {spec}", str(node)
                )


def _explain_undefined(graph: Graph, name: str) -> str:
    if name in graph.producers:
        return f"input {name!r} is only written by a later node (wrong order, or a cycle)"
    return f"input {name!r} is written by no node"


def _broken_error(what: str, at: str) -> GraphError:
    return GraphError(what, at=at, fix="build graphs with GraphBuilder, or repair the pass")
