"""The key of a measured time: an operator with its attributes and specs.

Names are not part of it, so that a time from one graph applies to another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...graph.core.ir import Graph, Node


class Signature(NamedTuple):
    """A node without its names."""

    op: str
    attributes: str
    """JSON with sorted keys."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """Specs such as ``"float32[1, 3]"``; empty if a tensor is absent."""


def make_signature(graph: Graph, node: Node) -> Signature:
    inputs = tuple(str(graph.tensors[name]) if name else "" for name in node.inputs)
    outputs = tuple(str(graph.tensors[name]) if name else "" for name in node.outputs)
    return Signature(node.op, to_text(node.attributes), inputs, outputs)


def to_text(attributes: Mapping[str, Any]) -> str:
    return json.dumps(attributes, sort_keys=True, separators=(",", ":"), default=_to_plain)


def make_digest(graph: Graph) -> str:
    """Return the key of the measured time of `graph`: its nodes and their connections."""
    number: dict[str, int] = {"": -1}
    parts: list[Any] = []
    for node in graph.nodes:
        reads = [number.setdefault(name, len(number)) for name in node.inputs]
        writes = [number.setdefault(name, len(number)) for name in node.outputs]
        parts.append((*make_signature(graph, node), reads, writes))
    parts.append([number.get(name, -2) for name in graph.outputs])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _to_plain(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Graph):
        return make_digest(value)
    return str(value)
