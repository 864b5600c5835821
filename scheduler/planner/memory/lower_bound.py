"""The least bytes that one item needs, computed without a memory plan."""

from __future__ import annotations

from collections.abc import Mapping

from ....devices.device import Device
from ....graph.core.ir import Graph
from ...packing import Block
from ...packing.problem import find_lower_bound
from ...plans.placement import Placement
from .buffers import Buffer, collect_buffers, find_alignment
from .happens_before import HappensBefore, relate


def lower_bounds(
    graph: Graph, placement: Placement, devices: Mapping[str, Device]
) -> dict[str, int]:
    """Return least bytes of `graph` by memory, in `placement` on `devices`; plans come close."""
    order = HappensBefore(placement.steps)
    inside: dict[str, list[Buffer]] = {}
    for buffer in collect_buffers(graph, placement, devices, order):
        inside.setdefault(buffer.memory, []).append(buffer)
    bounds = {}
    for memory, buffers in inside.items():
        alignment = find_alignment(memory, devices)
        blocks = [Block(-(-one.nbytes // alignment) * alignment) for one in buffers]
        relation = relate(buffers, placement.steps, order)
        bounds[memory] = find_lower_bound(blocks, relation.conflicts)
    return bounds
