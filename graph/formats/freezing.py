"""Freeze a trained graph into one without variables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from ..core.check import check
from ..core.ir import ASSIGN, VARIABLE, Graph, Node, find_needed
from ..values.errors import GraphError
from ..values.tensor import Array
from .weights import weights_of, with_weights


def freeze(
    graph: Graph, weights: Mapping[str, Array], outputs: Collection[str] | None = None
) -> Graph:
    """Return the part of `graph` that `outputs` need, with constants instead of variables.

    Parameters
    ----------
    graph : Graph
    weights : Mapping of str to array
        As for `with_weights`: most often ``session.variables``. Others keep their initial values.
    outputs : collection of str, optional
        By default, all outputs that depend on no assignment.

    Raises
    ------
    GraphError
        If an output does not exist or depends on an assignment; if a variable's value is
        neither given nor an array; or as `with_weights`.
    ShapeError
        As `with_weights`.

    Examples
    --------
    >>> import numpy as np, plait as pl
    >>> b = pl.GraphBuilder("count")
    >>> x, n = b.input("x", "float32", ()), b.variable("n", np.float32(0))
    >>> b.output("product", b.op("Mul", x, n))
    >>> b.output("count", b.assign(n, b.op("Add", n, 1.0)))
    >>> frozen = pl.freeze(b.build(), {"n": np.float32(3)})
    >>> frozen.outputs, [node.op for node in frozen.nodes], float(frozen.constants["n"])
    (('product',), ['Mul'], 3.0)
    """
    whole = with_weights(graph, weights)
    wanted = _find_pure_outputs(whole) if outputs is None else tuple(dict.fromkeys(outputs))
    _check_outputs(whole, wanted)
    nodes = _select_needed(whole, wanted)
    read = {name for node in nodes for name in node.inputs}
    inputs = tuple(name for name in whole.inputs if name in read or name in wanted)
    variables = [node for node in nodes if node.op == VARIABLE]
    constants = _read_initial_values(whole, variables)
    left = [node for node in nodes if node.op != VARIABLE]
    return check(replace(whole, inputs=inputs, outputs=wanted).with_nodes(left, constants))


def _select_needed(graph: Graph, outputs: Iterable[str]) -> list[Node]:
    return list(find_needed(outputs, graph.nodes))[::-1]


def _find_pure_outputs(graph: Graph) -> tuple[str, ...]:
    changing: set[str] = set()
    for node in graph.nodes:
        if node.op == ASSIGN or not changing.isdisjoint(node.inputs):
            changing.update(filter(None, node.outputs))
    return tuple(name for name in graph.outputs if name not in changing)


def _check_outputs(graph: Graph, outputs: Collection[str]) -> None:
    fit = ", ".join(map(repr, _find_pure_outputs(graph)))
    fix = f"name outputs to which none leads: {fit or 'there are none'}"
    if not outputs:
        what = "no output is named" if fit else "an assignment leads to every output"
        raise GraphError(what, at=graph.name, fix=fix)
    for name in outputs:
        if name not in graph.outputs:
            raise GraphError(f"there is no output {name!r}", at=graph.name, fix=fix)
    for node in _select_needed(graph, outputs):
        if node.op == ASSIGN:
            raise GraphError("an assignment leads to an output", at=str(node), fix=fix)


def _read_initial_values(graph: Graph, variables: Iterable[Node]) -> dict[str, Array]:
    held = weights_of(graph)
    found = {node.outputs[0]: held.get(node.name) for node in variables}
    computed = [name for name, value in found.items() if value is None]
    if computed:
        raise GraphError(
            f"what {', '.join(map(repr, computed))} begins with is computed",
            at=graph.name,
            fix="pass its value, as session.variables has it",
        )
    return {name: value for name, value in found.items() if value is not None}
