"""Lengths of results of Python functions: inferred by their rules, bounded, or refused."""

from __future__ import annotations

from collections.abc import Mapping

from ...graph.core.infer import infer_node
from ...graph.core.ir import Graph, make_call
from ...graph.values.errors import PlaitError
from ...graph.values.tensor import TensorSpec
from ..plans.shapes import Bounds
from .bounds import EXAMPLE, find_computed_symbols, pick_largest
from .sync_points import untold_shape_error


def check_results(graph: Graph, bounds: Bounds) -> None:
    """Raise PlanError if a Python function in `graph` has results of a length that is never known.

    Such a length is open even if all lengths of inputs are known, and is not in `bounds`.
    """
    unbounded = find_computed_symbols(graph).keys() - bounds.keys()
    if not any(
        node.operator.function is not None and not unbounded.isdisjoint(spec.shape or ())
        for node in graph.nodes
        for spec in graph.output_specs(node)
    ):
        return
    lengths, tensors = pick_largest(bounds), dict(graph.tensors)
    for name in graph.inputs:
        tensors[name] = _substitute_lengths(tensors[name], lengths, EXAMPLE)
    for node in graph.nodes:
        names = [name for name in node.outputs if name]
        try:
            specs = infer_node(node, make_call(node, tensors, graph.constants))
        except PlaitError:  # these lengths are incompatible
            pass
        else:
            tensors.update(
                (name, _substitute_lengths(spec, lengths))
                for name, spec in zip(node.outputs, specs, strict=True)
                if name
            )
            is_open = not all(tensors[name].is_static for name in names)
            if node.operator.function is not None and is_open:
                raise untold_shape_error(graph, node, bounds)
        for name in names:
            tensors[name] = _substitute_lengths(tensors[name], lengths, EXAMPLE)


def _substitute_lengths(
    spec: TensorSpec, lengths: Mapping[str, int], other: int | None = None
) -> TensorSpec:
    if spec.shape is None or spec.is_static:
        return spec
    dims = (
        lengths.get(dim, dim if other is None else other) if isinstance(dim, str) else dim
        for dim in spec.shape
    )
    return TensorSpec(spec.dtype, tuple(dims))
