"""Graphs of one item with state, lifted to graphs for the rows of a batch.

The variables that a graph assigns become inputs, and their next values outputs. Each input gets an
axis of rows: in place of an axis of length 1, or in front. The rules of `row_axes` decide whether
the graph keeps rows apart. They are asked for a number of rows that no length is a multiple of, so
that every shape shows its axis of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from ...graph.core.infer import infer_shapes
from ...graph.core.ir import ASSIGN, VARIABLE, Graph, Node
from ...graph.core.nested import acts_outside, draws, list_graphs, walk_nodes
from ...graph.core.state import find_assigned
from ...graph.core.traits import Trait
from ...graph.operators.control import CONTROL_FLOW
from ...graph.operators.each import ROWS
from ...graph.operators.item_order import is_ordered
from ...graph.operators.randomness import RANDOM_KEY
from ...graph.operators.row_axes import RowAxis, Rows, find_mixing_node, locate_rows
from ...graph.operators.state import AFTER, GROUP
from ...graph.values.dtypes import has_objects
from ...graph.values.errors import PlaitError
from ...graph.values.tensor import Array, Dim, Shape
from ..errors import SessionError
from .specialise import specialise

MOST_TRIED = 64
"""Limit of ways to lay rows that are tried: those next to the one that comes furthest first."""


class RowPlace(NamedTuple):
    axis: int
    added: int = 0
    """The number of axes in front that the input of one item lacks; the first is that of rows."""

    def spread(self, shape: Sequence[Dim], rows: Dim) -> Shape:
        shape = (1,) * self.added + tuple(shape)
        return (*shape[: self.axis], rows, *shape[self.axis + 1 :])


class LiftedGraph(NamedTuple):
    """A graph for rows of several items: variables are inputs, and their next values outputs.

    By output, `axes` has the axis of rows, None if it is the same for all of them, and `added` the
    number of axes in front that the result of one item lacks.
    """

    graph: Graph
    rows: str
    """The symbol of the number of rows."""
    places: Mapping[str, RowPlace]
    axes: Mapping[str, int | None]
    added: Mapping[str, int]
    states: Mapping[str, tuple[str, str]]
    """By variable: its input and its output."""


def lift_rows(graph: Graph) -> LiftedGraph:
    """Return the graph for rows of several items; raise SessionError if an item cannot be a row."""
    _check_nodes(graph)
    single, states = _feed_state(graph)
    known = {dim for spec in graph.tensors.values() for dim in spec.shape or ()}
    sizes = [dim for dim in known if isinstance(dim, int) and dim]
    probe = next(n for n in count(101, 2) if all(dim % n for dim in sizes))
    choices, tried = _list_choices(single), dict[Any, tuple[bool, int, SessionError]]()
    waiting = {tuple(own[0] for own in choices.values()): 0}
    while waiting and len(tried) < MOST_TRIED:
        chosen = max(waiting, key=waiting.__getitem__)
        places = dict(zip(choices, chosen, strict=True))
        del waiting[chosen]
        try:
            axes, added = _find_axes(single, places, probe)
            rows = next(name for n in count() if (name := ROWS + "_" * n) not in known)
            lifted = _infer(infer_shapes, single, places, rows)
            return LiftedGraph(lifted, rows, places, axes, added, states)
        except SessionError as error:
            at, nodes = error.at or "", enumerate(single.nodes)
            number = next((i for i, node in nodes if f"node {node.name!r}" in at), -1)
            tried[chosen] = not any(place.added for place in chosen), number, error
        behind = _list_inputs_behind(single, number)
        others = (tuple({**places, name: one}.values()) for name in behind for one in choices[name])
        waiting |= {other: number for other in others if other not in tried}
    # Of those in which axes count as for one item, if any, the one that came furthest.
    raise max(tried.values(), key=lambda one: one[:2])[2]


def _list_inputs_behind(graph: Graph, number: int) -> Sequence[str]:
    """Return the inputs that node `number` depends on, the nearest first; all if it is -1."""
    found, seen = [*(graph.nodes[number].inputs if number >= 0 else graph.inputs)], set[str]()
    for name in found:  # which grows
        if name not in seen and name in graph.producers:
            found += graph.producers[name].inputs
        seen.add(name)
    return [name for name in dict.fromkeys(found) if name in graph.inputs]


def _check_nodes(graph: Graph) -> None:
    for path, _, node in walk_nodes(graph):
        at = f"graph {graph.name!r}: node {path!r}"
        if is_ordered(node.operator) or acts_outside(node):
            raise _refusal_error(f"{node.op} is called for one item after the other", at)
        if RANDOM_KEY in node.inputs or draws(node):
            raise _refusal_error(f"{node.op} draws random numbers for each item", at)
    for name in graph.inputs:
        spec = graph.tensors[name]
        if spec.shape is None or has_objects(spec.dtype):
            raise _refusal_error("it has no axis for rows", f"input {name!r}: {spec}")


def _feed_state(graph: Graph) -> tuple[Graph, dict[str, tuple[str, str]]]:
    assigned = find_assigned(graph)
    held = {node.name: node.outputs[0] for node in graph.nodes if node.op == VARIABLE}
    given = {node.inputs[0]: node.outputs[0] for node in graph.nodes if node.op == ASSIGN}
    states = {name: (held[name], given[held[name]]) for name in held if name in assigned}
    nodes = tuple(
        replace(node, op="Identity", inputs=node.inputs[1:]) if node.op == ASSIGN else node
        for node in graph.nodes
        if node.op != VARIABLE or node.name not in assigned
    )
    outputs = dict.fromkeys((*graph.outputs, *(value for _, value in states.values())))
    fed = (*graph.inputs, *(tensor for tensor, _ in states.values()))
    return replace(graph, inputs=fed, outputs=tuple(outputs), nodes=nodes), states


def _list_choices(graph: Graph) -> dict[str, list[RowPlace]]:
    shapes = {name: graph.tensors[name].shape or () for name in graph.inputs}
    axes = {
        name: [axis for axis, dim in enumerate(shape) if dim == 1]
        or [axis for axis, dim in enumerate(shape) if isinstance(dim, str)]
        for name, shape in shapes.items()
    }
    rank = max((len(shape) + (not axes[name]) for name, shape in shapes.items()), default=0)
    return {
        name: [*map(RowPlace, axes[name]), *[RowPlace(0, rank - len(shape))] * (len(shape) < rank)]
        for name, shape in shapes.items()
    }


def _infer(
    infer: Callable[[Graph], Graph], graph: Graph, places: Mapping[str, RowPlace], rows: Dim = 1
) -> Graph:
    tensors = dict(graph.tensors)
    for name, place in places.items():
        tensors[name] = replace(tensors[name], shape=place.spread(tensors[name].shape or (), rows))
    try:
        return infer(replace(graph, tensors=tensors))
    except PlaitError as error:
        what = f"with rows in place of an axis of 1, {error.what}"
        raise _refusal_error(what, error.at) from None


def _refusal_error(reason: str, at: str | None) -> SessionError:
    fix = "leave batch= out, or give inputs and variables an axis of 1 that items can share"
    return SessionError(reason, at=at, fix=fix)


def _find_axes(
    single: Graph, places: Mapping[str, RowPlace], probe: int
) -> tuple[dict[str, int | None], dict[str, int]]:
    lifted = _infer(specialise, single, places, probe)
    ranks = {name: len(spec.shape or ()) for name, spec in lifted.tensors.items()}
    own = ranks
    if any(place.added for place in places.values()):
        tensors = _infer(specialise, single, {}).tensors
        own = {name: len(spec.shape or ()) for name, spec in tensors.items()}
    changed = {name for name, rank in ranks.items() if own.get(name) != rank}
    found: dict[str, RowAxis] = {name: place.axis for name, place in places.items()}
    found |= {name: _find_equal_rows(value, probe) for name, value in lifted.constants.items()}
    for node in lifted.nodes:
        given = [found.get(name, Rows.NONE) for name in node.inputs]
        outputs = _locate_rows(lifted, node, given, probe)
        has_rows = {name for name in node.inputs if found.get(name, Rows.NONE) is not Rows.NONE}
        passes_on = Trait.ELEMENTWISE in node.operator.traits or node.op in (AFTER, GROUP)
        if not passes_on and has_rows & changed:
            what = f"{node.op} is not elementwise, and what is fed has no axis of 1 for items"
        elif Rows.MIXED in outputs:
            what = f"what {node.op} makes of an item depends on the others in its batch"
        elif Rows.OPEN in outputs:
            what = f"it is not known whether {node.op} keeps items apart"
        else:
            found.update(zip(node.outputs, outputs, strict=True))
            continue
        raise _refusal_error(what, f"graph {single.name!r}: node {node.name!r}")
    ends = {name: found.get(name, Rows.NONE) for name in lifted.outputs}
    axes = {name: place if isinstance(place, int) else None for name, place in ends.items()}
    return axes, {n: 0 if axes[n] is None else ranks[n] - own.get(n, ranks[n]) for n in axes}


def _locate_rows(
    graph: Graph, node: Node, given: Sequence[RowAxis], probe: int
) -> Sequence[RowAxis]:
    """Return the axis of rows in outputs of `node`, by those `given` for inputs or by shapes.

    `graph` has shapes for `probe` rows.
    """
    if Trait.LENGTHS in node.operator.traits or all(one is Rows.NONE for one in given):
        return [Rows.NONE] * len(node.outputs)
    found = [*locate_rows(graph, node, given)]
    for nested in list_graphs(node):
        if find_mixing_node(nested, dict.fromkeys(nested.inputs, Rows.OPEN)) is not None:
            return [Rows.MIXED]
    is_free = node.operator.function is not None or node.op in CONTROL_FLOW
    for index, (name, place) in enumerate(zip(node.outputs, found, strict=True)):
        if not name or node.op == GROUP:
            found[index] = Rows.NONE
            continue
        shape = graph.tensors[name].shape
        if shape is None or place is Rows.MIXED:
            continue
        axes = [
            axis
            for axis, dim in enumerate(shape)
            if (dim and not dim % probe if isinstance(dim, int) else str(probe) in dim)
        ]
        if place is not Rows.OPEN:
            is_there = axes == ([place] if isinstance(place, int) else [])
            found[index] = place if is_there else Rows.MIXED
        elif is_free and len(axes) == 1:
            found[index] = axes[0]
    return found


def _find_equal_rows(value: Array, probe: int) -> RowAxis:
    axes = [axis for axis, length in enumerate(value.shape) if length == probe]
    is_equal = len(axes) == 1 and bool((value == value.take([0], axes[0])).all())
    return axes[0] if is_equal else Rows.NONE
