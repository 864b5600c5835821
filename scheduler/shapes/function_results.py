"""Lengths of what Python functions return: told by their rules, bounded, or else refused."""

from __future__ import annotations

from collections.abc import Mapping

from ...graph.errors import PlaitError
from ...graph.infer import infer_node
from ...graph.ir import Graph, call_of
from ...graph.tensor import TensorSpec
from ..plans.shapes import Bounds
from .bounds import EXAMPLE, computed_symbols, largest
from .sync_points import untold_shape_error


def check_results(graph: Graph, bounds: Bounds) -> None:
    """Raise PlanError if what a Python function returns has a length that nothing will tell.

    That is so if it is open even at some lengths of all inputs, and has no bound.
    """
    unbounded = computed_symbols(graph).keys() - bounds.keys()
    if not any(
        node.operator.function is not None and not unbounded.isdisjoint(spec.shape or ())
        for node in graph.nodes
        for spec in graph.output_specs(node)
    ):
        return
    lengths, tensors = largest(bounds), dict(graph.tensors)
    for name in graph.inputs:
        tensors[name] = _of_lengths(tensors[name], lengths, EXAMPLE)
    for node in graph.nodes:
        names = [name for name in node.outputs if name]
        try:
            specs = infer_node(node, call_of(node, tensors, graph.constants))
        except PlaitError:  # these lengths do not fit together
            pass
        else:
            tensors.update(
                (name, _of_lengths(spec, lengths))
                for name, spec in zip(node.outputs, specs, strict=True)
                if name
            )
            is_open = not all(tensors[name].is_static for name in names)
            if node.operator.function is not None and is_open:
                raise untold_shape_error(graph, node, bounds)
        for name in names:
            tensors[name] = _of_lengths(tensors[name], lengths, EXAMPLE)


def _of_lengths(
    spec: TensorSpec, lengths: Mapping[str, int], other: int | None = None
) -> TensorSpec:
    """Return a spec with lengths in place of symbols; others stay, or have one length."""
    if spec.shape is None or spec.is_static:
        return spec
    dims = (
        lengths.get(dim, dim if other is None else other) if isinstance(dim, str) else dim
        for dim in spec.shape
    )
    return TensorSpec(spec.dtype, tuple(dims))
