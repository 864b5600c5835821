"""Variables of a graph: their initial values, and assignments.

When graphs are built and simplified, variables are nodes. When nodes are assigned to devices, they
are tensors that exist before the item: `set_aside` converts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..values.errors import GraphError
from ..values.names import Names
from ..values.tensor import TensorSpec, spec_of
from .ir import ASSIGN, VARIABLE, Graph, Node


def make_initial_value(value: Any, dtype: DTypeLike | None = None) -> Graph:
    array = np.array(value, dtype=dtype, order="C")
    spec = spec_of(array)
    frozen = array.astype(spec.dtype, copy=False)
    frozen.flags.writeable = False
    return Graph("initial", (), ("value",), (), {"value": spec}, {"value": frozen})


def find_variables(graph: Graph) -> Mapping[str, Node]:
    found = (node for node in graph.nodes if node.op == VARIABLE)
    return {node.name: node for node in (*graph.variables.values(), *found)}


def get_variable_spec(node: Node) -> TensorSpec:
    initial: Graph = node.attributes["initial"]
    return initial.tensors[initial.outputs[0]]


def has_assignments(graph: Graph) -> bool:
    return any(node.op == ASSIGN for node in graph.nodes)


def find_assigned(graph: Graph) -> frozenset[str]:
    names = {node.outputs[0]: name for name, node in find_variables(graph).items()}
    return frozenset(names[node.inputs[0]] for node in graph.nodes if node.op == ASSIGN)


def set_aside(graph: Graph, *, overlaps: bool = False) -> Graph:
    """Replace variables of `graph` by tensors; fetched ones are copied.

    With `overlaps`, assigned variables are late: they come from the previous item as it runs.
    Raises GraphError if something is assigned to an input.
    """
    nodes = [node for node in graph.nodes if node.op == VARIABLE]
    for node in graph.nodes:
        if node.op == ASSIGN and node.inputs[0] in graph.inputs:
            raise _no_variable_error(node.inputs[0], str(node))
    if not nodes:
        return graph
    named, taken = Names(node.name for node in graph.nodes), Names(graph.tensors)
    fetched = {n.outputs[0]: n for n in nodes if n.outputs[0] in graph.outputs}
    held = {name: taken.take(f"{name}.held") for name in fetched}
    left = [
        replace(node, inputs=tuple(held.get(name, name) for name in node.inputs))
        for node in graph.nodes
        if node.op != VARIABLE
    ]
    left += [
        Node(named.take(f"output {name}"), "Identity", (held[name],), (name,)) for name in fetched
    ]
    variables = {
        held.get(node.outputs[0], node.outputs[0]): replace(
            node, outputs=(held.get(node.outputs[0], node.outputs[0]),)
        )
        for node in nodes
    }
    read = {name for node in left for name in node.inputs}
    late = {node.inputs[0] for node in left if node.op == ASSIGN} if overlaps else set[str]()
    return replace(
        graph,
        nodes=tuple(left),
        tensors={**graph.tensors, **{new: graph.tensors[old] for old, new in held.items()}},
        prepared=graph.prepared.union(name for name in variables if name in read - late),
        variables={**graph.variables, **variables},
    )


def restore_variables(graph: Graph) -> Graph:
    if not graph.variables:
        return graph
    return replace(
        graph,
        nodes=(*graph.variables.values(), *graph.nodes),
        tensors={
            **{name: get_variable_spec(node) for name, node in graph.variables.items()},
            **graph.tensors,
        },
        prepared=graph.prepared - graph.variables.keys(),
        variables={},
    )


def remove_state(graph: Graph) -> Graph:
    """Return `graph` with variables as inputs, and assigned values as outputs.

    Only for graphs without variables as nodes. Unread variables are omitted.
    """
    nodes = tuple(
        replace(node, op="Identity", inputs=node.inputs[1:]) if node.op == ASSIGN else node
        for node in graph.nodes
    )
    read = {name for node in nodes for name in node.inputs}
    return replace(
        graph,
        inputs=(*graph.inputs, *(name for name in graph.variables if name in read)),
        outputs=tuple(dict.fromkeys((*graph.outputs, *graph.assigned))),
        nodes=nodes,
        prepared=graph.prepared - graph.variables.keys(),
        variables={},
    )


def read_variables(graph: Graph, variables: Mapping[str, Node]) -> Graph:
    """Replace the inputs of `graph` that are in `variables` by those nodes.

    Inputs stay if the variable's name is in use by a node or another variable.
    """
    names = {node.name for node in graph.nodes}
    found: list[Node] = []
    for name in graph.inputs:
        if name in variables and variables[name].name not in names:
            found.append(replace(variables[name], outputs=(name,)))
            names.add(variables[name].name)
    read = {node.outputs[0] for node in found}
    return replace(
        graph,
        inputs=tuple(name for name in graph.inputs if name not in read),
        nodes=(*found, *graph.nodes),
    )


def check_assignable(tensor: str, nodes: Iterable[Node], at: str) -> None:
    is_variable = False
    for node in nodes:
        is_variable = is_variable or (node.op == VARIABLE and tensor in node.outputs)
        if node.op == ASSIGN and node.inputs[0] == tensor:
            raise _assigned_twice_error(node, at)
    if not is_variable:
        raise _no_variable_error(tensor, at)


def check_state(graph: Graph) -> None:
    """Raise GraphError unless each assignment in `graph` is the only one to a variable.

    Those of the graph that a graph is a part of are among its inputs.
    """
    held, assigned = {*graph.variables, *graph.inputs}, dict[str, Node]()
    for node in graph.nodes:
        if node.op == VARIABLE:
            held.update(node.outputs)
        elif node.op == ASSIGN:
            tensor = node.inputs[0]
            if tensor not in held:
                raise _no_variable_error(tensor, str(node))
            if tensor in assigned:
                raise _assigned_twice_error(assigned[tensor], str(node))
            assigned[tensor] = node


def _no_variable_error(tensor: str, at: str) -> GraphError:
    return GraphError(f"{tensor!r} is not a variable", at=at, fix="pass what variable() returned")


def _assigned_twice_error(node: Node, at: str) -> GraphError:
    return GraphError(
        f"something is assigned to {node.inputs[0]!r} already, by {node}",
        at=at,
        fix="assign once: choose the value with Where",
    )


def check_no_state(graph: Graph, at: str) -> None:
    for node in graph.nodes:
        if node.op in (VARIABLE, ASSIGN):
            raise GraphError(
                f"{node} is in the graph {graph.name!r}, which runs any number of times",
                at=at,
                fix="hand the variable's tensor in, and what to assign out",
            )
