"""The key of a measured time: an operator with its attributes and the specs around it.

Names play no part in it, so that a time that was measured in one graph is found for another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...graph.ir import Graph, Node


class Signature(NamedTuple):
    """A node without its names.

    Attributes
    ----------
    op : str
    attributes : str
        As JSON, keys sorted.
    inputs, outputs : tuple of str
        Specs such as ``"float32[1, 3]"``; empty where a tensor is absent.
    """

    op: str
    attributes: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def signature(graph: Graph, node: Node) -> Signature:
    """Return what a node's measured time belongs to."""
    inputs = tuple(str(graph.tensors[name]) if name else "" for name in node.inputs)
    outputs = tuple(str(graph.tensors[name]) if name else "" for name in node.outputs)
    return Signature(node.op, canonical(node.attributes), inputs, outputs)


def canonical(attributes: Mapping[str, Any]) -> str:
    """Return attributes as text that is equal where they are."""
    return json.dumps(attributes, sort_keys=True, separators=(",", ":"), default=_plain)


def digest(graph: Graph) -> str:
    """Return what a whole subgraph's measured time belongs to: its nodes and how they connect."""
    number: dict[str, int] = {"": -1}
    parts: list[Any] = []
    for node in graph.nodes:
        reads = [number.setdefault(name, len(number)) for name in node.inputs]
        writes = [number.setdefault(name, len(number)) for name in node.outputs]
        parts.append((*signature(graph, node), reads, writes))
    parts.append([number.get(name, -2) for name in graph.outputs])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Graph):
        return digest(value)
    return str(value)
