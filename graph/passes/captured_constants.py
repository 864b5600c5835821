"""Constants of nested graphs: their own, or captured from the outer graph.

A nested graph that is planned on its own should contain them; other runtimes get large ones as
constants of the outer graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..core.ir import Graph, Node
from ..operators.control import CONTROL_FLOW, list_uncaptured
from ..values.names import Names
from ..values.tensor import Array, spec_of


def with_constants_inside(node: Node, constants: Mapping[str, Array]) -> Node:
    """Return `node` with its captured `constants` moved into its nested graphs."""
    first = len(list_uncaptured(node))
    captured = node.inputs[first:]
    left = tuple(name for name in captured if name not in constants)
    if len(left) == len(captured):
        return node
    attributes = dict(node.attributes)
    for key, graph in attributes.items():
        if isinstance(graph, Graph):
            attributes[key] = _hold(graph, captured, constants)
    if node.op != "If":
        attributes["captured"] = len(left)
    return replace(node, inputs=(*node.inputs[:first], *left), attributes=attributes)


def with_constants_outside(graph: Graph, is_moved: Callable[[Array], bool]) -> Graph:
    if not any(node.op in CONTROL_FLOW for node in graph.nodes):
        return graph
    names, nodes = Names(graph.tensors), list(graph.nodes)
    moved: dict[int, tuple[str, Array]] = {}
    for place, node in enumerate(nodes):
        if node.op in CONTROL_FLOW:
            nodes[place] = _capture(node, is_moved, names, moved)
    constants = dict(moved.values())
    specs = {name: spec_of(array) for name, array in constants.items()}
    return replace(
        graph,
        nodes=tuple(nodes),
        tensors={**graph.tensors, **specs},
        constants={**graph.constants, **constants},
    )


def _capture(
    node: Node, is_moved: Callable[[Array], bool], names: Names, moved: dict[int, tuple[str, Array]]
) -> Node:
    """Move constants of nested graphs to inputs of `node` if `is_moved`; record them in `moved`."""
    attributes, outer = dict(node.attributes), dict[str, Array]()
    graphs = {
        k: with_constants_outside(g, is_moved)
        for k, g in attributes.items()
        if isinstance(g, Graph)
    }
    for graph in graphs.values():
        for name, array in filter(lambda item: is_moved(item[1]), graph.constants.items()):
            taken, _ = moved.setdefault(id(array), (names.take(f"{node.name}/{name}"), array))
            outer[taken] = array
    for key, graph in graphs.items():
        attributes[key] = _with_inputs(graph, outer)
    if node.op != "If":
        attributes["captured"] += len(outer)
    return replace(node, inputs=(*node.inputs, *outer), attributes=attributes)


def _with_inputs(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    by_id = {id(array): name for name, array in graph.constants.items()}
    names = Names(graph.tensors)
    inputs = [by_id.get(id(array)) or names.take(name) for name, array in outer.items()]
    specs = map(spec_of, outer.values())
    return replace(
        graph,
        inputs=(*graph.inputs, *inputs),
        tensors={**graph.tensors, **dict(zip(inputs, specs, strict=True))},
        constants={n: array for n, array in graph.constants.items() if n not in inputs},
    )


def _hold(graph: Graph, captured: Sequence[str], constants: Mapping[str, Array]) -> Graph:
    own = graph.inputs[len(graph.inputs) - len(captured) :]
    pairs = zip(own, captured, strict=True)
    held = {inner: constants[outer] for inner, outer in pairs if outer in constants}
    return replace(
        graph,
        inputs=tuple(name for name in graph.inputs if name not in held),
        tensors={**graph.tensors, **{name: spec_of(held[name]) for name in held}},
        constants={**graph.constants, **held},
    )
