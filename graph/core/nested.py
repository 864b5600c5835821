"""Graphs inside of nodes: the branches of If, the bodies of Loop and Scan.

A nested graph only sees its inputs: tensors of the outer graph are further inputs of the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace

from ..values.dims import UNKNOWN
from ..values.errors import ShapeError
from ..values.tensor import Array, Dim, TensorSpec
from .infer import infer_shapes
from .ir import ASSIGN, VARIABLE, Graph, Node
from .operator import Operator

Specs = Sequence[TensorSpec | None]
Values = Sequence[Array | None]

_found: ContextVar[dict[object, tuple[tuple[TensorSpec, ...], object]] | None]
_found = ContextVar("plait result specs", default=None)
"""Result specs of graphs while a node is inferred, with the objects whose ids are keys."""


def list_graphs(node: Node) -> tuple[Graph, ...]:
    if not node.attributes:
        return ()
    return tuple([value for value in node.attributes.values() if isinstance(value, Graph)])


def walk_nodes(graph: Graph, prefix: str = "") -> Iterator[tuple[str, Graph, Node]]:
    """Yield path (`prefix` + ``"loop/add"``), graph and node of all nodes, also nested ones."""
    for node in graph.nodes:
        yield prefix + node.name, graph, node
        for nested in list_graphs(node):
            yield from walk_nodes(nested, f"{prefix}{node.name}/")


def has_effects(node: Node) -> bool:
    if node.operator.effects:
        return True
    nested = list_graphs(node)
    return bool(nested) and any(
        inner.operator.effects for graph in nested for _, _, inner in walk_nodes(graph)
    )


def find_async_operator(node: Node) -> Operator | None:
    """Return the operator of the async function that `node` calls, even with open lengths."""
    operator = node.operator
    if operator.function is not None:
        return operator if operator.is_async else None
    nested = (inner.operator for graph in list_graphs(node) for inner in graph.nodes)
    return next((one for one in nested if one.is_async), None)


def draws(node: Node) -> bool:
    if node.operator.draws is not None:
        return node.operator.draws(node.inputs)
    return any(draws(inner) for graph in list_graphs(node) for inner in graph.nodes)


def acts_outside(node: Node) -> bool:
    """Return whether `node` has effects that a session cannot undo, unlike assignments."""
    return has_effects(node) and node.op not in (VARIABLE, ASSIGN)


def call_graph(graph: Graph, specs: Specs, values: Values = ()) -> Graph:
    """Return the nested `graph` for inputs that have `specs`; known `values` become constants.

    Raises ShapeError if it has another number of inputs, or the specs do not fit inside.
    """
    if len(specs) != len(graph.inputs):
        raise ShapeError(
            f"the graph {graph.name!r} has {len(graph.inputs)} inputs, its node hands it "
            f"{len(specs)}",
            fix=f"pass {', '.join(graph.inputs) or 'nothing'}",
        )
    given = {
        name: _name_lengths(name, graph.tensors[name] if spec is None else spec)
        for name, spec in zip(graph.inputs, specs, strict=True)
    }
    for name, spec in given.items():
        if spec.dtype != graph.tensors[name].dtype:
            raise ShapeError(
                f"input {name!r} of the graph {graph.name!r} is {graph.tensors[name]}, "
                f"its node hands it {spec}",
                fix="insert a Cast",
            )
    known = {n: v for n, v in zip(graph.inputs, values, strict=False) if v is not None}
    bound = replace(
        graph,
        inputs=tuple(name for name in graph.inputs if name not in known),
        tensors={**graph.tensors, **given},
        constants={**graph.constants, **known},
    )
    return infer_shapes(bound)


def infer_results(graph: Graph, specs: Specs, values: Values = ()) -> tuple[TensorSpec, ...]:
    """Return the specs of the outputs of a nested `graph` for inputs of `specs`, in outer symbols.

    `values` are the inputs where they are constant. Raises ShapeError like `call_graph`.
    """
    found = _found.get()
    if found is None:  # the outermost one
        token = _found.set({})
        try:
            return infer_results(graph, specs, values)
        finally:
            _found.reset(token)
    # Every loop asks for its body's specs several times, which is exponential for nested loops.
    key = id(graph), tuple(specs), tuple(map(id, values))
    if key not in found:
        found[key] = _infer_results(graph, specs, values), (graph, values)
    return found[key][0]


def _infer_results(graph: Graph, specs: Specs, values: Values) -> tuple[TensorSpec, ...]:
    inferred = call_graph(graph, specs, values)
    # Inner names of lengths are translated back; other symbols are unknown outside.
    known = {
        _rename_inside(dim): dim for spec in specs if spec is not None for dim in spec.shape or ()
    }

    def outside(dim: Dim) -> Dim:
        return dim if isinstance(dim, int) else known.get(dim, UNKNOWN)

    results = (inferred.tensors[name] for name in graph.outputs)
    return tuple(
        replace_shape(spec, None if spec.shape is None else tuple(map(outside, spec.shape)))
        for spec in results
    )


def merge_specs(a: TensorSpec, b: TensorSpec, label: str) -> TensorSpec:
    """Return the spec of a tensor that has the spec `a` or `b`; errors are about `label`."""
    if a.dtype != b.dtype:
        raise ShapeError(f"{label} is {a} here and {b} there", fix="insert a Cast")
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorSpec(a.dtype, None)
    dims = (x if x == y else UNKNOWN for x, y in zip(a.shape, b.shape, strict=True))
    return TensorSpec(a.dtype, tuple(dims))


def replace_shape(spec: TensorSpec, shape: tuple[Dim, ...] | None) -> TensorSpec:
    return TensorSpec(spec.dtype, shape)


def _name_lengths(name: str, spec: TensorSpec) -> TensorSpec:
    if spec.shape is None:
        return spec
    dims = (
        f"{name}.shape[{i}]" if d == UNKNOWN else _rename_inside(d)
        for i, d in enumerate(spec.shape)
    )
    return TensorSpec(spec.dtype, tuple(dims))


def _rename_inside(dim: Dim) -> Dim:
    """Return the inner name of the length `dim`; tensors inside may have the same names."""
    return dim.replace(".shape[", "'.shape[") if isinstance(dim, str) else dim
