"""Models for graphs that differ only in lengths, with the differences left open.

A graph for other shapes has the same nodes; only lengths differ, and constants that follow from
them, such as the shape for a Reshape, or position codes. ONNX Runtime accepts open lengths, and any
constant as an input. So one model serves all, and its prepacked weights exist once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...graph.core.ir import Graph
from ...graph.values.dtypes import is_extension
from ...graph.values.tensor import Array, Dim, TensorSpec

MOST_NBYTES = 1024
"""Larger constants of equal shape are weights, and equal only if they are the same memory."""


def widen(model: Graph, graph: Graph) -> Graph | None:
    """Return a model for `graph` and all that `model` serves, if there is one, or None.

    It is `model` itself if that serves the graph already.
    """
    if len(model.nodes) != len(graph.nodes) or model.outputs != graph.outputs:
        return None
    fed = list_fed(model, graph)
    if model.inputs != (*graph.inputs, *fed) or model.nodes != graph.nodes:
        return None
    if model.constants.keys() | set(fed) != graph.constants.keys():
        return None
    pairs = {name: (array, graph.constants[name]) for name, array in model.constants.items()}
    differing = [name for name, pair in pairs.items() if not is_same_constant(*pair)]
    if not all(_may_be_fed(*pairs[name]) for name in differing):
        return None
    names = (*model.inputs, *differing, *model.outputs)
    specs = {name: _find_common(name, model.tensors[name], graph.tensors[name]) for name in names}
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


def list_fed(model: Graph, graph: Graph) -> tuple[str, ...]:
    return model.inputs[len(graph.inputs) :]


def is_alike(one: Array, other: Array) -> bool:
    return bool(one.dtype == other.dtype and one.shape == other.shape)


def is_same_constant(one: Array, other: Array) -> bool:
    if one is other:
        return True
    if not is_alike(one, other):
        return False
    if one.nbytes > MOST_NBYTES:
        return bool(one.ctypes.data == other.ctypes.data)
    return bool(one.tobytes() == other.tobytes())


def _may_be_fed(one: Array, other: Array) -> bool:
    if is_extension(one.dtype) or not (one.size and other.size):
        return False
    # Short as inputs are, it is not a weight that would be prepacked.
    return bool(one.shape != other.shape or one.nbytes <= MOST_NBYTES)


def _find_common(name: str, one: TensorSpec, other: TensorSpec) -> TensorSpec | None:
    if one == other:
        return one
    if one.dtype != other.dtype or one.shape is None or other.shape is None:
        return None
    if len(one.shape) != len(other.shape):
        return None
    return TensorSpec(one.dtype, tuple(_open_dims(name, one.shape, other.shape)))


def _open_dims(name: str, one: tuple[Dim, ...], other: tuple[Dim, ...]) -> Iterator[Dim]:
    for axis, (length, another) in enumerate(zip(one, other, strict=True)):
        yield length if length == another else f"{name}.{axis}"
