"""Sync points: boundaries at which a plan waits for values that decide shapes.

Shapes may depend on values: Range of a computed limit, NonZero, a loop. Then the graph is cut. The
head, in which all shapes are known, is planned and run; its results decide more shapes, and the
rest is cut again. Results with bounded lengths are computed into buffers for the largest lengths
within the head, and trimmed at the boundary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...graph.core.infer import asking, describe, infer_node
from ...graph.core.ir import Graph, Node, make_call
from ...graph.core.operator import Specs, find_operator
from ...graph.operators.bounded_call import find_largest_results, make_bounded_call
from ...graph.operators.control import list_deciding_inputs, waits
from ...graph.operators.each import EACH
from ...graph.values.errors import Argument, Fix, ShapeError
from ...graph.values.tensor import Array, TensorSpec, shorten_array, spec_of
from ..errors import PlanError
from ..plans.plan import NO_BOUNDS, Bounds

DECIDING_SIZE = 1 << 16
"""The largest number of elements of a tensor that may decide shapes."""


@dataclass(frozen=True, slots=True)
class PaddedOutputs:
    """Tensors in buffers for their largest lengths, and the tensor with their shapes."""

    tensors: tuple[str, ...]
    shapes: str

    def trimmed(self, known: Mapping[str, Array]) -> dict[str, Array]:
        lengths, start, found = known[self.shapes].tolist(), 0, {}
        for name in self.tensors:
            stop = start + known[name].ndim
            found[name] = shorten_array(known[name], tuple(lengths[start:stop]))
            start = stop
        return found


@dataclass(frozen=True, slots=True)
class GraphSplit:
    """A graph cut at its first boundary."""

    head: Graph
    """The nodes that can be planned now; may be empty."""
    rest: Graph | None
    """The nodes that can be planned when the head has run, if any."""
    padded: tuple[PaddedOutputs, ...]
    """The outputs of the head that have to be trimmed."""


def has_static_shapes(graph: Graph) -> bool:
    return graph.is_static and not any(waits(node) or node.operator.bounded for node in graph.nodes)


def cut(graph: Graph, bounds: Bounds = NO_BOUNDS) -> GraphSplit:
    """Cut a graph, specialised for the shapes of its inputs, at the first boundary.

    `bounds` are those of computed lengths. Raises PlanError if the shapes of a Python function's
    results are unknown and unbounded.
    """
    known = {*graph.inputs, *graph.constants}
    head: list[Node] = []
    rest: list[Node] = []
    padded: list[PaddedOutputs] = []
    tensors = dict(graph.tensors)
    # In topological order: readers of nodes in the rest are in the rest, too.
    for node in graph.nodes:
        ready = all(name in known for name in node.inputs if name)
        if ready and not waits(node):
            if node.operator.bounded is not None:
                one, specs = make_bounded_form(graph, node)
                # The buffer has a size, so the head computes it. The results stay out of `known`:
                # their lengths are known at the boundary.
                if all(spec.is_static for spec in specs):
                    padded.append(_add_padded(head, tensors, one, specs))
                    continue
            elif all(spec.is_static for spec in graph.output_specs(node)):
                known.update(node.outputs)
                head.append(node)
                continue
            largest = find_largest_results(node, graph.output_specs(node), bounds)
            if largest is not None:
                padded.append(_add_padded(head, tensors, *_make_bounded_call(graph, node, largest)))
                continue
            if node.operator.function is not None:
                raise untold_shape_error(graph, node)
        rest.append(node)
    left = graph.extract(rest, graph.name) if rest else None
    return GraphSplit(_build_head(graph, head, rest, padded, tensors), left, tuple(padded))


def cut_alike(template: Graph, graph: Graph, bounds: Bounds) -> GraphSplit:
    parts = cut(graph, bounds)
    # Numbers decide the cut: symbols do not show which lengths are known.
    late = {node.name for node in parts.rest.nodes} if parts.rest is not None else set()
    padding = {one.shapes for one in parts.padded}
    head: list[Node] = []
    rest: list[Node] = []
    padded: list[PaddedOutputs] = []
    tensors = dict(template.tensors)
    known = {*template.inputs, *template.constants, ""}
    for node in template.nodes:
        # With numbers, shapes of late results may be constants.
        if node.name in late or not known.issuperset(node.inputs):
            rest.append(node)
        elif f"{node.name}\0shapes" not in padding:
            head.append(node)
            known.update(node.outputs)
        elif node.operator.bounded is not None:
            padded.append(_add_padded(head, tensors, *make_bounded_form(template, node)))
        else:
            largest = [parts.head.tensors[name] for name in node.outputs]
            padded.append(_add_padded(head, tensors, *_make_bounded_call(template, node, largest)))
    left = template.extract(rest, template.name) if rest else None
    return GraphSplit(_build_head(template, head, rest, padded, tensors), left, tuple(padded))


def _add_padded(
    head: list[Node], tensors: dict[str, TensorSpec], node: Node, specs: Specs
) -> PaddedOutputs:
    head.append(node)
    tensors.update(zip(node.outputs, specs, strict=True))
    return PaddedOutputs(node.outputs[:-1], node.outputs[-1])


def _make_bounded_call(
    graph: Graph, node: Node, largest: Sequence[TensorSpec]
) -> tuple[Node, Specs]:
    one = make_bounded_call(graph, node, largest)
    return one, tuple(one.operator.infer(make_call(one, graph.tensors, {})))


def make_bounded_form(graph: Graph, node: Node) -> tuple[Node, Specs]:
    assert node.operator.bounded is not None
    operator, call = find_operator(node.operator.bounded), graph.call(node)
    with asking(node, call):
        specs = tuple(operator.infer(call))
    unread = (f"{node.name}\0unread{i}" for i in range(len(specs)))
    given = dict(enumerate(node.outputs))
    names = [given.get(i) or name for i, name in enumerate(unread)]
    # Names from users have no NUL.
    names[-1] = f"{node.name}\0shapes"
    return replace(node, op=operator.name, outputs=tuple(names)), specs


def find_frontier(graph: Graph) -> Sequence[Node]:
    written = {name for node in graph.nodes for name in node.outputs if name}
    return [node for node in graph.nodes if written.isdisjoint(node.inputs)]


def find_deciding(graph: Graph, node: Node, known: Mapping[str, Array]) -> Sequence[str]:
    """Return inputs of `node` with `known` values that decide output shapes, or raise PlanError."""
    if waits(node):
        return node.inputs[:1] if node.op == "If" else ()
    names = [
        name
        for name in dict.fromkeys(node.inputs)
        if name and name not in graph.constants and np.size(known[name]) <= DECIDING_SIZE
    ]
    if not _is_decided(graph, node, known, names):
        raise untold_shape_error(graph, node)
    # As few as possible: deciding values are part of the key of a stage.
    for name in tuple(names):
        fewer = [other for other in names if other != name]
        if _is_decided(graph, node, known, fewer):
            names = fewer
    return names


def explain_wait(parts: GraphSplit, node: Node) -> str:
    graph = parts.rest
    assert graph is not None, "the node is part of it"
    late = {name: one for one in parts.padded for name in one.tensors}
    waited = [name for name in dict.fromkeys(node.inputs) if name in late]
    if waited:
        return f"needs the shape of {_quote_names(waited)}, which is known when that is computed"
    names: Sequence[str]
    if waits(node):
        names = [n for n in list_deciding_inputs(node) if n and n not in graph.constants]
    else:
        small = (n for n in dict.fromkeys(node.inputs) if n and n not in graph.constants)
        # Ones leave products of lengths as they are; zeros would make them empty.
        ones = {n: _make_ones(graph.tensors[n]) for n in small if graph.tensors[n].is_static}
        names = tuple(name for name in ones if _may_decide(graph, node, ones, without=name))
    return (
        f"needs the values of {_quote_names(names)}" if names else "needs values, not shapes alone"
    )


def _quote_names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _make_ones(spec: TensorSpec) -> Array:
    return np.broadcast_to(np.ones((), spec.dtype), spec.static_shape)


def _may_decide(graph: Graph, node: Node, ones: Mapping[str, Array], without: str) -> bool:
    names = [name for name in ones if name != without and np.size(ones[name]) <= DECIDING_SIZE]
    try:
        return not _is_decided(graph, node, ones, names)
    except ShapeError:  # ones are invalid here, but the rule has read them
        return False


def untold_shape_error(graph: Graph, node: Node, bounded: Collection[str] = ()) -> PlanError:
    specs = ", ".join(str(s) for s in graph.output_specs(node) if not s.is_static)
    dims = [dim for spec in graph.output_specs(node) for dim in spec.shape or ()]
    symbols = [dim for dim in dims if isinstance(dim, str) and dim not in bounded] or ["n"]
    tell = "let the operator tell it from its inputs' shapes: @operator(outputs=...)"
    if node.op == EACH:
        tell = 'tell it in the graph: b.op("Reshape", result, np.array([0, 64])) keeps the rows'
    return PlanError(
        f"the shape of {specs} is not known before the run",
        at=describe(node, graph.call(node)),
        fix=Fix(
            f"{tell}; or bound what it returns: ", Argument("bounds", dict.fromkeys(symbols, 64))
        ),
    )


def _is_decided(graph: Graph, node: Node, known: Mapping[str, Array], names: Sequence[str]) -> bool:
    return all(spec.is_static for spec in infer_known(graph, node, known, names))


def infer_known(
    graph: Graph, node: Node, known: Mapping[str, Array], names: Sequence[str] = ()
) -> Specs:
    values = {**graph.constants, **{name: known[name] for name in names}}
    given = {name: spec_of(known[name]) for name in node.inputs if name in known}
    call = make_call(node, {**graph.tensors, **given}, values)
    if node.operator.bounded is None:
        return infer_node(node, call)
    with asking(node, call):
        return tuple(find_operator(node.operator.bounded).infer(call))


def _build_head(
    graph: Graph,
    nodes: Sequence[Node],
    rest: Sequence[Node],
    padded: Sequence[PaddedOutputs],
    tensors: Mapping[str, TensorSpec],
) -> Graph:
    written = {name for node in nodes for name in node.outputs if name}
    fetched = [name for name in graph.outputs if name in written]
    crossing = {name for node in rest for name in node.inputs}
    crossing.update(name for item in padded for name in (*item.tensors, item.shapes))
    # Each output once.
    crossing.difference_update(fetched)
    outputs = (*fetched, *(n for node in nodes for n in node.outputs if n in crossing))
    head = replace(graph, tensors=tensors).select(nodes, outputs)
    return replace(head, inputs=tuple(name for name in graph.inputs if name in head.tensors))
