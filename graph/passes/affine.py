"""Nodes that only scale and shift each channel by constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..core.ir import Graph, Node
from ..values.tensor import Array

DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
"""Dtypes that are folded; float16 would be rounded once more."""


class Affine(NamedTuple):
    """A node that computes y = x · scale + shift, each one number or one per channel (axis 1)."""

    source: str
    scale: Array
    shift: Array

    @property
    def only_shifts(self) -> bool:
        return bool(np.all(self.scale == 1))


def read_affine(graph: Graph, node: Node, constants: Mapping[str, Array]) -> Affine | None:
    """Return `node` in `graph` as an affine map of its channels, or None if it is not one.

    Numbers, from `constants`, are float64, so that several maps can be composed before rounding.
    """
    if node.op == "BatchNormalization":
        return _read_batch_normalization(graph, node, constants)
    if node.op not in ("Mul", "Div", "Add", "Sub") or len(node.inputs) != 2:
        return None
    a, b = node.inputs
    swapped = a in constants
    source, constant = (b, a) if swapped else (a, b)
    if constant not in constants or source in constants or (swapped and node.op == "Div"):
        return None
    value = _align_to_channels(graph, source, node.outputs[0], constants[constant])
    if value is None:
        return None
    one, zero = np.ones(()), np.zeros(())
    if node.op == "Add":
        return _make_finite(source, one, value)
    if node.op == "Sub":
        return _make_finite(source, -one, value) if swapped else _make_finite(source, one, -value)
    with np.errstate(all="ignore"):
        return _make_finite(source, 1 / value if node.op == "Div" else value, zero)


def _read_batch_normalization(
    graph: Graph, node: Node, constants: Mapping[str, Array]
) -> Affine | None:
    x, *given = node.inputs
    spec = graph.tensors[x]
    if node.attributes["training_mode"] or any(name not in constants for name in given):
        return None
    if spec.dtype not in DTYPES or spec.rank is None or spec.rank < 2:
        return None
    scale, bias, mean, variance = (constants[name].astype(np.float64) for name in given)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + node.attributes["epsilon"])
        return _make_finite(x, factor, bias - mean * factor)


def _align_to_channels(graph: Graph, source: str, output: str, value: Array) -> Array | None:
    """Return `value` as a float64 scalar or one per channel of `source`; None unless it fits."""
    x, y = graph.tensors[source], graph.tensors[output]
    if x.dtype not in DTYPES or x.rank is None or x.shape is None or value.ndim > x.rank:
        return None
    if x.rank < 2 or x.shape != y.shape:
        return None
    aligned = (1,) * (x.rank - value.ndim) + value.shape
    if value.size == 1:
        return value.reshape(()).astype(np.float64)
    # One number for each channel, along axis 1 alone.
    if aligned[1] == value.size == x.shape[1]:
        return value.reshape(-1).astype(np.float64)
    return None


def _make_finite(source: str, scale: Array, shift: Array) -> Affine | None:
    """Return the affine map; None if a number is not finite, for then the order would matter."""
    numbers: tuple[Any, Any] = (scale, shift)
    return Affine(source, scale, shift) if all(np.isfinite(n).all() for n in numbers) else None
