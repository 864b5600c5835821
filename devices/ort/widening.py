"""Models for graphs that differ in lengths alone: what differs between them is left open.

A graph for other shapes has the same nodes; lengths differ, and constants that follow from them,
such as the shape that a Reshape is told, or codes for as many positions. ONNX Runtime takes open
lengths, and any constant as an input, so that one model serves them all, and what it makes of the
weights is there once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...graph.dtypes import is_extension
from ...graph.ir import Graph
from ...graph.tensor import Array, Dim, TensorSpec

MOST_NBYTES = 1024
"""Constants of more bytes and one shape are weights, the same where they are the same memory."""


def widened(model: Graph, graph: Graph) -> Graph | None:
    """Return what serves a graph as well as all that a model serves; None if nothing does.

    That is `model` itself where it serves the graph already.
    """
    if len(model.nodes) != len(graph.nodes) or model.outputs != graph.outputs:
        return None
    fed = given(model, graph)
    if model.inputs != (*graph.inputs, *fed) or model.nodes != graph.nodes:
        return None
    if model.constants.keys() | set(fed) != graph.constants.keys():
        return None
    pairs = {name: (array, graph.constants[name]) for name, array in model.constants.items()}
    differing = [name for name, pair in pairs.items() if not _same(*pair)]
    if not all(_may_be_fed(*pairs[name]) for name in differing):
        return None
    names = (*model.inputs, *differing, *model.outputs)
    specs = {name: _common(name, model.tensors[name], graph.tensors[name]) for name in names}
    open_specs = {name: spec for name, spec in specs.items() if spec is not None}
    if len(open_specs) < len(specs):
        return None
    if not differing and all(spec == model.tensors[name] for name, spec in open_specs.items()):
        return model
    return replace(
        model,
        inputs=(*model.inputs, *differing),
        tensors={**model.tensors, **open_specs},
        constants={n: a for n, a in model.constants.items() if n not in differing},
    )


def given(model: Graph, graph: Graph) -> tuple[str, ...]:
    """Return the constants of a graph that its model takes as inputs."""
    return model.inputs[len(graph.inputs) :]


def _same(one: Array, other: Array) -> bool:
    if one is other:
        return True
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.nbytes > MOST_NBYTES:
        return bool(one.ctypes.data == other.ctypes.data)
    return bool(one.tobytes() == other.tobytes())


def _may_be_fed(one: Array, other: Array) -> bool:
    if is_extension(one.dtype) or not (one.size and other.size):
        return False
    # As long as the inputs are, it is no weight, of which something would be made ahead.
    return bool(one.shape != other.shape or one.nbytes <= MOST_NBYTES)


def _common(name: str, one: TensorSpec, other: TensorSpec) -> TensorSpec | None:
    """Return a spec that is both, open where they differ; None if they differ in more."""
    if one == other:
        return one
    if one.dtype != other.dtype or one.shape is None or other.shape is None:
        return None
    if len(one.shape) != len(other.shape):
        return None
    return TensorSpec(one.dtype, tuple(_dims(name, one.shape, other.shape)))


def _dims(name: str, one: tuple[Dim, ...], other: tuple[Dim, ...]) -> Iterator[Dim]:
    for axis, (length, another) in enumerate(zip(one, other, strict=True)):
        yield length if length == another else f"{name}.{axis}"
