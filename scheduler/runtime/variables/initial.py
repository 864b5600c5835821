"""Initial values of variables: arrays, or the results of graphs, computed once on the host."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....devices.evaluating import evaluate
from ....graph.core.infer import infer_node
from ....graph.core.ir import Graph, Node, make_call
from ....graph.values.errors import GraphError, PlaitError
from ....graph.values.tensor import Array
from ...shapes.specialise import specialise


def compute_initial_values(variables: Mapping[str, Node]) -> dict[str, Array]:
    """Compute the initial values of `variables` by name; blocks.

    Raises GraphError if a graph cannot be computed on the host; `at` names the variable.
    """
    return {name: _get_initial_value(node) for name, node in variables.items()}


def _get_initial_value(variable: Node) -> Array:
    graph: Graph = variable.attributes["initial"]
    try:
        return _compute(graph, variable)
    except PlaitError as error:
        error.add_note(f"this computes the initial value of {variable}")
        raise


def _compute(graph: Graph, variable: Node) -> Array:
    graph = specialise(graph)
    values = dict(graph.constants)
    for node in graph.nodes:
        found = None
        if node.operator.function is None and not node.operator.effects:
            call = make_call(node, graph.tensors, values)
            found = evaluate(node, call, infer_node(node, call))
        if found is None:
            raise GraphError(
                f"{node} cannot be computed on the host when a session is opened",
                at=str(variable),
                fix="compute the value beforehand, and pass the array",
            )
        values.update(found)
    return np.asarray(values[graph.outputs[0]])
