"""Constants: bytes that lie in a memory for as long as a plan is open, beside all regions.

Devices of this process share the arrays of the graph, so that each constant counts once in host
memory; any other device has what its programs read for itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....devices.device import Device
from ....devices.memory import HOST
from ....graph.ir import Graph
from ...plans.placement import Placement
from ...plans.steps import Transfer


def constants_by_memory(
    graph: Graph, placement: Placement, devices: Mapping[str, Device]
) -> dict[str, int]:
    """Return the bytes of constants that the steps read, by the memory they are kept in."""
    kept: dict[tuple[str, str], set[str]] = {}
    for step in placement.steps:
        if not isinstance(step.work, Transfer):
            memory = devices[step.device].capabilities.memory
            owner = "" if memory == HOST else step.device
            read = (name for node in step.work.graph.nodes for name in node.inputs)
            kept.setdefault((memory, owner), set()).update(graph.constants.keys() & set(read))
    nbytes: dict[str, int] = {}
    for (memory, _), names in kept.items():
        needed = sum(graph.tensors[name].nbytes for name in names)
        nbytes[memory] = nbytes.get(memory, 0) + needed
    return nbytes
