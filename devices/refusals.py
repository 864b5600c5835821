"""Nodes that devices refused at run time, remembered by kind and version.

Libraries do not refuse all unsupported nodes when a graph is planned. Later plans avoid nodes with
the same attributes, dtypes and ranks, also in later processes: refusals are kept in the user's
cache folder, next to the figures.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

from ..graph.core.ir import Graph, Node
from .cache_folder import MOST, hash_sources, keep_text, read_texts
from .kinds import get_kind

if TYPE_CHECKING:
    from .device import Device

_refused: dict[str, str] = {}
_count = 0


def count_refusals() -> int:
    """Return the number of refusals that this process has met: later plans avoid these nodes."""
    return _count


def note_refusal(device: Device, graph: Graph, node: Node, reason: str) -> bool:
    global _count
    key = _make_key(device, graph, node)
    if key in _read_kept():
        return False
    _count += 1
    if len(_refused) >= MOST:
        _refused.pop(next(iter(_refused)), None)
    _refused[key] = reason
    if len(_refused) < MOST:
        keep_text("refused", key, reason)
    return True


def find_refusal(device: Device, graph: Graph, node: Node) -> str | None:
    refused = _read_kept()
    return refused.get(_make_key(device, graph, node)) if refused else None


@cache
def _read_kept() -> dict[str, str]:
    """Return by key the reasons of refusals, with those that earlier processes met."""
    _refused.update(read_texts("refused"))
    return _refused


def _make_key(device: Device, graph: Graph, node: Node) -> str:
    specs = (graph.tensors[name] if name else None for name in (*node.inputs, *node.outputs))
    ranks = tuple(spec and (spec.dtype.name, spec.rank) for spec in specs)
    attributes = sorted(node.attributes.items())
    kind, software = get_kind(device.name), device.capabilities.software
    # Other code of plait may describe the node otherwise to the library.
    key = kind, software, hash_sources("ort"), node.op, attributes, ranks
    return sha256(repr(key).encode()).hexdigest()
