"""Nodes that devices refused at run time, remembered by kind and version for this process.

Libraries do not refuse all unsupported nodes when a graph is planned. Later plans avoid nodes with
the same attributes, dtypes and ranks.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from ..graph.ir import Graph, Node
from .kinds import get_kind

MOST = 4096
"""Limit of remembered refusals; new ones replace the oldest."""

_refused: dict[Hashable, str] = {}


class Named(Protocol):
    """A device's name and software."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Any: ...


def note_refusal(device: Named, graph: Graph, node: Node, reason: str) -> bool:
    """Remember that a device refused a node; return True if that is new."""
    key = _make_key(device, graph, node)
    if key in _refused:
        return False
    if len(_refused) >= MOST:
        _refused.pop(next(iter(_refused)), None)
    _refused[key] = reason
    return True


def find_refusal(device: Named, graph: Graph, node: Node) -> str | None:
    """Return the reason for which a device of this kind and version refused such a node, if any."""
    return _refused.get(_make_key(device, graph, node)) if _refused else None


def forget_refusals() -> None:
    _refused.clear()


def _make_key(device: Named, graph: Graph, node: Node) -> Hashable:
    specs = (graph.tensors[name] if name else None for name in (*node.inputs, *node.outputs))
    ranks = tuple(spec and (spec.dtype.name, spec.rank) for spec in specs)
    attributes = repr(sorted(node.attributes.items()))
    software = device.capabilities.software
    return get_kind(device.name), software, node.op, attributes, ranks
